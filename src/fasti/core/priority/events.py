"""What happens in priority topics, beside what happens in every timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event, Int64s, Produced, Replaced

UInt16s = NDArray[np.uint16]
NO_PRIORITIES = np.zeros(0, dtype=np.uint16)


@dataclass(slots=True)
class PriorityProduced(Produced):
    """New messages with their priorities."""

    code: ClassVar[int] = 16
    priority: UInt16s = field(default_factory=lambda: NO_PRIORITIES)


@dataclass(slots=True)
class PriorityReplaced(Replaced):
    """Replaced by key, with new priorities."""

    code: ClassVar[int] = 17
    priority: UInt16s = field(default_factory=lambda: NO_PRIORITIES)


@dataclass(slots=True)
class Reprioritised(Event):
    """New priorities."""

    code: ClassVar[int] = 18
    topic: int
    partition: int
    sequence: Int64s
    version: Int64s
    priority: UInt16s
