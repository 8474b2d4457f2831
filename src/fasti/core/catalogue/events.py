"""What happened to the catalogue. One shard alone has none, and writes none of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fasti.core.events import Event


@dataclass(slots=True)
class EntryChanged(Event):
    """A topic is in the catalogue under this number, and as it is now since this version."""

    code: ClassVar[int] = 6
    topic: int
    number: int
    version: int


@dataclass(slots=True)
class EntryDropped(Event):
    """The topic with this number is gone since this version: on shard 0 only."""

    code: ClassVar[int] = 7
    number: int
    version: int


@dataclass(slots=True)
class CatalogueFollowed(Event):
    """This shard has everything up to this version."""

    code: ClassVar[int] = 8
    version: int
