"""Writes the classes of `fasti.aio` that only pass calls on, from those of `fasti.client`: `make aio`.

A call of the synchronous SDK that sends one request and returns what came of it needs no second
implementation on an event loop: there it runs in a thread, and the loop awaits it. Such a class is
written once, in `fasti.client`. This script reads it and writes its asyncio face with the same
signatures, overloads and types:

| synchronous | asyncio |
| --- | --- |
| `def put(...) -> Outcome` | `async def put(...) -> Outcome` |
| `def scan(...) -> Iterator[T]` | `def scan(...) -> AsyncGenerator[T, None]` |
| `def stage(...) -> StageWriter`, itself a face | `def stage(...) -> StageWriter`, the asyncio one |
| a property, `__repr__` | the same |
| `__enter__`, `__exit__`, `__iter__` | `__aenter__`, `__aexit__`, `__aiter__` |

The files are committed, so that readers and editors see plain code; a test fails when one is not what
this script writes. Methods whose name begins with `_` are left out.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fasti"
_CONFIG = str(ROOT / "pyproject.toml")


@dataclass(frozen=True)
class Face:
    """A class of `fasti.client.<module>` that has a face in `fasti.aio.<module>`."""

    module: str
    name: str
    # What of the synchronous object can be read on the asyncio one.
    attributes: tuple[str, ...] = ("topic",)
    # A part of a class that is written by hand, which has this attribute: the synchronous object.
    part_of: str = ""
    # Whether `progress=` is called in the event loop, or in the thread that does the work.
    progress_in_loop: bool = True


FACES = (
    Face("bindings", "Bindings"),
    Face("groups", "Groups"),
    Face("kv", "KeyValues"),
    Face("log", "Log"),
    Face("dead_letters", "DeadLetters", part_of="_sync"),
    Face("messages", "Messages", ("topic", "owner")),
    Face("schedules", "Schedules"),
    Face("stale", "StaleMessages"),
    Face("stale", "StaleKeyValues"),
    Face("sinks", "Sink", ("topic", "sink_id", "operation", "on_conflict", "owner")),
    Face("sinks", "StageWriter", ("name",)),
    Face("topic_calls", "TopicCalls", part_of="_client"),
    Face("broker_calls", "BrokerCalls", part_of="_client", progress_in_loop=False),
)
# Classes of fasti.aio that are written by hand, made with the call that opens the synchronous one.
OPENED = {"Watch": "watch"}
_ALWAYS = {"overload"}
# What users call them; errors and docs use these names.
_PUBLIC = {"TopicCalls": "Client", "BrokerCalls": "Client", "DeadLetters": "Messages"}
_INSIDE = ("sinks",)
_LINE_MAX = 100
_CONTEXT = """
    async def __aenter__(self) -> {name}:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._home.run(self._sync.__exit__, kind, error, traceback)
"""


def files() -> Iterator[tuple[Path, str]]:
    """Every file and what it should hold."""
    for module in dict.fromkeys(face.module for face in FACES):
        text = _module(module, [face for face in FACES if face.module == module])
        yield SOURCE / "aio" / f"{module}.py", _formatted(text)


def _formatted(text: str) -> str:
    for command in (
        ["check", "--fix-only", "--select", "I,F401", "--config", _CONFIG],
        ["format", "--config", _CONFIG],
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "-q", "--stdin-filename", "face.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def _module(module: str, faces: list[Face]) -> str:
    tree = ast.parse((SOURCE / "client" / f"{module}.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    body = "\n\n".join(_Writer(face, classes[face.name]).text() for face in faces)
    known = {face.name: face.module for face in FACES if face.module != module} | OPENED
    used = _names(ast.parse(body))
    own = {face.name for face in faces}
    imports = [f"from fasti.aio.{known[name]} import {_shown(name)}" for name in used & set(known)]
    typed = [f"from fasti.client.{module} import {face.name} as Sync{face.name}" for face in faces]
    provided = _imported(tree) | {
        name: f"from fasti.client.{module} import {name}" for name in _defined(tree)
    }
    typed += [provided[name] for name in used & set(provided) - set(known) - own - _ALWAYS]
    return "\n".join(
        [
            f'"""Written by `make aio` from `fasti/client/{module}.py`: change that file instead."""',
            "from __future__ import annotations",
            "from functools import partial",
            "from typing import TYPE_CHECKING, overload",
            *imports,
            "if TYPE_CHECKING:",
            "    from collections.abc import AsyncGenerator, Callable",
            "    from types import TracebackType",
            "    from typing import Any",
            "    from fasti.aio.home import Home",
            *(f"    {line}" for line in sorted(typed)),
            "",
            body,
        ]
    )


def _shown(name: str) -> str:
    """Those that are written by hand may be imported from here as well."""
    return f"{name} as {name}" if name in OPENED else name


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _imported(tree: ast.Module) -> dict[str, str]:
    """The names that a module imports, with the line that imports each alone."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name
            written = alias.name + (f" as {alias.asname}" if alias.asname else "")
            origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            found[name] = f"{origin}import {written}"
    return found


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


