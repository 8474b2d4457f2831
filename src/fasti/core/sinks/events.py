"""What happens to sinks and to the rows of stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class SinkPublished(Event):
    """A sink's batch has happened: these stages are published, its others up to it are dropped.

    With `skip`, keys are claimed when rows land, and rows whose key is taken then are left out.
    """

    code: ClassVar[int] = 44
    sink: str
    batch: int
    operation: str
    skip: int
    stages: list[Any]
    # Not written: whoever decided it has claimed the keys already.
    claimed: bool = field(default=False, metadata={"derived": True})


@dataclass(slots=True)
class SinkStageOpened(Event):
    """A sink's stage has its name; its rows lie in `topic` and are meant for `target`."""

    code: ClassVar[int] = 45
    stage: str
    topic: int
    target: int
    sink: str
    batch: int
    operation: str
    owner: str


@dataclass(slots=True)
class StageLanded(Event):
    """The next rows of a published stage: they are live from now on, or were left out."""

    code: ClassVar[int] = 46
    stage: str
    topic: int
    partition: int
    sequence: Int64s
    skipped: Int64s


@dataclass(slots=True)
class StageRowsDropped(Event):
    """The next rows of a stage that nobody published are gone."""

    code: ClassVar[int] = 47
    stage: str
    topic: int
    partition: int
    sequence: Int64s


@dataclass(slots=True)
class SinkCarried(Event):
    """The next parcel of a published stage was carried out, with these outcomes."""

    code: ClassVar[int] = 48
    sink: str
    stage: str
    topic: int
    partition: int
    sequence: int
    outcomes: dict[str, Any]


@dataclass(slots=True)
class SinkForgotten(Event):
    """Nobody remembers the sink any more: its batches could happen again."""

    code: ClassVar[int] = 49
    sink: str
