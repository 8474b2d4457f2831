"""What the engine can be asked: each command is a batch, from one row to a hundred thousand.

Rows are named by id or by key (`Target`). Times are absolute (`due_us`) or relative (`delay_us`,
resolved on the engine's `now`), as one number for all rows or a column. A version of 0 means
"I don't care". Arrays belong to the command once it is handed over: nobody changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import ByIds, BySequences, ByTarget, Command, Compound, WithPayloads
from fasti.core.keys import Keys, Rows
from fasti.core.routing.commands import Routes
from fasti.errors import InvalidArgument
from fasti.model import OnConflict, TopicSettings

Int64s = NDArray[np.int64]
UInt16s = NDArray[np.uint16]


@dataclass(slots=True)
class Target:
    """Which messages: by id, or by key. Exactly one is given."""

    ids: Int64s | None = None
    keys: Keys | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.ids is not None else len(self.keys or ())


@dataclass(slots=True)
class When:
    """A moment for each row: absolute, or a delay from the broker's now. Neither: now."""

    due_us: Int64s | int | None = None
    delay_us: Int64s | int | None = None


@dataclass(slots=True)
class CreateTopic(Command):
    """Makes a topic. Again with equal settings: fine; with others: `topic_mismatch`.

    With `is_own` a shard of several makes it for itself: it is no part of the catalogue.
    """

    name: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    is_own: bool = False


@dataclass(slots=True)
class ChangeTopic(Command):
    """New settings for a topic. Kind and partition count can't change."""

    name: str
    settings: TopicSettings


@dataclass(slots=True)
class PauseTopic(Command):
    """Nothing more is handed out of the topic, or again; all else goes on."""

    name: str
    paused: bool


@dataclass(slots=True)
class EndProducer(Command):
    """A producer is over, and everything it sent has been answered: it need not be remembered."""

    producer: str


@dataclass(slots=True)
class DeleteTopic(Command):
    """Removes a topic and everything in it."""

    name: str


@dataclass(slots=True)
class Staging:
    """Of a sink's stage: whose it is, and how many of its rows come before these.

    `target` is the topic that the rows are meant for. If it is another one than that of the command,
    these are parcels: their due times say how many rows each has.
    """

    sink: str
    batch: int
    operation: str
    target: str
    offset: int


@dataclass(slots=True)
class Expires:
    """By when messages must be begun: each at a moment, or so long after it is due; 0: never."""

    at_us: Int64s | None = None
    after_us: Int64s | None = None


@dataclass(slots=True)
class Produce(WithPayloads):
    """New messages. With `stage`, they stay invisible until that stage is published."""

    is_bulk: ClassVar[bool] = True
    topic: str
    rows: Rows
    when: When = field(default_factory=When)
    keys: Keys | None = None
    partition: int | None = None
    owner: str = ""
    on_conflict: OnConflict = OnConflict.REJECT
    atomic: bool = False
    producer: str = ""
    producer_sequence: int = 0
    stage: str = ""
    # For priority topics; None: 0 for all.
    priorities: UInt16s | None = None
    # For timelines and priority topics; None: nothing expires.
    expires: Expires | None = None
    # Where rows go besides, as the topic's bindings say; None: nobody looked.
    routes: Routes | None = None
    # With `stage`: of a sink.
    staging: Staging | None = None

    def produces(self) -> Iterator[Produce]:
        """Itself."""
        yield self

    def encode(self) -> int:
        """Raises if keys are missing: replay hashes those that lie beside the payloads."""
        if (self.keys is not None) != ("key" in self.rows.names):
            raise InvalidArgument("keys stand in the command and beside its payloads", field="key")
        return WithPayloads.encode(self)


@dataclass(slots=True)
class Update(WithPayloads):
    """New payloads, headers and content types; row i of `rows` for row i of the target.

    Payloads are replaced whole, with the key that lies beside them: whoever sends this has put
    each message's own key and time of creation into `rows`.
    """

    topic: str
    target: Target
    rows: Rows
    versions: Int64s | int = 0
    owner: str = ""
    # For priority topics; None: they stay.
    priorities: UInt16s | None = None
    # The outcomes are told, and nothing changes.
    dry_run: bool = False

    def named_ids(self) -> Int64s | None:
        return self.target.ids


