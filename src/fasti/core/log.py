"""Logs: immutable rows by offset."""

from __future__ import annotations

from typing import ClassVar

from fasti.core.kind import Kind


class LogKind(Kind):
    """Logs: immutable rows by offset."""

    name: ClassVar[str] = "log"
