"""Key-value topics: the latest value of each key, as an engine sees them.

An entry is a row of the arena with a key: `KvProduced` makes it, `Replaced` gives it a new value,
`Removed` takes it away. Values lie where payloads lie, and move into runs with every checkpoint;
rows that a newer value left behind go by the compaction that all runs know.

An entry with a clustering key has the key `key NUL clustering`, so that the order of bytes is the
order of (key, clustering), and NUL stands in neither. All entries of one key share a partition.

Time to live is a timeline underneath. Reads hide what has expired at once; it is removed when its
turn comes: the engine asks storage for the keys (`LoadRemoved`), because whoever watches must be
told them, and `KvExpire` brings them back. One such question per partition is open at a time.

The sequencer's thread only.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fasti.core import traits
from fasti.core.agenda import FOREVER, Agenda
from fasti.core.commands import Count, Forecast
from fasti.core.events import Event
from fasti.core.kind import Apply, Columns, Handler, Kind
from fasti.core.kv import changes
from fasti.core.kv.commands import (
    KvDelete,
    KvDescribe,
    KvExpire,
    KvFound,
    KvGet,
    KvPut,
    KvRows,
    LoadRemoved,
)
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.kv.partition import Found, KvPartition
from fasti.core.replies import Done
from fasti.core.rows.location import in_frame
from fasti.core.state import Partitions, Topic
from fasti.core.timeline import reads
from fasti.core.traits import Traits
from fasti.core.work import Work, split_ids
from fasti.model import SECOND_US, SEQUENCE_BITS, Outcome, State

Int64s = NDArray[np.int64]
Place = tuple[int, int]

# Entries whose keys are asked for at once.
EXPIRED_PER_CALL = 5_000
_PLACES_PER_STEP = 512


class KvKind(Kind):
    """Key-value topics: the latest value of each key."""

    traits: ClassVar[Traits] = traits.KV
    in_transactions: ClassVar[tuple[type, ...]] = (KvPut, KvDelete)

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        # When the next entry of a partition expires. Session state: worked out again after a start.
        self._expiring: Agenda[Place] = Agenda()
        # Partitions that storage was asked about.
        self._asked: set[Place] = set()

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on key-value topics."""
        return {
            KvPut: changes.put,
            KvDelete: changes.delete,
            KvGet: self._get,
            KvRows: self._rows,
            KvDescribe: self._describe,
            Count: reads.count,
            Forecast: reads.forecast,
        }

    def commands(self) -> dict[type, Handler]:
        """What storage answers."""
        return {KvExpire: self._expire}

    def events(self) -> dict[type[Event], Apply]:
        """What happens here alone."""
        return {KvProduced: self._produced, Removed: self._removed}

    # A topic's life

    def make(self, topic: Topic) -> None:
        """Its partitions."""
        memory, note = self.state.memory, self._note
        topic.partitions = self.make_partitions(
            topic, lambda topic, number: KvPartition(memory, topic, number, note)
        )

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """Floors, and where each partition changed last."""
        described = [[0, 0]] * len(topic.partitions)
        for partition in _partitions(topic).made():
            described[partition.number] = [partition.floor, partition.changed_frame]
        return {"kv": described}

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`."""
        partitions = _partitions(topic)
        for number, (floor, frame) in enumerate(described["kv"]):
            if floor or frame:
                partitions[number].floor, partitions[number].changed_frame = floor, frame

    # Events

    def _produced(self, event: KvProduced, frame: int) -> None:
        partition = cast(KvPartition, self.state.partition(event))
        assert event.first_sequence == partition.ledger.next_sequence, "sequences have no holes"
        partition.times.calendar.begin_at(event.at_us)
        sequences = partition.create(
            event.due_us, in_frame(frame, event.row), 0, State.SCHEDULED, version=event.version
        )
        assert event.hashes is not None
        partition.claim_keys(event.hashes, sequences, event.new_keys)

    def _removed(self, event: Removed, frame: int) -> None:
        partition = cast(KvPartition, self.state.partition(event))
        partition.remove(event.sequence, event.at_us, frame)

    # Reads

    def _get(self, work: Work, command: KvGet) -> KvFound:
        """Entries by key, as they are now."""
        topic = work.topic(command.topic)
        found = _Reading(work, len(command.keys))
        partitions = _partitions(topic)
        if len(partitions) == 1:
            partition = partitions.look(0)
            found.add(partition, slice(None), partition.find(command.keys.hashes, work.now_us))
            return found.reply
        numbers = command.keys.partitions(len(partitions))
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            hashes = command.keys.hashes[rows]
            partition = partitions.look(number)
            found.add(partition, rows, partition.find(hashes, work.now_us))
        return found.reply

    def _rows(self, work: Work, command: KvRows) -> KvFound:
        """Entries by id."""
        topic = work.topic(command.topic)
        found = _Reading(work, len(command.ids))
        for number, rows, sequences in split_ids(command.ids, len(topic.partitions)):
            if 0 <= number < len(topic.partitions):
                partition = _partitions(topic).look(number)
                found.add(partition, rows, partition.look(sequences, work.now_us))
        return found.reply

    def _describe(self, work: Work, command: KvDescribe) -> Done:
        """What there is, and since when a watcher has missed nothing."""
        topic = work.topic(command.topic)
        states = reads.count(work, Count(command.topic)).states
        partitions = _partitions(topic).made()
        return Done(
            {
                "topic": topic.number,
                "entries": states["scheduled"],
                "expired": states["ready"],
                "removed": states["cancelled"],
                "expiring": sum(partition.times.histogram.total for partition in partitions),
                "partitions": len(topic.partitions),
                "position": work.state.next_frame - 1,
                "changed": max((partition.changed_frame for partition in partitions), default=0),
            }
        )

    # Expiry

    def _note(self, topic: int, number: int, due_us: int) -> None:
        """From this moment on there may be something to remove."""
        place = (topic, number)
        # When storage answers, the partition is looked at anyway.
        if place not in self._asked:
            self._expiring.plan_by(place, due_us)

    def next_us(self) -> int:
        """When the next entry expires, whose partition waits for nothing."""
        return self._expiring.next_us()

    def after(self, work: Work) -> bool:
        """Asks for the keys of what has expired, of a bounded number of partitions."""
        for _ in range(_PLACES_PER_STEP):
            place = self._expiring.pop(work.now_us)
            if place is None:
                return False
            partition = self._find(*place)
            if partition is not None:
                self._look(work, partition)
        return True

    def _look(self, work: Work, partition: KvPartition) -> None:
        more = partition.times.advance(work.now_us)
        sequences, slots, _ = partition.times.hand_out(EXPIRED_PER_CALL, work.now_us)
        place = (partition.topic, partition.number)
        if len(sequences):
            arena = partition.arena
            self._asked.add(place)
            self._expiring.drop(place)
            work.effects.append(
                LoadRemoved(
                    *place, sequences, arena.version.take(slots), arena.location.take(slots)
                )
            )
            return
        next_us = work.now_us if more else partition.times.next_us()
        if next_us <= work.now_us and not more:
            # Something is due that must be read from runs first; its arrival is noted as well.
            next_us = work.now_us + SECOND_US
        if next_us < FOREVER:
            self._note(*place, next_us)

    def _expire(self, work: Work, command: KvExpire) -> Done:
        """Storage has read the keys: what has not changed since is removed."""
        self._asked.discard((command.topic, command.partition))
        partition = self._find(command.topic, command.partition)
        if partition is None:
            return Done()
        slots = partition.ledger.slots(command.sequences)
        due = partition.arena.due.take(slots)
        if command.rows is None:
            partition.times.restore_entries(command.sequences, due)
        else:
            good = partition.states(slots) == State.SCHEDULED
            good &= (partition.arena.version.take(slots) == command.versions) & (due <= work.now_us)
            rows = np.flatnonzero(good).astype(np.int64)
            if len(rows):
                work.bring(command.rows)
                place = (command.topic, command.partition)
                work.emit(Removed(work.now_us, *place, 1, command.sequences[rows], rows))
        self._note(command.topic, command.partition, work.now_us)
        return Done()

    def forget(self, topic: Topic) -> None:
        """The topic was deleted."""
        for number in topic.partitions.numbers():
            self._expiring.drop((topic.number, number))
            self._asked.discard((topic.number, number))

    def _find(self, topic: int, number: int) -> KvPartition | None:
        known = self.state.topics.get(topic)
        return _partitions(known).get(number) if known is not None else None


def _partitions(topic: Topic) -> Partitions[KvPartition]:
    return cast("Partitions[KvPartition]", topic.partitions)


class _Reading:
    """A reply that partitions fill in."""

    def __init__(self, work: Work, count: int) -> None:
        self.reply = KvFound(
            np.full(count, Outcome.NOT_FOUND, dtype=np.uint8),
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
            work.state.next_frame - 1,
        )

    def add(self, partition: KvPartition, rows: NDArray[np.intp] | slice, found: Found) -> None:
        reply = self.reply
        reply.status[rows] = np.where(found.live, Outcome.OK, Outcome.NOT_FOUND)
        ids = found.sequences | partition.number << SEQUENCE_BITS
        reply.ids[rows] = np.where(found.live, ids, 0)
        reply.versions[rows] = found.versions
        reply.expires_us[rows] = found.due
        reply.locations[rows] = partition.arena.location.take(found.slots, mode="clip")
