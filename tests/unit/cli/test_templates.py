"""What is printed of a message that was consumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
import typer

from fasti.cli.templates import form


@dataclass
class Message:
    id: int = 7
    key: str | None = "user-7"
    due_us: int = 1_798_131_600_000_000
    priority: int = 5
    attempts: int = 2
    version: int = 3
    created: datetime = datetime(2026, 12, 24, 16, 58, 20, tzinfo=UTC)
    headers: dict[str, str] = field(default_factory=lambda: {"lang": "en"})
    content_type: str | None = None
    subject: str | None = None
    payload: bytes = b"hello"


def test_text_raw_and_json() -> None:
    assert form("text", terminal=False)(Message()) == b"hello\n"
    assert form("raw", terminal=True)(Message(payload=b"\xff\x1b")) == b"\xff\x1b"
    line = form("json", terminal=False)(Message())
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "id": 7,
        "key": "user-7",
        "due": "2026-12-24T17:00:00.000000Z",
        "priority": 5,
        "attempts": 2,
        "version": 3,
        "created": "2026-12-24T16:58:20.000000Z",
        "headers": {"lang": "en"},
        "content_type": None,
        "subject": None,
        "payload": "hello",
    }


def test_a_template_names_what_it_wants() -> None:
    lines = form("{id}\\t{key} {attempts:03} {payload}", terminal=False)
    assert lines(Message()) == b"7\tuser-7 002 hello\n"
    assert form("{key}|", terminal=False)(Message(key=None)) == b"|\n"
    assert b"2026-12-2" in form("{due}", terminal=False)(Message())


def test_only_on_a_terminal_control_characters_are_written_out() -> None:
    message = Message(payload=b"\x1b[31mred")
    assert form("text", terminal=True)(message) == b"\\x1b[31mred\n"
    assert form("text", terminal=False)(message) == b"\x1b[31mred\n"


@pytest.mark.parametrize(
    "template", ["{nothing}", "{", "plain", "{payload.__class__}", "{0}", "{}"]
)
def test_a_template_that_makes_no_sense_is_refused(template: str) -> None:
    with pytest.raises(typer.BadParameter):
        form(template, terminal=False)
