"""How the broker's processes log: to stderr, through the standard library's logging.

`text` is for people: time, level, message, then the fields. `json` is for programs: one object per
line with `time`, `level`, `logger`, `message`, the fields as they are, and `error` with a trace.
Fields are given with `extra={"fields": {...}}`, the stack of a thread as `stack` beside them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO


def set_up(level: str, form: str, stream: TextIO | None = None, process: int | None = None) -> None:
    """Sends everything that is logged in this process to the stream, stderr by default.

    `process` is the number of one of several that log to one place: each line has it, as a field.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if process is not None:
        handler.addFilter(_Numbered(process))
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def fields(**values: Any) -> dict[str, Any]:
    """For `extra=`: what a program may want to know besides the message."""
    return {"fields": values}


class _Numbered(logging.Filter):
    """Adds the number of the process to the fields of what is logged."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), "process": self._process}
        return True


class Lines(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = (
            f"{moment}.{int(record.msecs):03d} {record.levelname.lower():7} {record.getMessage()}"
        )
        for name, value in getattr(record, "fields", {}).items():
            shown = str(value)
            line += f" {name}={shown!r}" if " " in shown or not shown else f" {name}={shown}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if stack := getattr(record, "stack", ""):
            line += "\n" + stack
        return line


class JsonLines(logging.Formatter):
    """For programs."""

    def format(self, record: logging.LogRecord) -> str:
        made = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        if stack := getattr(record, "stack", ""):
            made["stack"] = stack
        return json.dumps(made, default=str, ensure_ascii=False)