@dataclass(slots=True)
class Reprioritise(ByTarget):
    """New priorities and nothing else, in priority topics."""

    topic: str
    target: Target
    priorities: UInt16s
    versions: Int64s | int = 0
    owner: str = ""
    # The outcomes are told, and nothing changes.
    dry_run: bool = False


@dataclass(slots=True)
class Move(ByTarget):
    """New due times."""

    topic: str
    target: Target
    when: When
    versions: Int64s | int = 0
    owner: str = ""
    # The outcomes are told, and nothing changes.
    dry_run: bool = False
    # By when they must be begun from now on, 0: no matter; None: that stays as it is.
    expires: Expires | None = None


@dataclass(slots=True)
class Cancel(ByTarget):
    """The messages will never be delivered again."""

    topic: str
    target: Target
    versions: Int64s | int = 0
    owner: str = ""
    # The outcomes are told, and nothing changes.
    dry_run: bool = False


@dataclass(slots=True)
class Lease(Command):
    """Up to `count` messages for a consumer, in order; what is missing comes when it is due.

    With `wait`, the rest is remembered as credit of the session, first come first served, until
    `Detach`. A session that names a consumer who has live leases gets those first, under new
    tokens, and the session that had the name before loses its credit. Of two sessions that want a
    name the one with the higher number has it.
    """

    needs_session: ClassVar[bool] = True
    is_word: ClassVar[bool] = True
    topic: str
    session: int
    consumer: str
    count: int
    wait: bool = True
    # Of a log; empty elsewhere.
    group: str = ""


@dataclass(slots=True)
class Detach(Command):
    """A session ends: its credit is gone. Its leases stay until they are used or expire."""

    is_word: ClassVar[bool] = True
    session: int


@dataclass(slots=True)
class Withdraw(Command):
    """A session takes no more for now: its credit is gone, its name and its leases stay."""

    is_word: ClassVar[bool] = True
    session: int


@dataclass(slots=True)
class Unheard(Command):
    """Nothing came from a session's peer since the lease `after_token` was written to it.

    With `hold_back` it gets nothing more until it is `Heard`.
    """

    is_word: ClassVar[bool] = True
    topic: str
    session: int
    consumer: str
    after_token: int
    hold_back: bool = False
    group: str = ""


@dataclass(slots=True)
class Heard(Command):
    """Something came from the peer of a session that was unheard; or, with `finished`, one that let
    leases run out has finished messages.
    """

    is_word: ClassVar[bool] = True
    topic: str
    session: int
    consumer: str
    finished: bool = False
    group: str = ""


@dataclass(slots=True)
class Heartbeat(Command):
    """Renews all leases that a consumer has on a topic, up to the longest hold."""

    needs_proof: ClassVar[bool] = True
    topic: str
    consumer: str
    group: str = ""


@dataclass(slots=True)
class DescribeConsumers(Command):
    """Who waits and who holds leases, on all topics or on one."""

    topic: str = ""


@dataclass(slots=True)
class ReleaseLeases(Command):
    """Gives leased messages back without their token: those of a consumer, or named ones.

    The attempt doesn't count; whoever had them finds the lease stale.
    """

    topic: str
    consumer: str = ""
    ids: Int64s | None = None
    group: str = ""

    def count_rows(self) -> int:
        """Those that it names."""
        return 1 if self.ids is None else len(self.ids)


@dataclass(slots=True)
class Extend(ByIds):
    """Longer leases: each runs `length_us` from now."""

    topic: str
    ids: Int64s
    tokens: Int64s
    length_us: int
    group: str = ""


@dataclass(slots=True)
class Ack(ByIds):
    """Done. `started_us` is when user code got the message, on the broker's clock (0: unknown)."""

    topic: str
    ids: Int64s
    tokens: Int64s
    started_us: Int64s | int = 0
    group: str = ""


@dataclass(slots=True)
class Release(ByIds):
    """Given back, to any time; the attempt doesn't count."""

    topic: str
    ids: Int64s
    tokens: Int64s
    when: When = field(default_factory=When)
    started_us: Int64s | int = 0
    group: str = ""


