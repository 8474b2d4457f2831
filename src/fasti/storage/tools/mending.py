"""Applying events to a state that lacks some that came before them.

A repair gave frames up. What later frames say is true, but it speaks of messages, leases, topics and
stages as they were after the lost ones. Before each event, what it takes for granted is made so by
the events that must have been lost: a message that is acked was leased, a topic whose name is taken
anew was deleted, a key that is given again was free. What never was here is left out of the event and
counted as lost; a message whose whole content comes with a later event is made from that.

Nothing is guessed in favour of forgetting: what was live before the gap and is not spoken of later
stays live, and may be delivered again.

Used by a repair only (salvage.py), for frames behind the first gap. One thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.catalogue.events import CatalogueFollowed
from fasti.core.columns.hashing import UInt64s, hash_keys
from fasti.core.cron import events as cron
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.kv.partition import KvPartition
from fasti.core.priority.events import PriorityProduced, PriorityReplaced, Reprioritised
from fasti.core.rows.arena import CHANGED
from fasti.core.rows.location import in_frame
from fasti.core.state import Topic
from fasti.core.timeline.partition import Partition
from fasti.errors import IllegalTransition
from fasti.model import State, TopicSettings
from fasti.storage.payloads import Payloads
from fasti.storage.tools.losses import Losses, LostRows
from fasti.storage.tools.mending_logs import LogMender
from fasti.storage.tools.mending_stages import StageMender
from fasti.storage.tools.partial_events import HOLD_US, NOBODY, only

Int64s = NDArray[np.int64]
Place = tuple[int, int]
Mend = Callable[[Any, int], None]

CONTRADICTIONS = (AssertionError, IllegalTransition, IndexError, KeyError, ValueError)
ENDED = "ended in a lost part of the journal"

# In which state an event finds the rows that it names.
_BEFORE: dict[type[ev.Event], State] = {
    ev.Updated: State.SCHEDULED,
    ev.Moved: State.SCHEDULED,
    ev.Cancelled: State.SCHEDULED,
    ev.Leased: State.SCHEDULED,
    ev.Lapsed: State.SCHEDULED,
    ev.Replaced: State.SCHEDULED,
    PriorityReplaced: State.SCHEDULED,
    Reprioritised: State.SCHEDULED,
    Removed: State.SCHEDULED,
    ev.Resumed: State.LEASED,
    ev.Extended: State.LEASED,
    ev.Released: State.LEASED,
    ev.Nacked: State.LEASED,
    ev.Expired: State.LEASED,
    ev.Unopened: State.LEASED,
    ev.Acked: State.LEASED,
    ev.Died: State.LEASED,
    ev.Redriven: State.DEAD,
    ev.Purged: State.DEAD,
}
# Those that end a message: nothing is lost with it.
_LAST = (ev.Acked, ev.Cancelled, ev.Purged, Removed)


class Mender:
    """Brings an engine up to date from events with gaps between them."""

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        seed: tuple[int, int],
        filler: int,
        losses: Losses,
        lost: dict[Place, LostRows],
    ) -> None:
        self.engine, self.state = engine, engine.state
        self.losses = losses
        self.lost = lost
        self.ended: dict[int, int] = defaultdict(int)
        # Kind and partitions of topics whose creation is lost, as later frames let one tell.
        self.unknown: dict[int, tuple[str, int]] = {}
        self._payloads, self._seed = payloads, seed
        # Those of the frame that is being applied.
        self._rows: Rows | None = None
        self._logs = LogMender(self, filler)
        self._stages = StageMender(self)
        self._mends: dict[type[ev.Event], Mend] = {
            ev.TopicCreated: self._topic_created,
            ev.TopicDeleted: self._topic_deleted,
            ev.Produced: self._produced,
            PriorityProduced: self._produced,
            KvProduced: self._produced,
            cron.SchedulePut: self._schedule_put,
            cron.ScheduleDeleted: self._schedule_changed,
            cron.SchedulePaused: self._schedule_changed,
            cron.Fired: self._fired,
            cron.Unfired: self._fired,
            ev.ExpirySet: self._expiry_set,
            CatalogueFollowed: self._catalogue_followed,
            **dict.fromkeys(_BEFORE, self._rows_changed),
            **self._stages.mends(),
            **self._logs.mends(),
        }

    def apply(self, event: ev.Event, frame: int, rows: Rows | None) -> None:
        """Makes an event so, and what it takes for granted before that."""
        try:
            if self._knows_topic(event):
                self._rows = rows
                self._mends.get(type(event), self.make_so)(event, frame)
        except CONTRADICTIONS as error:
            name = type(event).__name__
            self.losses.note(
                f"frame {frame}: {name} was left out, it contradicts the rest: {error!r}"
            )

    def make_so(self, event: ev.Event, frame: int | None = None) -> None:
        """Applies an event as it is; without a frame, one that must have been lost."""
        self.state.apply(event, self.state.next_frame if frame is None else frame)

    # Topics

    def _knows_topic(self, event: Any) -> bool:
        """Whether the event's topic is there; one that was made in the gap is made again."""
        number = getattr(event, "topic", None)
        if number is None or number in self.state.topics or isinstance(event, ev.TopicCreated):
            return True
        if isinstance(event, ev.TopicDeleted) or number not in self.unknown:
            return False
        kind, partitions = self.unknown[number]
        settings = TopicSettings(kind=kind, partitions=partitions).to_dict()
        if isinstance(event, ev.TopicChanged):
            settings = event.settings
        name = f"recovered-{number}"
        self.make_so(ev.TopicCreated(event.at_us, number, name, settings))
        self.losses.note(
            f"topic {number} was created in the gap: its name and settings are lost; what later "
            f"frames have of it is in {name!r}"
        )
        return True

    def _topic_created(self, event: ev.TopicCreated, frame: int) -> None:
        before = self.state.by_name.get(event.name)
        if before is not None:
            self.losses.note(
                f"topic {event.name!r} was deleted in the gap and created anew behind it"
            )
            self.make_so(ev.TopicDeleted(event.at_us, before.number), frame)
        self.make_so(event, frame)

    def _topic_deleted(self, event: ev.TopicDeleted, frame: int) -> None:
        self.make_so(event, frame)
        for place in [place for place in self.lost if place[0] == event.topic]:
            del self.lost[place]
        self.ended.pop(event.topic, None)

    def _catalogue_followed(self, event: CatalogueFollowed, frame: int) -> None:
        """Pages before this one may be lost: the shard is to be told all of them again."""
        self.make_so(replace(event, version=0), frame)

    def topic_of(self, event: Any) -> Topic:
        return self.state.topics[event.topic]

    # Messages

    def skip_to(self, partition: Partition, next_sequence: int) -> None:
        """Sequences below were given in the gap."""
        first = partition.ledger.next_sequence
        if next_sequence > first:
            self.lost[partition.topic, partition.number].add(first, next_sequence - 1)
            partition.ledger.next_sequence = next_sequence

    def _produced(self, event: ev.Produced, frame: int) -> None:
        partition = self.state.partition(event)
        self.skip_to(partition, event.first_sequence)
        if event.stage:
            self._stages.open_if_missing(event)
        elif event.hashes is not None:
            self.free_keys(partition, event.hashes, event.at_us, frame)
        self.make_so(event, frame)

    def free_keys(self, partition: Partition, hashes: UInt64s, at_us: int, frame: int) -> None:
        """These keys have other owners from now on: who had them ended in the gap."""
        claimed = hashes[hashes[:, 0] != 0]
        if not len(claimed):
            return
        holders = np.unique(partition.find_keys(claimed))
        holders = holders[holders > 0]
        holders = holders[partition.is_live(holders)]
        if not len(holders):
            return
        self.ended[partition.topic] += len(holders)
        if isinstance(partition, KvPartition):
            partition.remove(holders, at_us, frame)
        else:
            self.bring(partition, holders, State.DEAD, at_us)

    def _rows_changed(self, event: Any, frame: int) -> None:
        partition = self.state.partition(event)
        self.skip_to(partition, int(event.sequence.max()) + 1)
        known = partition.states(partition.ledger.slots(event.sequence)) != State.NONE
        missing = only(event, ~known)
        if len(missing.sequence):
            self._rows_missing(partition, missing, frame)
        event = only(event, known)
        if not len(event.sequence):
            return
        if isinstance(event, ev.Redriven):
            hashes = np.stack([event.hash_first, event.hash_last], axis=1)
            self.free_keys(partition, hashes, event.at_us, frame)
        self.bring(partition, event.sequence, _BEFORE[type(event)], event.at_us)
        self.make_so(event, frame)

    def _expiry_set(self, event: ev.ExpirySet, frame: int) -> None:
        partition = self.state.partition(event)
        self.skip_to(partition, int(event.sequence.max()) + 1)
        known = partition.states(partition.ledger.slots(event.sequence)) != State.NONE
        event = only(event, known)
        if len(event.sequence):
            self.make_so(event, frame)

    def _rows_missing(self, partition: Partition, event: Any, frame: int) -> None:
        lost = self.lost[partition.topic, partition.number]
        if isinstance(event, _LAST):
            lost.end(event.sequence)
        elif isinstance(event, ev.Replaced):
            # The whole message comes with it, but for its owner.
            lost.end(event.sequence)
            self._make_rows(partition, event, frame)
            keys = None if self._rows is None else self._rows.keys(self._seed)
            if keys is not None:
                hashes = keys.hashes[event.row]
                self.free_keys(partition, hashes, event.at_us, frame)
                partition.claim_keys(hashes, event.sequence)

    def _make_rows(self, partition: Partition, event: ev.Replaced, frame: int) -> None:
        count = len(event.sequence)
        columns: dict[str, NDArray[Any]] = {
            "sequence": event.sequence,
            "due": event.due_us,
            "location": in_frame(frame, event.row),
            "version": event.version,
            "owner": np.zeros(count, dtype=np.int64),
            "lease": np.zeros(count, dtype=np.int64),
            "attempts": np.zeros(count, dtype=np.int64),
            "flags": np.full(count, int(State.SCHEDULED) | int(CHANGED), dtype=np.uint8),
        }
        if isinstance(event, PriorityReplaced):
            columns["priority"] = event.priority
        partition.restore_rows(columns)
        slots = partition.ledger.slots(event.sequence)
        partition.arena.epoch[slots] = self.engine.memory.epoch_byte
        partition.counts[State.SCHEDULED] += count
        partition.times.schedule(event.sequence, event.due_us)

    def bring(self, partition: Partition, sequences: Int64s, target: State, at_us: int) -> None:
        """Takes rows to a state, by the events that must have been lost."""
        place = (partition.topic, partition.number)

        def those(state: State) -> Int64s:
            states = partition.states(partition.ledger.slots(sequences))
            return sequences[states == state]

        if len(staged := those(State.STAGED)):
            self._stages.land(partition, staged, at_us, self.state.next_frame)
        if target != State.DEAD and len(dead := those(State.DEAD)):
            self._redrive(partition, dead, at_us)
        if target != State.LEASED and len(leased := those(State.LEASED)):
            self.make_so(ev.Expired(at_us, *place, leased))
        if target == State.SCHEDULED:
            return
        if len(scheduled := those(State.SCHEDULED)):
            if target == State.LEASED:
                token = self.engine.memory.leases.next_token
                self.make_so(ev.Leased(at_us, *place, token, NOBODY, HOLD_US, scheduled))
            else:
                self.make_so(ev.Lapsed(at_us, *place, ENDED, scheduled))

    def _redrive(self, partition: Partition, sequences: Int64s, at_us: int) -> None:
        slots = partition.ledger.slots(sequences)
        locations = partition.arena.location.take(slots)
        keys = self._payloads.gather(locations, names=("key",), lost=True).column("key")
        hashes = hash_keys(keys, self._seed).copy()
        holders = partition.find_keys(hashes)
        hashes[(holders > 0) & partition.is_live(holders)] = 0
        version = partition.arena.version.take(slots).astype(np.int64) + 1
        due_us = partition.arena.due.take(slots)
        place = (partition.topic, partition.number)
        event = ev.Redriven(
            at_us, *place, sequences, version, due_us, hashes[:, 0].copy(), hashes[:, 1].copy()
        )
        self.make_so(event)

    # Schedules

    def _schedule_put(self, event: cron.SchedulePut, frame: int) -> None:
        book = self.topic_of(event).body
        same_name = book.by_name.get(event.name)
        for number in {event.number, same_name} - {None}:
            is_other = number < book.size and book.names[number] != event.name
            if number < book.size and book.exists[number]:
                if is_other or number != event.number:
                    self.make_so(cron.ScheduleDeleted(event.at_us, event.topic, number), frame)
        self.make_so(event, frame)

    def _schedule_changed(self, event: Any, frame: int) -> None:
        book = self.topic_of(event).body
        if event.number < book.size and book.exists[event.number]:
            self.make_so(event, frame)

    def _fired(self, event: Any, frame: int) -> None:
        book = self.topic_of(event).body
        here = event.number < book.size
        here[here] = book.exists[event.number[here]]
        event = only(event, here)
        if len(event.number):
            self.make_so(event, frame)