class _Writer:
    """Writes the face of one class."""

    def __init__(self, face: Face, source: ast.ClassDef) -> None:
        self._face, self._source = face, source
        self._sync = f"self.{face.part_of or '_sync'}"
        self._faces = {face.name for face in FACES}
        public = _PUBLIC.get(face.name, face.name)
        place = f"fasti.client.{face.module}" if face.module in _INSIDE else "fasti"
        self._public = f"{place}.{public}"

    def text(self) -> str:
        """The class."""
        bases = [base.id for base in self._source.bases if isinstance(base, ast.Name)]
        parents = ", ".join(base for base in bases if base in self._faces)
        lines = [f"class {self._face.name}({parents}):" if parents else f"class {self._face.name}:"]
        lines.append(self._docstring(self._source, self._public, ", with `await`", 4))
        lines.append(self._beginning())
        overloaded: set[str] = set()
        for node in self._source.body:
            if isinstance(node, ast.FunctionDef):
                lines.append(self._method(node, overloaded))
        return "\n".join(lines)

    def _beginning(self) -> str:
        name = self._face.name
        if self._face.part_of:
            return f"\n    _home: Home\n    {self._face.part_of}: Sync{name}\n"
        copies = "".join(f"        self.{read} = sync.{read}\n" for read in self._face.attributes)
        return (
            f"\n    _sync: Sync{name}\n\n"
            f"    def __init__(self, home: Home, sync: Sync{name}) -> None:\n{copies}"
            "        self._home, self._sync = home, sync\n"
        )

    def _method(self, node: ast.FunctionDef, overloaded: set[str]) -> str:
        decorators = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
        if node.name == "__enter__":
            return _CONTEXT.format(name=self._face.name)
        if node.name == "__repr__":
            return f"\n    def __repr__(self) -> str:\n        return repr({self._sync})\n"
        if node.name == "__iter__":
            return self._iterated(node, "__aiter__")
        if node.name.startswith("_"):
            return ""
        if "property" in decorators:
            return (
                f"\n    @property\n    def {node.name}(self) -> {_written(node.returns)}:\n"
                f"{self._documented(node)}        return {self._sync}.{node.name}\n"
            )
        if "overload" in decorators:
            overloaded.add(node.name)
            return f"\n    @overload\n    async {_signature(node)} ...\n"
        returns = _written(node.returns)
        if returns.startswith("Iterator["):
            return self._iterated(node, node.name)
        if returns in self._faces:
            made = f"{returns}(self._home, {self._sync}.{node.name}({self._passed(node)[2:]}))"
            return f"\n    {_signature(node)}\n{self._documented(node)}        return {made}\n"
        if returns in OPENED:
            opened = f"partial({self._sync}.{node.name}{self._passed(node)})"
            made = f"{returns}(self._home, self.topic, {opened})"
            return f"\n    {_signature(node)}\n{self._documented(node)}        return {made}\n"
        return self._awaited(node, node.name in overloaded)

    def _awaited(self, node: ast.FunctionDef, overloaded: bool) -> str:
        before, call = "", f"{self._sync}.{node.name}"
        if overloaded:
            # Which overload it is, a type checker can't tell from arguments that are passed on.
            before, call = f"        call: Callable[..., Any] = {call}\n", "call"
        result = "" if _written(node.returns) == "None" else "return "
        return (
            f"\n    async {_signature(node)}\n{self._documented(node)}{before}"
            f"        {result}await self._home.run({call}{self._passed(node)})\n"
        )

    def _iterated(self, node: ast.FunctionDef, name: str) -> str:
        item = _written(node.returns).removeprefix("Iterator[").removesuffix("]")
        parameters = ast.unparse(node.args)
        return (
            f"\n    def {name}({parameters}) -> AsyncGenerator[{item}, None]:\n"
            f"{self._documented(node)}"
            f"        return self._home.iterate({self._sync}.{node.name}{self._passed(node)})\n"
        )

    def _passed(self, node: ast.FunctionDef) -> str:
        """The arguments as they are passed on, a comma before each."""
        arguments = node.args
        passed = [self._value(argument.arg) for argument in arguments.args[1:]]
        passed += [f"{option.arg}={self._value(option.arg)}" for option in arguments.kwonlyargs]
        if arguments.kwarg is not None:
            passed.append(f"**{arguments.kwarg.arg}")
        return "".join(f", {argument}" for argument in passed)

    def _value(self, name: str) -> str:
        in_loop = name == "progress" and self._face.progress_in_loop
        return f"self._home.in_loop({name})" if in_loop else name

    def _documented(self, node: ast.FunctionDef) -> str:
        names = {argument.arg for argument in node.args.kwonlyargs + node.args.args}
        more = ""
        if "progress" in names:
            where = "the client's loop" if self._face.progress_in_loop else "another thread"
            more = f"; `progress` is called in {where}"
        text = self._docstring(node, f"{self._public}.{node.name}", more, 8)
        return f"{text}\n" if text else ""

    def _docstring(
        self, node: ast.FunctionDef | ast.ClassDef, name: str, more: str, indent: int
    ) -> str:
        """The first paragraph, and where the rest stands."""
        written = ast.get_docstring(node)
        if written is None:
            return ""
        first, _, rest = inspect.cleandoc(written).partition("\n\n")
        text = f'"""{first}"""'
        if rest or more:
            text = f'"""{first} As `{name}`{more}."""'
            if len(text) + indent > _LINE_MAX:
                text = f'"""{first}\n\nAs `{name}`{more}.\n"""'
        return textwrap.indent(text, " " * indent)


def _signature(node: ast.FunctionDef) -> str:
    return f"def {node.name}({ast.unparse(node.args)}) -> {_written(node.returns)}:"


def _written(annotation: ast.expr | None) -> str:
    return "None" if annotation is None else ast.unparse(annotation)


def main() -> None:
    """Writes them."""
    for path, text in files():
        path.write_text(text)


if __name__ == "__main__":
    main()
