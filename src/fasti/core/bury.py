"""Messages that come too late for anybody: dead from the start, with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from fasti.core.keys import Rows


@dataclass(slots=True)
class Bury:
    """Puts messages into a topic as dead ones."""

    topic: str
    rows: Rows
    reason: str
