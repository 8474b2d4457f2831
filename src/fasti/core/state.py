"""The durable state of a shard, and `apply`, the only thing that changes it.

`apply` is the same function while the engine decides and while a journal is replayed: it reads no
clock, decides nothing and raises only when an event contradicts the state, which is a fault of the
program or of the disk and never of a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.catalogue.book import CatalogueBook
from fasti.core.directory import NAMING, Directory
from fasti.core.layout import ALONE, ShardPlace
from fasti.core.numbered.events import CallAnswered, RowsAnswered
from fasti.core.ownership import OwnPartitions, own_partitions
from fasti.core.producers import Producer, Receipt
from fasti.core.rows.memory import Memory
from fasti.core.sinks.book import SinkBook
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage
from fasti.model import TopicSettings

if TYPE_CHECKING:
    from fasti.core.kind import Kind
    from fasti.core.routing.matching import Matcher
    from fasti.core.sinks.claims import Claim


T = TypeVar("T")


class Partitions(Generic[T]):
    """The partitions of a topic, or a group's places in them: each is made when it is first needed.

    A topic of 4,096 partitions that is not used costs a few hundred bytes, not 4,096 times a calendar,
    an index and a ring. What changes a partition takes it by its number (`partitions[7]`), which makes
    it. What only looks takes `look(7)`, which gives a stand-in for a partition that is not made: empty,
    and thrown away, so that questions take no memory. Iterating looks at all of them, in order.
    Whether a partition is made or not is no state: a replay may make others.

    `make(number)` makes one; `note(count)` is told of those that are kept.
    """

    __slots__ = ("_count", "_listed", "_made", "_make", "_note")

    def __init__(self, count: int, make: Callable[[int], T], note: Callable[[int], None]) -> None:
        self._count, self._make, self._note = count, make, note
        self._made: dict[int, T] = {}
        # In order, if nothing was made since: every step goes through them.
        self._listed: list[T] | None = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> T:
        partition = self._made.get(number)
        if partition is None:
            if not 0 <= number < self._count:
                raise IndexError(number)
            partition = self._made[number] = self._make(number)
            self._listed = None
            self._note(1)
        return partition

    def __iter__(self) -> Iterator[T]:
        return map(self.look, range(self._count))

    def get(self, number: int) -> T | None:
        """The partition, if it is made."""
        return self._made.get(number)

    def look(self, number: int) -> T:
        """The partition, to be read only: an empty one if it isn't made."""
        partition = self._made.get(number)
        return self._make(number) if partition is None else partition

    def made(self) -> Sequence[T]:
        """Those that are made, in order. One that is made meanwhile is not among them."""
        if self._listed is None:
            self._listed = [self._made[number] for number in sorted(self._made)]
        return self._listed

    def numbers(self) -> list[int]:
        """The numbers of those that are made, in order."""
        return sorted(self._made)

    def clear(self) -> None:
        """The topic, or the group, is gone."""
        self._note(-len(self._made))
        self._made.clear()
        self._listed = []


def ignore(count: int) -> None:
    """For partitions that are not counted."""


Int64s = NDArray[np.int64]

# The objects that a topic and a binding are made of, about.
TOPIC_BYTES = 2 << 10
BINDING_BYTES = 256


def _no_partition(number: int) -> Partition:
    raise IndexError(number)


class Topic:
    """A topic's settings and partitions."""

    def __init__(self, number: int, name: str, settings: TopicSettings, kind: Kind) -> None:
        self.number, self.name, self.settings, self.kind = number, name, settings, kind
        # Where messages lie in the arena; a kind that keeps them elsewhere has a body instead.
        self.partitions: Partitions[Partition] = Partitions(0, _no_partition, ignore)
        self.body: Any = None
        # Pairs of pattern and target, and how often they have changed.
        self.bindings: list[tuple[str, str]] = []
        self.bindings_version = 0
        # Of these bindings, if it was needed: no durable state.
        self.matcher: Matcher | None = None
        # What a relay passed on to no topic, since the start: no durable state.
        self.unrouted = 0
        # Leases that ended at silent consumers, since the start: no durable state.
        self.unopened = 0
        # Nothing is handed out.
        self.paused = False
        # In the catalogue of several shards; 0: in none, the shard has made it for itself.
        self.catalogue_number = self.catalogue_version = 0
        # When something last happened here, as far as events tell.
        self.active_us = 0
        # Those that are on this shard; None: all.
        self.own: OwnPartitions | None = None
        kind.make(self)
        # Where the next unkeyed batch goes: no durable state.
        self.next_partition = 0

    def take_turn(self) -> int:
        """The partition of the next rows without a key: one of this shard's. Raises `wrong_shard`."""
        turn = self.next_partition
        if self.own is not None:
            self.next_partition = turn + 1
            return self.own.at_turn(self.name, turn)
        self.next_partition = (turn + 1) % self.settings.partitions
        return turn


