"""Priority topics: messages by (priority, due, sequence), the most urgent first.

The time index is the timeline's: a message stands in the calendar until it is near, and is never
handed out before it is due. What is due leaves the line by due time for a second one, in which
entries are sorted by a *rank*, one number that says who comes first:

- without a starvation guard, priority in the high 16 bits and below it the due time, counted from
  a moment two years or more ago (`base_us`): what was due before that moment ties, and then the
  sequence decides;
- with one, `due + priority * age_step`: a message of priority 1 is overtaken by one of priority 0
  only if that is due less than one step later. Both age alike, so the order of two messages never
  changes while they wait, and nothing is ever ranked again.

Both lines are merged sorted runs (calendar/wheel.py), and their entries are hints: a rank that is not the
row's any more is stale. The order is exact: nothing goes out until everything that is due by now
is in memory and ranked. What is near but not due (the topic's lookahead) follows when nothing that
is due is left, by due time.

The sequencer's thread only.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core import traits
from fasti.core.agenda import FOREVER
from fasti.core.calendar.wheel import ENTRY_BYTES, Ready
from fasti.core.columns import codes
from fasti.core.columns.reductions import distinct, every, lowest, sort_pairs
from fasti.core.commands import Reprioritise
from fasti.core.events import Event
from fasti.core.kind import Apply, Handler
from fasti.core.priority.events import PriorityProduced, PriorityReplaced, Reprioritised
from fasti.core.rows.arena import NEAR, PRIORITY, STATE_MASK, Ledger
from fasti.core.rows.memory import Memory
from fasti.core.state import Topic
from fasti.core.timeline.change import reprioritise
from fasti.core.timeline.kind import TimelineKind
from fasti.core.timeline.partition import NOBODY, Partition, TimeIndex, joined
from fasti.core.traits import Traits
from fasti.model import DUE_MAX_US

Int64s = NDArray[np.int64]

_DUE_BITS = 47
_DUE_MASK = (1 << _DUE_BITS) - 1
# The moment from which due times count moves on in steps of 2^45 microseconds, a little over a year.
_BASE_STEP_BITS = 45
_RANKED_PER_CALL = 65_536
_RANK_MAX = (1 << 63) - 1


class RankedTimes(TimeIndex):
    """Hands out by rank what is due."""

    def __init__(
        self, memory: Memory, place: tuple[int, int], ledger: Ledger, age_step_us: int
    ) -> None:
        super().__init__(memory, place, ledger)
        self._age_step_us = age_step_us
        # (rank, sequence) of what was due when it came here.
        self.ranked = Ready()
        # From when due times count in ranks without a guard.
        self.base_us = 0

    # Handing out

    def advance(self, to_us: int) -> bool:
        """Brings what is near into the line, and what is due of it into the ranked one."""
        self._move_base()
        more = super().advance(to_us)
        return self._rank_due() or more

    def hand_out(self, count: int, limit_us: int) -> tuple[Int64s, Int64s, Int64s]:
        """Up to `count` scheduled rows: what is due by rank, then what is near by due time."""
        if not self._complete():
            return NOBODY, NOBODY, NOBODY
        sequences, slots, _ = joined(self._collect(self.ranked, count, _RANK_MAX, self._holds_rank))
        due = self.arena.due.take(slots, mode="clip")
        if len(sequences) == count:
            return sequences, slots, due
        near = super().hand_out(count - len(sequences), limit_us)
        return near if not len(sequences) else joined([(sequences, slots, due), near])

    def head_us(self, limit_us: int) -> int | None:
        """Where the partition stands among those of its topic: a rank, not a time."""
        if not self._complete():
            return None
        while (first := self.ranked.first()) is not None:
            rank, sequence = first
            slot = self.ledger.slot(sequence)
            if self.arena.flags[slot] & STATE_MASK == codes.SCHEDULED:
                due_us = int(self.arena.due[slot])
                if due_us <= self.now_us and self._rank_of(slot, due_us) == rank:
                    return rank
            self.ranked.take(1, rank)
        near_us = super().head_us(limit_us)
        return None if near_us is None else _RANK_MAX + near_us

    def in_order(self, sequences: Int64s) -> Int64s:
        """By rank; what is not due yet comes after all that is."""
        slots = self.ledger.slots(sequences)
        due = self.arena.due.take(slots, mode="clip")
        later = due > self.now_us
        ranks = np.where(later, due, self._ranks(slots, due))
        return sequences[np.lexsort((sequences, ranks, later))]

    def next_us(self) -> int:
        """When something may go out next; FOREVER if nothing is pending, or must be read first."""
        if self.loaded_until_us <= self.now_us:
            return FOREVER
        return self.now_us if self.ranked.entries else super().next_us()

    def rerank(self, sequences: Int64s, slots: Int64s) -> None:
        """Rows got other priorities. Those that are not due yet are ranked when they are."""
        due = self.arena.due.take(slots, mode="clip")
        flags = self.arena.flags.take(slots, mode="clip")
        here = (flags & NEAR != 0) & (due <= self.now_us)
        if here.any():
            order = np.lexsort((sequences[here], due[here]))
            self._rank(sequences[here][order], slots[here][order], due[here][order])

    def _complete(self) -> bool:
        """Whether all that is due is ranked: until then something more urgent may still come."""
        now_us, first_us = self.now_us, self.ready.first_due()
        passed = min(self.calendar.cursor_us, self.loaded_until_us) > now_us
        return passed and (first_us is None or first_us > now_us)

    # The ranked line

    def _rank_due(self) -> bool:
        """What has become due in the line by due time is ranked, a piece a call; True: more is."""
        if (first_us := self.ready.first_due()) is None or first_us > self.now_us:
            return False
        due, sequences = self.ready.take(_RANKED_PER_CALL, self.now_us)
        slots = self.ledger.slots(sequences)
        good = self.is_scheduled(slots) & self._holds_due(slots, due)
        if not every(good):
            sequences, slots, due = sequences[good], slots[good], due[good]
        self._rank(sequences, slots, due)
        first_us = self.ready.first_due()
        return first_us is not None and first_us <= self.now_us

    def _line_up(self, sequences: Int64s, due: Int64s) -> Int64s:
        if lowest(due) > self.now_us:
            return super()._line_up(sequences, due)
        due, sequences = sort_pairs(due, sequences)
        slots = self.ledger.slots(sequences)
        late = int(np.searchsorted(due, self.now_us, side="right"))
        self._rank(sequences[:late], slots[:late], due[:late])
        self.ready.push(due[late:], sequences[late:])
        return slots

    def _rank(self, sequences: Int64s, slots: Int64s, due: Int64s) -> None:
        """Enters rows that are due, sorted by due time and sequence, each once."""
        if not len(sequences):
            return
        ranks, priority = self._ranks(slots, due), self.arena.priority.take(slots, mode="clip")
        # numpy sorts numbers of 16 bits without comparing them, and in order they are already but
        # for that; with a guard this leaves a sorted run for each priority, which are merged.
        order = np.argsort(priority, kind="stable")
        ranks, sequences = ranks[order], sequences[order]
        if self._age_step_us or due[0] < self.base_us:
            ranks, sequences = sort_pairs(ranks, sequences, of_runs=True)
        self.ranked.push(ranks, sequences)

    def _ranks(self, slots: Int64s, due: Int64s) -> Int64s:
        priority = self.arena.priority.take(slots, mode="clip").astype(np.int64)
        if self._age_step_us:
            return np.minimum(due + priority * self._age_step_us, DUE_MAX_US)
        since = np.minimum(np.maximum(due - self.base_us, 0), _DUE_MASK)
        return priority << _DUE_BITS | since

    def _rank_of(self, slot: int, due_us: int) -> int:
        """The same of one row: the head of the line is asked for in every turn."""
        priority = int(self.arena.priority[slot])
        if self._age_step_us:
            return min(due_us + priority * self._age_step_us, DUE_MAX_US)
        return priority << _DUE_BITS | min(max(due_us - self.base_us, 0), _DUE_MASK)

    def _holds_rank(self, slots: Int64s, ranks: Int64s) -> NDArray[np.bool_]:
        """Which rows have the rank of their entry. With a guard one that was moved away may too."""
        due = self.arena.due.take(slots, mode="clip")
        return (self._ranks(slots, due) == ranks) & (due <= self.now_us)

    def _move_base(self) -> None:
        """Ranks count from one or two years ago: every year or so they are all made anew."""
        wanted_us = max(0, (self.now_us >> _BASE_STEP_BITS) - 2) << _BASE_STEP_BITS
        if self._age_step_us or wanted_us - self.base_us <= 1 << _BASE_STEP_BITS:
            return
        self.base_us = wanted_us
        sequences, due = self.resolve(distinct(self.ranked.drain()))
        if len(sequences):
            self._enter_ready(sequences, due)

    def _first_entries(self) -> Int64s:
        # By rank the oldest can stand anywhere: all of them where they are few.
        ranked = self.ranked
        few = ranked.entries <= _RANKED_PER_CALL
        return np.concatenate([self.ready.heads(), ranked.pairs()[1] if few else ranked.heads()])

    @property
    def size_bytes(self) -> int:
        """What both lines take, and the rest."""
        return super().size_bytes + self.ranked.entries * ENTRY_BYTES

    def _line_entries(self) -> int:
        return self.ready.entries + self.ranked.entries

    def _drain_line(self) -> Int64s:
        return np.concatenate([self.ready.drain(), self.ranked.drain()])


class PriorityPartition(Partition):
    """A partition whose rows have priorities. Only the sequencer's thread touches it."""

    times: RankedTimes

    def __init__(self, memory: Memory, topic: int, number: int, age_step_us: int) -> None:
        super().__init__(memory, topic, number)
        self.ledger.keep(PRIORITY)
        self.times = RankedTimes(memory, (topic, number), self.ledger, age_step_us)

    def restore_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """With their priorities; blocks in which all have 0 don't say so."""
        super().restore_rows(columns)
        slots = self.ledger.slots(columns["sequence"])
        self.arena.priority[slots] = columns.get(PRIORITY, 0)