@dataclass(slots=True)
class Nack(ByIds):
    """Failed: due again after the topic's retry delay, or `when`; dead after its last attempt."""

    topic: str
    ids: Int64s
    tokens: Int64s
    reason: str = ""
    started_us: Int64s | int = 0
    group: str = ""
    when: When | None = None


@dataclass(slots=True)
class Reject(ByIds):
    """Failed for good: dead, with a reason."""

    topic: str
    ids: Int64s
    tokens: Int64s
    reason: str = ""
    started_us: Int64s | int = 0
    group: str = ""


@dataclass(slots=True)
class Redrive(ByIds):
    """Dead messages live again, with no attempts counted.

    The engine doesn't keep the keys of the dead: `keys` (a row each, null where there is none) is
    read from their payloads by whoever sends this.
    """

    topic: str
    ids: Int64s
    keys: Keys | None = None
    when: When = field(default_factory=When)
    group: str = ""


@dataclass(slots=True)
class Purge(ByIds):
    """Dead messages are removed."""

    topic: str
    ids: Int64s
    group: str = ""


@dataclass(slots=True)
class Publish(Command):
    """Makes staged messages live, by one event. A taken key refuses all, or skips its row."""

    stage: str
    skip_conflicts: bool = False
    # The number of the claim, if its keys were claimed piece by piece.
    claim: int = 0


@dataclass(slots=True)
class DropStage(Command):
    """Staged messages are dropped unpublished."""

    stage: str


@dataclass(slots=True)
class Get(ByTarget):
    """Metadata and payload locations of messages."""

    topic: str
    target: Target


@dataclass(slots=True)
class List(Command):
    """A page of messages in id order, from `after_id` on, that fit every filter given.

    With a target, only those it names are looked at, in its order, and there is one page.
    """

    topic: str
    after_id: int = 0
    limit: int = 1000
    due_from_us: int | None = None
    due_to_us: int | None = None
    state: str | None = None
    owner: str | None = None
    target: Target | None = None
    # Of dead messages: those whose reason contains this, and when they died.
    reason: str | None = None
    died_from_us: int | None = None
    died_to_us: int | None = None

    def count_rows(self) -> int:
        """Those that it names."""
        return 1 if self.target is None else len(self.target)


@dataclass(slots=True)
class Count(Command):
    """How many messages are in each state."""

    needs_proof: ClassVar[bool] = True
    topic: str


@dataclass(slots=True)
class Forecast(Command):
    """How many scheduled messages fall due in each bucket of time."""

    topic: str
    from_us: int
    to_us: int
    bucket_us: int


@dataclass(slots=True)
class TakeSnapshot(Command):
    """Pins the state as it is now, until the deadline (on the clock that `now` comes from).

    With a topic, only that topic's, for one listing of it: it doesn't count into `snapshots_max`.
    """

    deadline_us: int
    topic: str = ""


@dataclass(slots=True)
class KeepSnapshot(Command):
    """Moves a snapshot's deadline; one that is gone stays so."""

    number: int
    deadline_us: int


@dataclass(slots=True)
class DropSnapshot(Command):
    """Lets a snapshot go. The value is the numbers of those that are left."""

    number: int


@dataclass(slots=True)
class Tidy(Command):
    """Gives memory back where something finished: a bounded piece. The value: is there more?"""


@dataclass(slots=True)
class Transaction(Compound):
    """Mutations that happen whole or not at all, in this order."""

    commands: list[Any]


@dataclass(slots=True)
class SliceLoaded(BySequences):
    """Storage answers `LoadSlice`: entries of runs in [from_us, through_us), in due order."""

    topic: int
    partition: int
    version: int
    through_us: int
    sequences: Int64s
    due_us: Int64s


@dataclass(slots=True)
class RowsInstalled(BySequences):
    """A checkpoint wrote these rows to a run: their payloads lie there now."""

    topic: int
    partition: int
    epoch: int
    sequences: Int64s
    old_locations: Int64s
    new_locations: Int64s


@dataclass(slots=True)
class RunsInstalled(Command):
    """A checkpoint is complete: its manifest is in force. `first_due_us` of runs per partition."""

    version: int
    epoch: int
    first_due_us: dict[tuple[int, int], int]
    blocks: frozenset[int]
