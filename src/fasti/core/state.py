"""The durable state of a shard, and `apply`, the only thing that changes it.

`apply` is the same function while the engine decides and while a journal is replayed: it reads no
clock, decides nothing and raises only when an event contradicts the state, which is a fault of the
program or of the disk and never of a caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns.reductions import some
from fasti.core.directory import NAMING, Directory
from fasti.core.lifecycle import Verb
from fasti.core.partitions import Partitions, ignore
from fasti.core.producers import Producer
from fasti.core.receipts import Receipt
from fasti.core.rows.location import in_frame
from fasti.core.rows.memory import Memory
from fasti.core.sinks.book import SinkBook
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.model import State, TopicSettings

if TYPE_CHECKING:
    from fasti.core.kind import Kind
    from fasti.core.routing.matching import Matcher
    from fasti.core.sinks.claims import Claim

Int64s = NDArray[np.int64]

# The objects that a topic and a binding are made of, about.
TOPIC_BYTES = 2 << 10
BINDING_BYTES = 256
# The reason of an attempt whose lease ran out.
LEASE_EXPIRED = "the lease expired"


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
        # What a relay passed on to nobody, since the start: no durable state.
        self.unrouted = 0
        # Leases that ended at silent consumers, since the start: no durable state.
        self.unopened = 0
        # Nothing is handed out.
        self.paused = False
        # When something last happened here, as far as events tell.
        self.active_us = 0
        kind.make(self)
        # Where the next unkeyed batch goes, and which partition is asked first: no durable state.
        self.next_partition = 0


def topic_bytes(topic: Topic) -> int:
    """What a topic takes beside its partitions, about."""
    bindings = sum(BINDING_BYTES + len(pattern) for pattern, _ in topic.bindings)
    return TOPIC_BYTES + len(topic.name) + bindings


class ShardState:
    """Topics, producers, stages and what they share."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.kinds: dict[str, Kind] = {}
        self.topics: dict[int, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        # Topics that go when nobody uses them for a while; those that are new or changed.
        self.mortal: dict[int, Topic] = {}
        self.mortal_news: list[int] = []
        self.directory = Directory()
        self.next_topic = 1
        self.producers = memory.producers
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
        self._tick = 0
        self._found: Int64s | None = None
        self._apply: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.TopicCreated: self._topic_created,
            ev.TopicChanged: self._topic_changed,
            ev.TopicDeleted: self._topic_deleted,
            ev.BindingsChanged: self._bindings_changed,
            ev.TopicPaused: self._topic_paused,
            ev.Produced: self.produced,
            ev.ProducerAdvanced: self._producer_advanced,
            ev.ProducerEnded: self._producer_ended,
            ev.Replaced: self.replaced,
            ev.Updated: self._updated,
            ev.Moved: self._moved,
            ev.Cancelled: self._cancelled,
            ev.ExpirySet: self._expiry_set,
            ev.Leased: self._leased,
            ev.Resumed: self._resumed,
            ev.Extended: self._extended,
            ev.Renewed: self._renewed,
            ev.Released: self._released,
            ev.Nacked: self._nacked,
            ev.Expired: self._expired,
            ev.Unopened: self._unopened,
            ev.Acked: self._acked,
            ev.Died: self._died,
            ev.Redriven: self._redriven,
            ev.Purged: self._purged,
            ev.Lapsed: self._lapsed,
            ev.StageOpened: self._stage_opened,
            ev.Published: self._published,
            ev.StageDropped: self._stage_dropped,
            **self.sinks.events(),
        }

    def learn(self, kind: Kind) -> None:
        """A topic kind, and how its own events are made so."""
        self.kinds[kind.name] = kind
        self._apply.update(kind.events())

    @property
    def tick(self) -> int:
        """The tick under which the event that is being applied was decided; 0 in replay."""
        return self._tick

    def make_topic(self, number: int, name: str, settings: TopicSettings) -> Topic:
        """A topic that is new, or read back."""
        topic = Topic(number, name, settings, self.kinds[settings.kind])
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

        `slots` are those of the event's sequences, if whoever decided it has them at hand.
        """
        self._tick, self._found = tick, slots
        self._apply[type(event)](event, frame)
        if type(event) in NAMING:
            self.directory.note(event, frame)
        self.last_at_us = max(self.last_at_us, event.at_us)
        if self.mortal:
            used = self.mortal.get(getattr(event, "topic", 0))
            if used is not None:
                # Not taken back with a transaction: somebody was there, whatever came of it.
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

    # Producing and changing

    def produced(self, event: ev.Produced, frame: int, **columns: Any) -> None:
        """New rows; with further columns, as their kind has them."""
        partition = self.partition(event)
        assert event.first_sequence == partition.ledger.next_sequence, "sequences have no holes"
        state = State.STAGED if event.stage else State.SCHEDULED
        partition.calendar.begin_at(event.at_us)
        owner = self.memory.owners.number(event.owner)
        places = in_frame(frame, event.row)
        sequences = partition.create(event.due_us, places, owner, state, **columns)
        if event.stage:
            staged = StagedRows(event.partition, sequences, event.hashes)
            stage = self.stages[event.stage]
            stage.add(staged, int(event.due_us.sum()) if stage.is_parcels else len(sequences))
            self.count_stage(stage)
        elif event.hashes is not None:
            partition.claim_keys(event.hashes, sequences, event.new_keys)

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

    def replaced(self, event: ev.Replaced, frame: int, **columns: Any) -> None:
        """Rows with new contents; with further columns, as their kind has them."""
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        values = {"due": event.due_us, "version": event.version, "attempts": 0, **columns}
        self._unuse_reasons(partition, slots)
        partition.turn(slots, Verb.REPLACE, lease=0, **values)
        partition.relocate(slots, in_frame(frame, event.row))
        partition.schedule(event.sequence, slots, event.due_us)

    def _updated(self, event: ev.Updated, frame: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        partition.relocate(slots, in_frame(frame, event.row), version=event.version)

    def _moved(self, event: ev.Moved, _: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        partition.turn(slots, Verb.MOVE, due=event.due_us, version=event.version)
        partition.schedule(event.sequence, slots, event.due_us)

    def _cancelled(self, event: ev.Cancelled, _: int) -> None:
        partition = self.partition(event)
        self._unuse_reasons(partition, self.slots_of(partition, event.sequence))
        self._finish(event, Verb.CANCEL)

    def _expiry_set(self, event: ev.ExpirySet, _: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        partition.set_expiry(event.sequence, slots, event.expires_us, event.at_us)

    def _finish(self, event: Any, verb: Verb) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        partition.finish(event.sequence, slots, verb, event.at_us)
        settings = self.topics[event.topic].settings
        before_us, most = event.at_us - settings.outcome_age_us, settings.outcome_count
        # Within a transaction too, or a replay, which sees no transactions, would forget more.
        self.memory.undo.once_settled(lambda: partition.outcomes.forget(before_us, most))

    # Leases

    def _leased(self, event: ev.Leased, _: int) -> None:
        partition, leases = self.partition(event), self.memory.leases
        slots = self.slots_of(partition, event.sequence)
        consumer = self.memory.consumers.number(event.consumer)
        self.memory.consumers.use(consumer, len(slots))
        place = (event.topic, event.partition, consumer)
        # The row's last reason waits in its lease. Mostly no message anywhere has one.
        reasons: NDArray[Any] | int = 0
        if self.memory.reasons:
            reasons = partition.arena.lease.take(slots, mode="clip")
        terms = (event.token, event.length_us, event.at_us)
        held = leases.open(event.sequence, *place, *terms, reasons)
        settings = self.topics[event.topic].settings
        start: Int64s | int = self._tick
        if settings.lookahead_us:
            # The lease of a message that is sent ahead of its time runs from its due time.
            ahead = partition.arena.due.take(slots, mode="clip") - event.at_us
            start = self._tick + np.maximum(ahead, 0)
        leases.arm(held, start + event.length_us, start + settings.hold_us)
        attempts = partition.arena.attempts.take(slots, mode="clip")
        partition.turn(slots, Verb.LEASE, lease=held, attempts=np.minimum(attempts, 65_534) + 1)

    def _resumed(self, event: ev.Resumed, _: int) -> None:
        held = self._held(self.partition(event), event.sequence)
        self.memory.leases.resume(held, event.token, self._tick)

    def _extended(self, event: ev.Extended, _: int) -> None:
        held = self._held(self.partition(event), event.sequence)
        self.memory.leases.extend(held, event.length_us, self._tick, self.memory.undo)

    def _renewed(self, event: ev.Renewed, _: int) -> None:
        consumer = self.memory.consumers.find(event.consumer)
        if consumer is not None:
            held = self.memory.leases.held_by(consumer, event.topic)
            self.memory.leases.renew(held, self._tick)

    def _released(self, event: ev.Released, _: int) -> None:
        self._return(event, Verb.RELEASE, event.due_us)

    def _nacked(self, event: ev.Nacked, _: int) -> None:
        self._return(event, Verb.NACK, event.due_us, event.reason)

    def _expired(self, event: ev.Expired, _: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        due = partition.arena.due.take(slots, mode="clip")
        self._return(event, Verb.EXPIRE, due, LEASE_EXPIRED)

    def _unopened(self, event: ev.Unopened, _: int) -> None:
        self._return(event, Verb.RELEASE, event.due_us, event.reason)

    def _return(self, event: Any, verb: Verb, due: Int64s, reason: str | None = None) -> None:
        """Rows wait again: for the reason that is given, or the one that they had before."""
        partition = self.partition(event)
        slots, reasons = self._close_leases(partition, event.sequence, reason is None)
        values: dict[str, Any] = {"lease": reasons}
        if reason is not None:
            values["lease"] = self._use_reason(reason, len(slots))
        if verb is not Verb.EXPIRE:
            version = partition.arena.version.take(slots, mode="clip") + 1
            values |= {"due": due, "version": version}
        if verb is Verb.RELEASE:
            values["attempts"] = partition.arena.attempts.take(slots, mode="clip") - 1
        partition.turn(slots, verb, **values)
        partition.schedule(event.sequence, slots, due)

    def _acked(self, event: ev.Acked, _: int) -> None:
        self._close_leases(self.partition(event), event.sequence)
        self._finish(event, Verb.ACK)

    def _died(self, event: ev.Died, _: int) -> None:
        partition = self.partition(event)
        slots, _reasons = self._close_leases(partition, event.sequence)
        verb = Verb.EXHAUST if event.exhausted else Verb.REJECT
        self._bury(partition, slots, verb, event)

    def _bury(self, partition: Partition, slots: Int64s, verb: Verb, event: Any) -> None:
        partition.keep_moments()
        reason = self._use_reason(event.reason, len(slots))
        partition.turn(slots, verb, lease=reason, moment=event.at_us)

    def _redriven(self, event: ev.Redriven, _: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        # It keeps its reason: that it died, and of what, is still the last that is known of it.
        partition.turn(slots, Verb.REDRIVE, attempts=0, due=event.due_us, version=event.version)
        partition.schedule(event.sequence, slots, event.due_us)
        hashes = np.stack([event.hash_first, event.hash_last], axis=1)
        partition.claim_keys(hashes, event.sequence)

    def _purged(self, event: ev.Purged, _: int) -> None:
        partition = self.partition(event)
        self._unuse_reasons(partition, self.slots_of(partition, event.sequence))
        self._finish(event, Verb.PURGE)

    def _lapsed(self, event: ev.Lapsed, _: int) -> None:
        partition = self.partition(event)
        slots = self.slots_of(partition, event.sequence)
        if int(partition.states(slots[:1])[0]) == State.LEASED:
            self._close_leases(partition, event.sequence)
        else:
            self._unuse_reasons(partition, slots)
        self._bury(partition, slots, Verb.LAPSE, event)

    def _use_reason(self, reason: str, rows: int) -> int:
        """The number of a reason that so many rows have from now on."""
        reasons = self.memory.reasons
        number = reasons.number(reason)
        reasons.use(number, rows)
        self.memory.undo.note(lambda: reasons.use(number, -rows))
        return number

    def _unuse_reasons(self, partition: Partition, slots: Int64s) -> None:
        """Rows that are not leased lose their reasons, which go when a transaction stands."""
        self._unuse(partition.arena.lease.take(slots, mode="clip"))

    def _unuse(self, numbers: NDArray[Any]) -> None:
        if some(numbers):
            self.memory.undo.once_settled(lambda: self.memory.reasons.unuse_all(numbers))

    def _held(self, partition: Partition, sequences: Int64s) -> Int64s:
        slots = self.slots_of(partition, sequences)
        return partition.arena.lease.take(slots, mode="clip").astype(np.int64)

    def _close_leases(
        self, partition: Partition, sequences: Int64s, keep_reasons: bool = False
    ) -> tuple[Int64s, NDArray[np.int32] | int]:
        """The rows' slots, and the reasons that they had before they were leased."""
        slots = self.slots_of(partition, sequences)
        held = partition.arena.lease.take(slots, mode="clip").astype(np.int64)
        reasons: NDArray[np.int32] | int = 0
        if self.memory.reasons:
            reasons = self.memory.leases.reason.take(held, mode="clip")
            if not keep_reasons:
                self._unuse(reasons)
        self.memory.close_leases(held, sequences)
        return slots, reasons

    # Stages

    def _stage_opened(self, event: ev.StageOpened, _: int) -> None:
        self.open_stage(event.stage, Stage(event.topic, event.at_us))

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

    def _published(self, event: ev.Published, _: int) -> None:
        stage = self.stages[event.stage]
        stage.published = True
        stage.claimed = False
        stage.skipped = set(event.skipped.tolist())
        self.publishing[event.stage] = stage
        self.stage_expiry_us = None
        if event.claimed:
            return
        for batch in stage.batches:
            if batch.hashes is not None:
                partition = self.topics[stage.topic].partitions[batch.partition]
                ids = batch.sequences + (batch.partition << 51)
                kept = ~np.isin(ids, event.skipped)
                partition.claim_keys(batch.hashes[kept], batch.sequences[kept])

    def _stage_dropped(self, event: ev.StageDropped, _: int) -> None:
        stage = self.stages[event.stage]
        self.begin_drop(event.stage)
        if not stage.batches:
            self.close_stage(event.stage)
