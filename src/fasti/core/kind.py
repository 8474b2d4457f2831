"""What a topic kind adds to the engine: one object per kind and engine.

The engine asks the kind of a command's topic who decides it; events are applied by whoever knows
them. A kind that keeps its messages in the arena makes partitions (`Partition` or one below it) in
`make`; another one leaves `topic.partitions` empty and keeps what it needs in `topic.body`, so that
all that goes through partitions (snapshots, slices, checkpoints, turns) passes it by.

The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import FOREVER
from fasti.core.events import Event
from fasti.core.state import Partitions
from fasti.core.timeline.partition import PARTITION_BYTES, Partition
from fasti.core.traits import Traits

if TYPE_CHECKING:
    from fasti.core.commands import Lease, Produce
    from fasti.core.delivery.leasable import Leasable, LeasedRows
    from fasti.core.delivery.turns import Line
    from fasti.core.engine import Engine
    from fasti.core.keys import Keys, Rows
    from fasti.core.replies import Reply
    from fasti.core.state import Topic
    from fasti.core.work import Work

Int64s = NDArray[np.int64]
Handler = Callable[["Work", Any], Any]
Apply = Callable[[Any, int], None]
Columns = dict[str, Any]


class Kind:
    """Everything has a default that does nothing: a timeline without handlers."""

    traits: ClassVar[Traits]
    in_transactions: ClassVar[tuple[type, ...]] = ()
    # Whether a shard has some partitions of a topic only; otherwise each has the topic whole.
    is_spread: ClassVar[bool] = True

    def __init__(self, engine: Engine) -> None:
        self.engine, self.state, self.limits = engine, engine.state, engine.limits
        # The topics of this kind; while there are none, steps pass it by.
        self.all_topics: dict[int, Topic] = {}

    @property
    def name(self) -> str:
        """What settings call the kind."""
        return self.traits.name

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on topics of this kind."""
        return {}

    def commands(self) -> dict[type, Handler]:
        """Who decides commands that name no topic by its name: completions of storage."""
        return {}

    def events(self) -> dict[type[Event], Apply]:
        """Who makes this kind's own events so."""
        return {}

    # Producing

    def prepare_keys(self, topic: Topic, keys: Keys) -> None:
        """Works out, and keeps, what choosing partitions by these keys needs. Any thread."""
        keys.routes  # noqa: B018

    def check_produce(self, work: Work, topic: Topic, command: Produce) -> None:
        """Before rows go to this topic and to those that it is bound to."""

    def put_rows(
        self,
        work: Work,
        topic: Topic,
        command: Produce,
        piece: Rows,
        begin: int,
        due: Int64s,
        rows: Int64s,
        reply: Reply,
    ) -> None:
        """Rows of the frame that is open go to the topic: its own, or those of one bound to it.

        The frame holds `piece`: the command's rows from `begin` on.
        """
        raise AssertionError(f"{self.name} topics can't be bound")

    # A topic's life

    def make(self, topic: Topic) -> None:
        """The topic is new, or read back: its partitions, or its body."""
        topic.partitions = self.make_partitions(topic, partial(Partition, self.state.memory))

    def make_partitions(
        self, topic: Topic, make: Callable[[int, int], Partition]
    ) -> Partitions[Partition]:
        """Partitions that are made when they are needed, from the topic's number and their own."""
        memory = self.state.memory

        def note(count: int) -> None:
            memory.topics_bytes += count * PARTITION_BYTES

        return Partitions(topic.settings.partitions, partial(make, topic.number), note)

    def changed(self, topic: Topic) -> None:
        """The topic has new settings."""

    def resumed(self, topic: Topic) -> None:
        """The topic was paused: what waits may go out now."""
        self.state.memory.note_due(topic.number, 0)

    def deleting(self, work: Work, topic: Topic) -> None:
        """The topic is about to be deleted: what goes with it elsewhere."""

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted: durable state that partitions don't hold goes."""

    def forget(self, topic: Topic) -> None:
        """The topic was deleted: session state goes."""

    # Steps

    def before(self, work: Work) -> bool:
        """Before the inputs of a step, in a group of its own; True if there is more to do."""
        return False

    def after(self, work: Work) -> bool:
        """After the inputs, in a group of its own: a bounded piece; True if there is more."""
        return False

    def next_us(self) -> int:
        """When it wants a step, if nothing happens before."""
        return FOREVER

    def detach(self, session: int) -> None:
        """A session is gone."""

    def withdraw(self, session: int) -> None:
        """A session waits for nothing for now."""

    # Consumers of topics without partitions

    def lines(self, topic: Topic) -> Iterator[tuple[int, Line]]:
        """Who waits for the topic's messages, by the number of the group; 0 where there is none."""
        line = self.engine.turns.line(topic)
        return iter([(0, line)] if line is not None else [])

    def group_name(self, topic: Topic, number: int) -> str:
        """The name of a group."""
        raise AssertionError(f"{self.name} topics have no groups")

    def groups_of(self, places: NDArray[np.int32]) -> Int64s:
        """The number of the group that leases belong to, by the partition that they tell."""
        raise AssertionError(f"{self.name} topics have no groups")

    # Leases of topics without partitions

    def is_credit(self, topic: Topic, command: Lease) -> bool:
        """Whether a `Lease` does no more than add to its session's credit."""
        return False

    def leasable(self, topic: Topic, group: str) -> Leasable:
        """Where messages are leased from: the topic, or a group. Raises `not_found`."""
        raise AssertionError(f"{self.name} topics have no leases")

    def leased_at(self, topic: Topic, place: int, sequences: Int64s) -> LeasedRows:
        """Leased messages of one partition, as the lease table names them."""
        raise AssertionError(f"{self.name} topics have no leases")

    def restore_leases(self, topic: Topic, place: int, sequences: Int64s, held: Int64s) -> None:
        """Leases that a checkpoint kept have these slots now."""
        raise AssertionError(f"{self.name} topics have no leases of their own")

    # Checkpoints

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """What is durable beside rows: plain values; columns (or who makes them) by unique name."""
        return {}

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`, after `make` and before rows, leases and replay."""

    def start(self, tick: int) -> None:
        """Replay is over."""
