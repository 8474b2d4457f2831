"""Timelines: messages by (due, sequence), in the arena; what other kinds build on.

`Applying` is how their events are made so, while they are decided and in replay. Priority topics and
key-value topics keep their messages in the same partitions, and share these events where they need no
column of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core import commands, traits
from fasti.core import events as ev
from fasti.core.commands import Lease, Produce
from fasti.core.delivery.verbs import LEASE_EXPIRED, VERBS
from fasti.core.events import Event, Int64s
from fasti.core.keys import Rows
from fasti.core.kind import Apply, Handler, Kind
from fasti.core.lifecycle import Verb
from fasti.core.replies import Reply
from fasti.core.rows.arena import MOMENT
from fasti.core.rows.location import in_frame
from fasti.core.state import ShardState, Topic
from fasti.core.timeline import change, produce, reads
from fasti.core.timeline.bury import Bury, bury
from fasti.core.timeline.corrupt import GiveUp, give_up
from fasti.core.timeline.judging import LeasableTopic, Piece, leased_at
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.core.traits import Traits
from fasti.core.work import Work
from fasti.model import State

if TYPE_CHECKING:
    from fasti.core.engine import Engine


# The column has 16 bits; who tries as often as this is not counted further.
_ATTEMPTS_MAX = 65_534


class TimelineKind(Kind):
    """Everything that can be asked of a timeline."""

    traits: ClassVar[Traits] = traits.TIMELINE
    in_transactions: ClassVar[tuple[type, ...]] = (
        commands.Produce,
        commands.Update,
        commands.Move,
        commands.Cancel,
        commands.Purge,
        Bury,
        commands.Extend,
        commands.Release,
        commands.Ack,
        commands.Nack,
        commands.Reject,
    )

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._applying = Applying(self.state)

    def events(self) -> dict[type[Event], Apply]:
        """What happens to messages in partitions, of whatever kind."""
        return self._applying.events()

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
        """Decides them as if they were produced here."""
        produce.put_rows(work, topic, command, begin, due, rows, reply)

    def leasable(self, topic: Topic, group: str) -> LeasableTopic:
        """The topic."""
        return LeasableTopic(topic)

    def is_credit(self, topic: Topic, command: Lease) -> bool:
        """Whether a `Lease` does no more than add to its session's credit."""
        return self.engine.turns.is_credit(topic, command)

    def leased_at(self, topic: Topic, place: int, sequences: Int64s) -> Piece:
        """Leased messages of a partition."""
        return leased_at(topic, place, sequences)

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on timelines."""
        return {
            commands.Produce: produce.produce,
            commands.Update: change.update,
            commands.Move: change.move,
            commands.Cancel: change.cancel,
            commands.Redrive: change.redrive,
            commands.Purge: change.purge,
            Bury: bury,
            GiveUp: give_up,
            commands.Lease: self.engine.turns.lease,
            commands.Unheard: self.engine.turns.unheard,
            commands.Heard: self.engine.turns.heard,
            **VERBS,
            commands.Get: reads.get,
            commands.List: reads.list_page,
            commands.Count: reads.count,
            commands.Forecast: reads.forecast,
        }


class Applying:
    """Changes the partitions, leases and stages of a shard."""

    def __init__(self, state: ShardState) -> None:
        self._state, self._memory = state, state.memory

    def events(self) -> dict[type[ev.Event], Apply]:
        """By event, the function that makes it so."""
        return {
            ev.Produced: self.produced,
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
        }

    # Producing and changing

    def produced(self, event: ev.Produced, frame: int, **columns: Any) -> None:
        """New rows; with further columns, as their kind has them."""
        partition = self._state.partition(event)
        assert event.first_sequence == partition.ledger.next_sequence, "sequences have no holes"
        state = State.STAGED if event.stage else State.SCHEDULED
        partition.times.calendar.begin_at(event.at_us)
        owner = self._memory.owners.number(event.owner)
        places = in_frame(frame, event.row)
        sequences = partition.create(event.due_us, places, owner, state, **columns)
        if event.stage:
            staged = StagedRows(event.partition, sequences, event.hashes)
            stage = self._state.stages[event.stage]
            stage.add(staged, int(event.due_us.sum()) if stage.is_parcels else len(sequences))
            self._state.count_stage(stage)
        elif event.hashes is not None:
            partition.claim_keys(event.hashes, sequences, event.new_keys)

    def replaced(self, event: ev.Replaced, frame: int, **columns: Any) -> None:
        """Rows with new contents; with further columns, as their kind has them."""
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        values = {"due": event.due_us, "version": event.version, "attempts": 0, **columns}
        self._memory.drop_reasons(partition.arena.lease.take(slots, mode="clip"))
        partition.turn(slots, Verb.REPLACE, lease=0, **values)
        partition.relocate(slots, in_frame(frame, event.row))
        partition.times.schedule(event.sequence, event.due_us)

    def _updated(self, event: ev.Updated, frame: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        partition.relocate(slots, in_frame(frame, event.row), version=event.version)

    def _moved(self, event: ev.Moved, _: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        partition.turn(slots, Verb.MOVE, due=event.due_us, version=event.version)
        partition.times.schedule(event.sequence, event.due_us)

    def _cancelled(self, event: ev.Cancelled, _: int) -> None:
        self._finish_unleased(event, Verb.CANCEL)

    def _expiry_set(self, event: ev.ExpirySet, _: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        partition.set_expiry(event.sequence, slots, event.expires_us, event.at_us)

    def _finish_unleased(self, event: Any, verb: Verb) -> None:
        """Their reasons stand in the rows, and go with them."""
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        self._memory.drop_reasons(partition.arena.lease.take(slots, mode="clip"))
        self._finish(event, verb)

    def _finish(self, event: Any, verb: Verb) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        partition.finish(event.sequence, slots, verb, event.at_us)
        settings = self._state.topics[event.topic].settings
        before_us, most = event.at_us - settings.outcome_age_us, settings.outcome_count
        # Within a transaction too, or a replay, which sees no transactions, would forget more.
        self._memory.undo.once_settled(lambda: partition.outcomes.forget(before_us, most))

    # Leases

    def _leased(self, event: ev.Leased, _: int) -> None:
        partition, leases = self._state.partition(event), self._memory.leases
        slots = self._state.slots_of(partition, event.sequence)
        consumer = self._memory.consumers.number(event.consumer)
        self._memory.consumers.use(consumer, len(slots))
        place = (event.topic, event.partition, consumer)
        # The row's last reason waits in its lease. Mostly no message anywhere has one.
        reasons: NDArray[Any] | int = 0
        if self._memory.reasons:
            reasons = partition.arena.lease.take(slots, mode="clip")
        terms = (event.token, event.length_us, event.at_us)
        held = leases.open(event.sequence, *place, *terms, reasons)
        settings = self._state.topics[event.topic].settings
        start: Int64s | int = self._state.tick
        arena = partition.arena
        attempts: NDArray[np.uint16] | int
        # The lease of a message that is sent ahead of its time runs from its due time.
        if len(slots) == 1:
            slot = int(slots[0])
            if settings.lookahead_us:
                start += max(0, int(arena.due[slot]) - event.at_us)
            attempts = min(int(arena.attempts[slot]), _ATTEMPTS_MAX) + 1
        else:
            if settings.lookahead_us:
                start = start + np.maximum(arena.due.take(slots, mode="clip") - event.at_us, 0)
            attempts = np.minimum(arena.attempts.take(slots, mode="clip"), _ATTEMPTS_MAX) + 1
        leases.arm(held, start + event.length_us, start + settings.hold_us)
        partition.turn(slots, Verb.LEASE, lease=held, attempts=attempts)

    def _resumed(self, event: ev.Resumed, _: int) -> None:
        held = self._held(self._state.partition(event), event.sequence)
        self._memory.leases.resume(held, event.token, self._state.tick)

    def _extended(self, event: ev.Extended, _: int) -> None:
        held = self._held(self._state.partition(event), event.sequence)
        self._memory.leases.extend(held, event.length_us, self._state.tick, self._memory.undo)

    def _renewed(self, event: ev.Renewed, _: int) -> None:
        consumer = self._memory.consumers.find(event.consumer)
        if consumer is not None:
            held = self._memory.leases.held_by(consumer, event.topic)
            self._memory.leases.renew(held, self._state.tick)

    def _released(self, event: ev.Released, _: int) -> None:
        self._return(event, Verb.RELEASE, event.due_us)

    def _nacked(self, event: ev.Nacked, _: int) -> None:
        self._return(event, Verb.NACK, event.due_us, event.reason)

    def _expired(self, event: ev.Expired, _: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        due = partition.arena.due.take(slots, mode="clip")
        self._return(event, Verb.EXPIRE, due, LEASE_EXPIRED)

    def _unopened(self, event: ev.Unopened, _: int) -> None:
        self._return(event, Verb.RELEASE, event.due_us, event.reason)

    def _return(self, event: Any, verb: Verb, due: Int64s, reason: str | None = None) -> None:
        """Rows wait again: for the reason that is given, or the one that they had before."""
        partition = self._state.partition(event)
        slots, reasons = self._close_leases(partition, event.sequence, reason is None)
        values: dict[str, Any] = {"lease": reasons}
        if reason is not None:
            values["lease"] = self._memory.use_reason(reason, len(slots))
        if verb is not Verb.EXPIRE:
            version = partition.arena.version.take(slots, mode="clip") + 1
            values |= {"due": due, "version": version}
        if verb is Verb.RELEASE:
            values["attempts"] = partition.arena.attempts.take(slots, mode="clip") - 1
        partition.turn(slots, verb, **values)
        partition.times.schedule(event.sequence, due)

    def _acked(self, event: ev.Acked, _: int) -> None:
        self._close_leases(self._state.partition(event), event.sequence)
        self._finish(event, Verb.ACK)

    def _died(self, event: ev.Died, _: int) -> None:
        partition = self._state.partition(event)
        slots, _reasons = self._close_leases(partition, event.sequence)
        verb = Verb.EXHAUST if event.exhausted else Verb.REJECT
        self._bury(partition, slots, verb, event)

    def _bury(self, partition: Partition, slots: Int64s, verb: Verb, event: Any) -> None:
        partition.ledger.keep(MOMENT)
        reason = self._memory.use_reason(event.reason, len(slots))
        partition.turn(slots, verb, lease=reason, moment=event.at_us)

    def _redriven(self, event: ev.Redriven, _: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        # It keeps its reason: that it died, and of what, is still the last that is known of it.
        partition.turn(slots, Verb.REDRIVE, attempts=0, due=event.due_us, version=event.version)
        partition.times.schedule(event.sequence, event.due_us)
        hashes = np.stack([event.hash_first, event.hash_last], axis=1)
        partition.claim_keys(hashes, event.sequence)

    def _purged(self, event: ev.Purged, _: int) -> None:
        self._finish_unleased(event, Verb.PURGE)

    def _lapsed(self, event: ev.Lapsed, _: int) -> None:
        partition = self._state.partition(event)
        slots = self._state.slots_of(partition, event.sequence)
        if int(partition.states(slots[:1])[0]) == State.LEASED:
            self._close_leases(partition, event.sequence)
        else:
            self._memory.drop_reasons(partition.arena.lease.take(slots, mode="clip"))
        self._bury(partition, slots, Verb.LAPSE, event)

    def _held(self, partition: Partition, sequences: Int64s) -> Int64s:
        slots = self._state.slots_of(partition, sequences)
        return partition.arena.lease.take(slots, mode="clip").astype(np.int64)

    def _close_leases(
        self, partition: Partition, sequences: Int64s, keep_reasons: bool = False
    ) -> tuple[Int64s, NDArray[np.int32] | int]:
        """The rows' slots, and the reasons that they had before they were leased."""
        slots = self._state.slots_of(partition, sequences)
        held = partition.arena.lease.take(slots, mode="clip").astype(np.int64)
        reasons: NDArray[np.int32] | int = 0
        if self._memory.reasons:
            reasons = self._memory.leases.reason.take(held, mode="clip")
            if not keep_reasons:
                self._memory.drop_reasons(reasons)
        self._memory.close_leases(held, sequences)
        return slots, reasons

    # Stages

    def _stage_opened(self, event: ev.StageOpened, _: int) -> None:
        self._state.open_stage(event.stage, Stage(event.topic, event.at_us))

    def _published(self, event: ev.Published, _: int) -> None:
        stage = self._state.stages[event.stage]
        stage.published = True
        stage.claimed = False
        stage.skipped = set(event.skipped.tolist())
        self._state.publishing[event.stage] = stage
        self._state.stage_expiry_us = None
        if event.claimed:
            return
        for batch in stage.batches:
            if batch.hashes is not None:
                partition = self._state.topics[stage.topic].partitions[batch.partition]
                ids = batch.sequences + (batch.partition << 51)
                taken = ~np.isin(ids, event.skipped)
                partition.claim_keys(batch.hashes[taken], batch.sequences[taken])

    def _stage_dropped(self, event: ev.StageDropped, _: int) -> None:
        stage = self._state.stages[event.stage]
        self._state.begin_drop(event.stage)
        if not stage.batches:
            self._state.close_stage(event.stage)
