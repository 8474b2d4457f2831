"""What happened, already decided: the only thing that changes durable state, and the journal.

An event says what became of rows in one partition of one topic; replay applies it without a clock
and without deciding anything. Scalars are ints and strings, columns are numpy arrays of a fixed
kind, so one codec (storage/event_codec.py) writes them all. Events that bring payloads say which
row of their frame's `Rows` belongs to each of their rows.

Codes are for ever: a code is never used for anything else. 50 to 59 are reserved for prepared,
committed and aborted transactions across shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s

Int64s = NDArray[np.int64]
NONE = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Event:
    """Every event: when it was decided, on the broker's clock."""

    code: ClassVar[int] = 0
    at_us: int


@dataclass(slots=True)
class TopicCreated(Event):
    """A topic got its number, which is never used again."""

    code: ClassVar[int] = 1
    topic: int
    name: str
    settings: dict[str, Any]


@dataclass(slots=True)
class TopicChanged(Event):
    """A topic's settings are others now."""

    code: ClassVar[int] = 2
    topic: int
    settings: dict[str, Any]


@dataclass(slots=True)
class TopicDeleted(Event):
    """A topic and everything in it is gone."""

    code: ClassVar[int] = 3
    topic: int


@dataclass(slots=True)
class BindingsChanged(Event):
    """What a topic gets goes to these too: pairs of pattern and target, all of them."""

    code: ClassVar[int] = 4
    topic: int
    version: int
    bindings: list[Any]


@dataclass(slots=True)
class TopicPaused(Event):
    """Nothing more is handed out of a topic (`paused` 1), or again (0)."""

    code: ClassVar[int] = 5
    topic: int
    paused: int


@dataclass(slots=True)
class Produced(Event):
    """Messages first_sequence, first_sequence + 1, ... came to be; staged if `stage` is named."""

    code: ClassVar[int] = 10
    topic: int
    partition: int
    first_sequence: int
    owner: str
    stage: str
    due_us: Int64s
    row: Int64s
    # Not written: the codec hashes the keys of the frame's rows again.
    hashes: UInt64s | None = field(default=None, metadata={"derived": True})
    # Not written either: no entry of the key index has these keys, says who just looked.
    new_keys: bool = field(default=False, metadata={"derived": True})


@dataclass(slots=True)
class ProducerAdvanced(Event):
    """A producer's batch was answered: its receipt, should it be sent again."""

    code: ClassVar[int] = 11
    producer: str
    sequence: int
    topic: int
    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s


@dataclass(slots=True)
class ProducerEnded(Event):
    """A producer said that it is over: nothing of it is remembered any more."""

    code: ClassVar[int] = 32
    producer: str


@dataclass(slots=True)
class Replaced(Event):
    """Live messages were replaced by key: new payload and due, attempts from 0."""

    code: ClassVar[int] = 12
    topic: int
    partition: int
    sequence: Int64s
    version: Int64s
    due_us: Int64s
    row: Int64s


@dataclass(slots=True)
class Updated(Event):
    """New payloads."""

    code: ClassVar[int] = 13
    topic: int
    partition: int
    sequence: Int64s
    version: Int64s
    row: Int64s


@dataclass(slots=True)
class Moved(Event):
    """New due times."""

    code: ClassVar[int] = 14
    topic: int
    partition: int
    sequence: Int64s
    version: Int64s
    due_us: Int64s


@dataclass(slots=True)
class Cancelled(Event):
    """Never to be delivered again."""

    code: ClassVar[int] = 15
    topic: int
    partition: int
    sequence: Int64s


@dataclass(slots=True)
class ExpirySet(Event):
    """Messages are dead at these moments, unless they are leased before. 0: they stay for ever."""

    code: ClassVar[int] = 19
    topic: int
    partition: int
    sequence: Int64s
    expires_us: Int64s


@dataclass(slots=True)
class Leased(Event):
    """Handed to a consumer under a token; each message's attempts went up by one."""

    code: ClassVar[int] = 20
    topic: int
    partition: int
    token: int
    consumer: str
    length_us: int
    sequence: Int64s


@dataclass(slots=True)
class Resumed(Event):
    """A consumer came back under its name: its leases go on under a new token."""

    code: ClassVar[int] = 21
    topic: int
    partition: int
    token: int
    sequence: Int64s


@dataclass(slots=True)
class Extended(Event):
    """Leases run longer."""

    code: ClassVar[int] = 22
    topic: int
    partition: int
    length_us: int
    sequence: Int64s


@dataclass(slots=True)
class Renewed(Event):
    """A heartbeat renewed all leases of a consumer on a topic."""

    code: ClassVar[int] = 23
    topic: int
    consumer: str


@dataclass(slots=True)
class Released(Event):
    """Given back: the attempt doesn't count."""

    code: ClassVar[int] = 24
    topic: int
    partition: int
    sequence: Int64s
    due_us: Int64s
    started_us: Int64s


@dataclass(slots=True)
class Nacked(Event):
    """Failed: due again later."""

    code: ClassVar[int] = 25
    topic: int
    partition: int
    reason: str
    sequence: Int64s
    due_us: Int64s
    started_us: Int64s


@dataclass(slots=True)
class Expired(Event):
    """The lease ran out: ready again, at the due time it had."""

    code: ClassVar[int] = 26
    topic: int
    partition: int
    sequence: Int64s


@dataclass(slots=True)
class Acked(Event):
    """Done."""

    code: ClassVar[int] = 27
    topic: int
    partition: int
    sequence: Int64s
    started_us: Int64s


@dataclass(slots=True)
class Died(Event):
    """Dead, with a reason; `exhausted` if by its last attempt, else rejected."""

    code: ClassVar[int] = 28
    topic: int
    partition: int
    reason: str
    exhausted: int
    sequence: Int64s
    started_us: Int64s


@dataclass(slots=True)
class Redriven(Event):
    """Dead messages live again."""

    code: ClassVar[int] = 29
    topic: int
    partition: int
    sequence: Int64s
    version: Int64s
    due_us: Int64s
    hash_first: UInt64s
    hash_last: UInt64s


@dataclass(slots=True)
class Purged(Event):
    """Dead messages were removed."""

    code: ClassVar[int] = 30
    topic: int
    partition: int
    sequence: Int64s


@dataclass(slots=True)
class Lapsed(Event):
    """Messages that came too late for anybody, or that nobody began in time: dead."""

    code: ClassVar[int] = 31
    topic: int
    partition: int
    reason: str
    sequence: Int64s


@dataclass(slots=True)
class Unopened(Event):
    """The lease ran out at a consumer that fell silent before it could have opened the message:
    ready again, at the due time it had, and the attempt doesn't count.
    """

    code: ClassVar[int] = 33
    topic: int
    partition: int
    reason: str
    sequence: Int64s
    due_us: Int64s


@dataclass(slots=True)
class StageOpened(Event):
    """A stage has its name and its topic."""

    code: ClassVar[int] = 40
    stage: str
    topic: int


@dataclass(slots=True)
class Published(Event):
    """A stage's messages are live from now on, but for those whose key was taken."""

    code: ClassVar[int] = 41
    stage: str
    skipped: Int64s
    # Not written: whoever decided it has claimed the keys already.
    claimed: bool = field(default=False, metadata={"derived": True})


@dataclass(slots=True)
class StageDropped(Event):
    """An unpublished stage expired, or a caller dropped it: its messages go piece by piece
    (`StageRowsDropped`) from now on.
    """

    code: ClassVar[int] = 43
    stage: str
