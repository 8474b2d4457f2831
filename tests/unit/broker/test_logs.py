"""Lines for people and for programs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fasti.broker.logs import fields, set_up


@pytest.fixture(autouse=True)
def the_root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_for_people() -> None:
    stream = io.StringIO()
    set_up("info", "text", stream)
    logging.getLogger("fasti.x").debug("hidden")
    logging.getLogger("fasti.x").warning("it leapt %d", 5, extra=fields(by="two words", at=1))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("warning it leapt 5 by='two words' at=1")


def test_lines_for_programs() -> None:
    stream = io.StringIO()
    set_up("debug", "json", stream)
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("fasti.x").exception("broke", extra=fields(path=io))
    made = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert made["message"] == "broke"
    assert made["level"] == "error"
    assert made["logger"] == "fasti.x"
    assert "ValueError" in made["error"]
    assert made["time"].endswith("+00:00")
    assert made["path"] == str(io)