class PriorityKind(TimelineKind):
    """Priority topics: messages by (priority, due, sequence)."""

    traits: ClassVar[Traits] = traits.PRIORITY
    in_transactions: ClassVar[tuple[type, ...]] = (*TimelineKind.in_transactions, Reprioritise)

    def make(self, topic: Topic) -> None:
        """Partitions that rank."""
        memory, age_step_us = self.state.memory, topic.settings.age_step_us
        topic.partitions = self.make_partitions(
            topic, lambda topic, number: PriorityPartition(memory, topic, number, age_step_us)
        )

    def handlers(self) -> dict[type, Handler]:
        """What a timeline understands, and other priorities."""
        return {**super().handlers(), Reprioritise: reprioritise}

    def events(self) -> dict[type[Event], Apply]:
        """Those that bring priorities."""
        return {
            PriorityProduced: self._produced,
            PriorityReplaced: self._replaced,
            Reprioritised: self._reprioritised,
        }

    def _produced(self, event: PriorityProduced, frame: int) -> None:
        self._applying.produced(event, frame, priority=event.priority)

    def _replaced(self, event: PriorityReplaced, frame: int) -> None:
        self._applying.replaced(event, frame, priority=event.priority)

    def _reprioritised(self, event: Reprioritised, _: int) -> None:
        partition = self.state.partition(event)
        assert isinstance(partition, PriorityPartition)
        slots = self.state.slots_of(partition, event.sequence)
        assert every(partition.states(slots) == codes.SCHEDULED), "only what is pending changes"
        partition.write(slots, priority=event.priority, version=event.version)
        partition.times.rerank(event.sequence, slots)
        # The entries by their former ranks are stale.
        self.state.memory.untidy.add(partition)
