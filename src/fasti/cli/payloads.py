"""How payloads are read from arguments, and shown: as text if they are text, else in base64.

A payload can be any bytes, so on a terminal nothing in it may act on the terminal: control
characters are written out.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import typer

_MARK = "base64:"
# What a terminal takes for a command, tabs and ends of lines kept or not as the caller says.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_CONTROL_IN_LINES = {code: text for code, text in _CONTROL.items() if chr(code) not in "\n\t"}
_CONTROL_IN_CELLS = _CONTROL | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


def as_text(payload: bytes) -> str:
    """The text that it is, or `base64:...`."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return _MARK + base64.b64encode(payload).decode()


def harmless(text: str) -> str:
    """For a terminal: control characters are written out."""
    return text.translate(_CONTROL_IN_LINES)


def as_cell(payload: bytes, width: int = 60) -> str:
    """On one line of a table, and not longer than `width`."""
    text = as_text(payload).translate(_CONTROL_IN_CELLS)
    return text if len(text) <= width else text[: width - 1] + "…"


def as_json(payload: bytes) -> dict[str, Any]:
    """`payload`, or `payload_base64` when it is not text."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def print_whole(payload: bytes) -> None:
    """The payload alone: as it is, without a line end, unless a person reads it on a terminal."""
    if sys.stdout.isatty():
        typer.echo(harmless(as_text(payload)))
    else:
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()


def read(text: str, file: Path | None = None) -> bytes:
    """The payload of a command line: a file's content, else the text; `-` is standard input."""
    if file is None:
        return sys.stdin.buffer.read() if text == "-" else text.encode()
    try:
        return file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} can't be read: {error}") from error
