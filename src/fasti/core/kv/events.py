"""What happens in key-value topics beside `Replaced`, which brings new values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fasti.core.events import Event, Int64s, Produced


@dataclass(slots=True)
class Removed(Event):
    """Entries are gone: deleted, or `expired`. The frame's rows have their keys, for who watches."""

    code: ClassVar[int] = 80
    topic: int
    partition: int
    expired: int
    sequence: Int64s
    row: Int64s


@dataclass(slots=True)
class KvProduced(Produced):
    """New entries. All of them begin with the same version, above all that were removed."""

    code: ClassVar[int] = 81
    version: int = 1
