"""The house stays in order: how long a file and a class may be, and words that say nothing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "fasti"
LINES_MAX = 600
METHODS_MAX = 30


def test_no_file_is_too_long() -> None:
    long = {name for name, text in sources() if text.count("\n") > LINES_MAX}
    assert long == set()


def test_no_class_has_too_many_methods() -> None:
    large = {
        f"{name} {node.name}"
        for name, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and methods_of(node) > METHODS_MAX
    }
    assert large == set()


def test_nothing_is_named_told() -> None:
    """It had 16 meanings: a function is named for what it returns."""
    assert {name for name, text in sources() if re.search(r"\b_told\b", text)} == set()


def test_an_overload_is_not_counted_as_a_method() -> None:
    code = """
class Reader:
    @overload
    def read(self, count: int) -> list[int]: ...
    @typing.overload
    def read(self) -> int: ...
    def read(self, count=None): ...
    async def close(self): ...
"""
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.ClassDef)
    assert methods_of(node) == 2


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(SRC.rglob("*.py")):
        yield path.relative_to(SRC).as_posix(), path.read_text()


def methods_of(node: ast.ClassDef) -> int:
    return sum(
        isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(ast.unparse(mark).endswith("overload") for mark in member.decorator_list)
        for member in node.body
    )
