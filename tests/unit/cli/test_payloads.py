"""Payloads on a terminal and in JSON."""

from __future__ import annotations

from fasti.cli import payloads


def test_text_stays_text_and_bytes_are_marked() -> None:
    assert payloads.as_text("grüße".encode()) == "grüße"
    assert payloads.as_text(b"\xff\x00") == "base64:/wA="
    assert payloads.as_json(b"hello") == {"payload": "hello"}
    assert payloads.as_json(b"\xff\x00") == {"payload_base64": "/wA="}


def test_nothing_in_a_payload_steers_a_terminal() -> None:
    assert payloads.harmless("a\x1b[2Jb\nc\td") == "a\\x1b[2Jb\nc\td"
    assert "\x9b" not in payloads.harmless("\x9b2J")


def test_a_cell_is_one_short_line() -> None:
    assert payloads.as_cell(b"a\nb\r\tc") == "a\\nb\\r\\tc"
    assert payloads.as_cell(b"x" * 100, width=10) == "xxxxxxxxx…"
    assert payloads.as_cell(b"x" * 10, width=10) == "x" * 10
