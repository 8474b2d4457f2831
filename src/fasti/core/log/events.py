"""What happens to the rows of logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fasti.core.events import Event, Int64s


@dataclass(slots=True)
class LogAppended(Event):
    """Rows of this frame are offsets first_offset, first_offset + 1, ... of a partition."""

    code: ClassVar[int] = 60
    topic: int
    partition: int
    first_offset: int
    size_bytes: int
    row: Int64s


@dataclass(slots=True)
class LogTrimmed(Event):
    """The log begins here now. `why`: age, bytes or truncated."""

    code: ClassVar[int] = 61
    topic: int
    partition: int
    first_offset: int
    why: str