def topic_bytes(topic: Topic) -> int:
    """What a topic takes beside its partitions, about."""
    bindings = sum(BINDING_BYTES + len(pattern) for pattern, _ in topic.bindings)
    return TOPIC_BYTES + len(topic.name) + bindings


class ShardState:
    """Topics, producers, stages and what they share."""

    def __init__(self, memory: Memory, place: ShardPlace = ALONE) -> None:
        self.memory, self.place = memory, place
        self.kinds: dict[str, Kind] = {}
        self.topics: dict[int, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        # Topics that go when no client uses them for a while; those that are new or changed.
        self.mortal: dict[int, Topic] = {}
        self.mortal_news: list[int] = []
        self.directory = Directory()
        self.catalogue = CatalogueBook(self)
        self.next_topic = 1
        self.producers, self.calls = memory.producers, memory.calls
        # Of all stages those that are published and have rows left, and those that are dropped.
        self.stages: dict[str, Stage] = {}
        self.publishing: dict[str, Stage] = {}
        self.dropping: dict[str, Stage] = {}
        # When the next one is too old; None: to be worked out. No durable state.
        self.stage_expiry_us: int | None = None
        self.sinks = SinkBook(self)
        # By the numbers that publishers name them by: no durable state.
        self.claims: dict[int, Claim] = {}
        self.last_claim = 0
        self.next_frame = 1
        self.last_at_us = 0
        # When the event that is being applied was decided; 0 in replay.
        self.tick = 0
        self._found: Int64s | None = None
        self._apply: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.TopicCreated: self._topic_created,
            ev.TopicChanged: self._topic_changed,
            ev.TopicDeleted: self._topic_deleted,
            ev.BindingsChanged: self._bindings_changed,
            ev.TopicPaused: self._topic_paused,
            ev.ProducerAdvanced: self._producer_advanced,
            ev.ProducerEnded: self._producer_ended,
            CallAnswered: self._call_answered,
            RowsAnswered: self._call_answered,
            **self.sinks.events(),
            **self.catalogue.events(),
        }

    def learn(self, kind: Kind) -> None:
        """A topic kind, and how its own events are made so."""
        self.kinds[kind.name] = kind
        self._apply.update(kind.events())

    def make_topic(self, number: int, name: str, settings: TopicSettings) -> Topic:
        """A topic that is new, or read back."""
        topic = Topic(number, name, settings, self.kinds[settings.kind])
        if self.place.count > 1 and topic.kind.is_spread:
            topic.own = own_partitions(settings, self.place)
        self.topics[number] = self.by_name[name] = topic
        self._note_mortal(topic)
        topic.kind.all_topics[number] = topic
        self.memory.topics_bytes += topic_bytes(topic)
        return topic

    def _note_mortal(self, topic: Topic) -> None:
        if topic.settings.idle_age_us:
            self.mortal[topic.number] = topic
            self.mortal_news.append(topic.number)
        else:
            self.mortal.pop(topic.number, None)

    def apply(
        self, event: ev.Event, frame: int, tick: int = 0, slots: Int64s | None = None
    ) -> None:
        """Makes an event so. `frame` is where its payloads lie; `tick` arms leases.

        `slots` are those of the event's sequences, if its decision had them at hand.
        """
        self.tick, self._found = tick, slots
        self._apply[type(event)](event, frame)
        if type(event) in NAMING:
            self.directory.note(event, frame)
        self.last_at_us = max(self.last_at_us, event.at_us)
        if self.mortal:
            used = self.mortal.get(getattr(event, "topic", 0))
            if used is not None:
                # Not taken back with a transaction: a client was there, whatever came of it.
                used.active_us = event.at_us

    def partition(self, event: Any) -> Partition:
        """The partition that an event is about."""
        return self.topics[event.topic].partitions[event.partition]

    def slots_of(self, partition: Partition, sequences: Int64s) -> Int64s:
        """Where the rows of the event lie that is being applied."""
        return partition.ledger.slots(sequences) if self._found is None else self._found

    # Topics

    def _topic_created(self, event: ev.TopicCreated, _: int) -> None:
        topic = self.make_topic(event.topic, event.name, TopicSettings.from_dict(event.settings))
        topic.active_us = event.at_us
        self.next_topic = max(self.next_topic, event.topic + 1)

    def _topic_changed(self, event: ev.TopicChanged, _: int) -> None:
        topic = self.topics[event.topic]
        topic.settings = TopicSettings.from_dict(event.settings)
        self._note_mortal(topic)
        topic.kind.changed(topic)
        self.stage_expiry_us = None
        # With another lookahead, more of what is there may be near.
        self.memory.note_due(event.topic, 0)

    def _topic_paused(self, event: ev.TopicPaused, _: int) -> None:
        topic = self.topics[event.topic]
        topic.paused = bool(event.paused)
        if not topic.paused:
            topic.kind.resumed(topic)

    def _topic_deleted(self, event: ev.TopicDeleted, _: int) -> None:
        topic = self.topics.pop(event.topic)
        self.mortal.pop(event.topic, None)
        self.memory.topics_bytes -= topic_bytes(topic)
        self.catalogue.forget(topic)
        del self.by_name[topic.name]
        del topic.kind.all_topics[topic.number]
        topic.kind.drop(topic)
        leases = self.memory.leases
        mine = leases.live()
        mine = mine[leases.topic[mine] == event.topic]
        self.memory.consumers.unuse_all(leases.consumer[mine])
        self.memory.reasons.unuse_all(leases.reason[mine])
        leases.close(mine)
        self.sinks.topic_gone(event.topic)
        for partition in topic.partitions.made():
            partition.release()
        topic.partitions.clear()

    def _bindings_changed(self, event: ev.BindingsChanged, _: int) -> None:
        topic = self.topics[event.topic]
        before = topic.bindings, topic.bindings_version
        self.set_bindings(topic, [(pattern, target) for pattern, target in event.bindings])
        topic.bindings_version = event.version

        def take_back() -> None:
            self.set_bindings(topic, before[0])
            topic.bindings_version = before[1]

        self.memory.undo.note(take_back)

    def set_bindings(self, topic: Topic, bindings: list[tuple[str, str]]) -> None:
        """What is passed on, and to whom, from now on."""
        self.memory.topics_bytes -= topic_bytes(topic)
        topic.bindings = bindings
        self.memory.topics_bytes += topic_bytes(topic)

    # Producers

    def _producer_advanced(self, event: ev.ProducerAdvanced, _: int) -> None:
        before = self.producers.find(event.producer, 0)
        self.memory.undo.note(lambda: self.producers.set(event.producer, before))
        receipt = Receipt.of(event.sequence, event.status, event.ids, event.versions)
        known_until_us = event.at_us + self.topics[event.topic].settings.producer_age_us
        now = (before or Producer()).advanced(receipt, event.at_us, known_until_us)
        self.producers.set(event.producer, now)
        self.memory.undo.once_settled(lambda: self.producers.forget(event.at_us))

    def _producer_ended(self, event: ev.ProducerEnded, _: int) -> None:
        before = self.producers.find(event.producer, 0)
        self.memory.undo.note(lambda: self.producers.set(event.producer, before))
        self.producers.set(event.producer, None)

    def _call_answered(self, event: CallAnswered, _: int) -> None:
        assert not self.memory.undo.active, "a call is answered when its command stands"
        self.calls.note(event)

    # Stages

    def open_stage(self, name: str, stage: Stage) -> None:
        """A stage that is new."""
        self.stages[name] = stage
        self.stage_expiry_us = None
        self.count_stage(stage)

    def count_stage(self, stage: Stage) -> None:
        """The stage has more rows, or fewer."""
        size_bytes = stage.size_bytes
        self.memory.stages_bytes += size_bytes - stage.counted_bytes
        stage.counted_bytes = size_bytes

    def begin_drop(self, name: str) -> None:
        """The stage can't be published any more: its rows go, some at a time."""
        stage = self.stages[name]
        stage.dropping, stage.claimed = True, False
        self.dropping[name] = stage
        self.stage_expiry_us = None

    def close_stage(self, name: str) -> None:
        """The stage is gone."""
        self.memory.stages_bytes -= self.stages.pop(name).counted_bytes
        self.publishing.pop(name, None)
        self.dropping.pop(name, None)
        self.stage_expiry_us = None
