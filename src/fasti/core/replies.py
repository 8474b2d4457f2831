"""What the engine answers, and what it asks the world outside to do.

A reply is held back by the broker until everything it tells of is durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import SliceLoaded
from fasti.core.events import NONE, Event
from fasti.core.keys import Rows
from fasti.errors import FastiError
from fasti.model import Outcome

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Reply:
    """The outcome of each row of a mutation.

    Where a status is LEASED, `by` says who has the message and `at_us` until when; where it is DONE
    or CANCELLED, `at_us` is when that was. If `error` is set the command was refused as a whole.
    """

    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s
    at_us: Int64s | None = None
    by: dict[int, str] | None = None
    # The whole batch was sent before: nothing was done, this is what it was answered then.
    sent_before: bool = False
    error: FastiError | None = None

    @classmethod
    def refused(cls, error: FastiError) -> Reply:
        """The whole command was refused; nothing changed."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none.astype(np.uint8), none, none, error=error)

    @property
    def all_ok(self) -> bool:
        """Whether every row came out as asked."""
        return self.error is None and not self.status.any()

    def outcome(self, row: int = 0) -> Outcome:
        """The outcome of one row. Raises the command's error, if it has one."""
        if self.error is not None:
            raise self.error
        return Outcome(int(self.status[row]))


def blank(count: int) -> Reply:
    """A reply to be filled in."""
    return Reply(
        np.zeros(count, dtype=np.uint8),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )


@dataclass(slots=True)
class TransactionReply:
    """Of each command, in order. Where nothing happened, its good rows say ABORTED."""

    committed: bool
    replies: list[Any]
    error: FastiError | None = None


@dataclass(slots=True)
class Messages:
    """Metadata of messages, a row each; `status` tells of those that are not there."""

    status: NDArray[np.uint8]
    ids: Int64s
    columns: dict[str, NDArray[Any]]
    names: dict[str, list[str]]
    # Where the next page begins; 0 when this was the last.
    next_after_id: int = 0
    error: FastiError | None = None


@dataclass(slots=True)
class Counts:
    """How many messages are in each state, and how many ever finished."""

    states: dict[str, int]
    # The last frame whose events are counted.
    position: int = 0
    # When the oldest of those that are ready was due; None if none is.
    oldest_ready_us: int | None = None
    error: FastiError | None = None


@dataclass(slots=True)
class Buckets:
    """A forecast: the buckets that have messages, their start and their count."""

    start_us: Int64s
    count: Int64s
    error: FastiError | None = None


@dataclass(slots=True)
class Done:
    """A control command was carried out; `value` is what it made, if anything."""

    value: Any = None
    error: FastiError | None = None


@dataclass(slots=True)
class Deliver:
    """Leased messages for a session, to be sent when their lease is durable."""

    session: int
    topic: str
    token: int
    ids: Int64s
    due_us: Int64s
    version: NDArray[np.uint32]
    attempts: NDArray[np.uint16]
    location: Int64s
    # When they were leased: the lease is counted from there.
    leased_us: int
    # Of priority topics.
    priority: NDArray[np.uint16] | None = None
    # Why each last came back, where there is one that did.
    reasons: NDArray[np.object_] | None = None
    # By when each must be begun, 0: no matter; None if it is none's.
    expires_us: Int64s | None = None
    # Of logs.
    group: str = ""


@dataclass(slots=True)
class ConsumerReplaced:
    """A session lost its consumer's name to a newer one, or waits in vain: `error` says why."""

    session: int
    topic: str
    consumer: str
    error: FastiError | None = None


@dataclass(slots=True)
class SessionDoubted:
    """A session let leases run out: the engine is to be told (`Heard`) when it finishes messages."""

    session: int


@dataclass(slots=True)
class SchedulesChanged:
    """Schedules of a topic are others now: whoever works out occurrences should look."""

    topic: int


class Asked:
    """An effect that storage answers with a command."""

    __slots__ = ()

    def failed(self) -> Any:
        """The command that says that it could not be read."""
        raise NotImplementedError


@dataclass(slots=True)
class LoadSlice(Asked):
    """Please read the entries of runs from `from_us` on, about `count` of them."""

    topic: int
    partition: int
    version: int
    from_us: int
    to_us: int
    count: int

    def failed(self) -> SliceLoaded:
        """An answer that counts for nothing: the engine asks again."""
        return SliceLoaded(self.topic, self.partition, 0, 0, NONE, NONE)


@dataclass(slots=True)
class Frame:
    """Events that go to the journal together, and the payloads they bring."""

    sequence: int
    events: list[Event]
    rows: Rows | None
    begins_group: bool = True
    ends_group: bool = True


@dataclass(slots=True)
class Step:
    """All that one step brought about. `wake_at_us`: step again then, if nothing comes before."""

    frames: list[Frame] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    wake_at_us: int | None = None
    wake_at_tick: int | None = None
    more: bool = False
    # Commands that raised by a fault of the program, and were refused for it.
    faults: list[Any] = field(default_factory=list)
