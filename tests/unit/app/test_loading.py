"""Apps are found by their names, and what is wrong with a name is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasti.app.app import App
from fasti.app.loading import load
from fasti.errors import InvalidArgument

MODULE = """
import types
import fasti
app = fasti.App()
other = 7
box = types.SimpleNamespace(app=app)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "loading_shop.py").write_text(MODULE)
    (tmp_path / "loading_broken.py").write_text("import there_is_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("loading_shop", None)


@pytest.mark.parametrize("name", ["loading_shop:app", "loading_shop", "loading_shop:box.app"])
def test_an_app_is_found_in_the_current_directory(name: str) -> None:
    assert isinstance(load(name), App)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("loading_nowhere:app", "there is no module 'loading_nowhere'"),
        ("loading_shop:missing", "module 'loading_shop' has no 'missing'; it has app"),
        (
            "loading_shop:other",
            "'loading_shop:other' is not a fasti.App but of type int; it has app",
        ),
        ("loading_shop.py:app", "without .py"),
        (":app", "is not a module"),
    ],
)
def test_what_is_wrong_with_a_name_is_told(name: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(name)
    assert why in str(caught.value)


def test_a_module_that_lacks_another_says_which() -> None:
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        load("loading_broken:app")
