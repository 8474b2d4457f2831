"""One partition of a topic: its rows, its keys, its time index and its counts.

All changes to rows go through here, so that the rules that hold them together stand in one place:
counts per state equal what a scan would find, the histogram counts exactly the scheduled, a row
that a run holds is marked when it leaves, every change is noted for undo and for the next
checkpoint, and snapshots keep what they saw.

Rows change by `Partition`; which of them are due when, and go in which order, is `TimeIndex`. Kinds
that hand out in another order, or schedule only some of their rows, have an index of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import lifecycle
from fasti.core.agenda import FOREVER
from fasti.core.calendar.histogram import BUCKET_US, Histogram
from fasti.core.calendar.wheel import ENTRY_BYTES, Calendar, Ready
from fasti.core.columns import codes
from fasti.core.columns.hashing import UInt64s
from fasti.core.columns.index import HashIndex
from fasti.core.columns.reductions import distinct, every, highest, lowest, some, sort_pairs
from fasti.core.lifecycle import Verb
from fasti.core.rows.arena import CHANGED, EXPIRES, FRAME_BITS, MOMENT, NEAR, STATE_MASK, Ledger
from fasti.core.rows.memory import Memory, Outcomes
from fasti.core.timeline.expiries import Expiries
from fasti.model import SEQUENCE_MASK, State

Int64s = NDArray[np.int64]

# Sequences, slots, and what they were sorted by.
HandedOut = tuple[Int64s, Int64s, Int64s]
# Whether each row, by its slot, still has what its entry was sorted by.
Holds = Callable[[Int64s, Int64s], NDArray[np.bool_]]

# The objects that a partition is made of, about, before they hold anything.
PARTITION_BYTES = 6 << 10
NOBODY = np.zeros(0, dtype=np.int64)
_STALE_MIN = 65_536
# What begins anew has no moment any more, and what is dead has that of its death.
_FORGETS_EXPIRY = (Verb.REPLACE, Verb.REDRIVE, Verb.REJECT, Verb.EXHAUST, Verb.LAPSE)
# For one row: Python's numbers are quicker than numpy's.
_STATE, _NEAR = int(STATE_MASK), int(NEAR)
# A sequence that no message will ever have.
_NOBODY = SEQUENCE_MASK
_LIVE = np.zeros(8, dtype=np.bool_)
_LIVE[[State.SCHEDULED, State.LEASED, State.STAGED]] = True


class TimeIndex:
    """When the scheduled rows of a partition are due, and which of them go next.

    Entries are hints: a row that was changed leaves its entry behind, and what the row says counts.
    """

    def __init__(self, memory: Memory, place: tuple[int, int], ledger: Ledger) -> None:
        self._memory, self._place = memory, place
        self.arena, self.ledger = memory.arena, ledger
        self.calendar = Calendar(memory.epoch)
        self.ready = Ready()
        self.histogram = Histogram()
        # Rows that stand in the ready line (they have the NEAR bit).
        self.near = 0
        # When messages expire, from the first one on that does.
        self.expiries: Expiries | None = None
        # The time of the step that is under way, as far as somebody set it.
        self.now_us = 0
        # Rows of runs due before this are in memory; the cursor never passes it.
        self.loaded_until_us = FOREVER
        self.loading = False

    # Entries

    def schedule(self, sequences: Int64s, due: Int64s) -> None:
        """Rows that just became scheduled (again) take their place in time."""
        self.histogram.add(due)
        self._memory.undo.note(lambda: self.histogram.remove(due))
        self._enter(sequences, due)

    def unschedule(self, slots: Int64s, flags: NDArray[np.uint8]) -> None:
        """Rows that had these flags are scheduled no more. Their entries stay, and are stale."""
        due = self.arena.due.take(slots, mode="clip")
        self.histogram.remove(due)
        if len(flags) == 1:
            self.near -= int(flags[0]) >> 6 & 1
        else:
            self.near -= int(np.count_nonzero(flags & NEAR))
        self._memory.undo.note(lambda: self.histogram.add(due))

    def count_scheduled(self, due: Int64s) -> None:
        """Scheduled rows that were read back: storage brings their entries when they come near."""
        self.histogram.add(due)

    def count_near(self, slots: Int64s) -> int:
        """How many of these rows stand in the ready line."""
        return int(np.count_nonzero(self.arena.flags.take(slots, mode="clip") & NEAR))

    def restore_entries(self, sequences: Int64s, due: Int64s) -> None:
        """Entries that storage read back from runs; stale ones are dropped."""
        slots = self.ledger.slots(sequences)
        good = self.is_scheduled(slots) & self._holds_due(slots, due)
        self._enter(sequences[good], due[good])

    def is_scheduled(self, slots: Int64s) -> NDArray[np.bool_]:
        """Which of these rows are."""
        return self.arena.flags.take(slots, mode="clip") & STATE_MASK == codes.SCHEDULED

    def resolve(self, sequences: Int64s) -> tuple[Int64s, Int64s]:
        """Of entries, those that are scheduled, with their due times."""
        slots = self.ledger.slots(sequences)
        scheduled = self.is_scheduled(slots)
        if not every(scheduled):
            sequences, slots = sequences[scheduled], slots[scheduled]
        return sequences, self.arena.due.take(slots, mode="clip")

    def note_due(self, due_us: int) -> None:
        """From this moment on there may be something to hand out that was not there before."""
        self._memory.note_due(self._place[0], due_us)

    def need_expiries(self) -> Expiries:
        """A message expires, perhaps the first one that does."""
        if self.expiries is None:
            self.expiries = Expiries(self._memory, self._place, self.ledger)
        return self.expiries

    def _enter(self, sequences: Int64s, due: Int64s) -> None:
        if not len(due):
            return
        cursor_us, first_us = self.calendar.cursor_us, lowest(due)
        self.note_due(first_us)
        if first_us >= cursor_us:
            self.calendar.insert(sequences, due)
            return
        if highest(due) < cursor_us:
            self._enter_ready(sequences, due)
            return
        late = due < cursor_us
        self._enter_ready(sequences[late], due[late])
        self.calendar.insert(sequences[~late], due[~late])

    def _enter_ready(self, sequences: Int64s, due: Int64s) -> None:
        if not len(sequences):
            return
        slots = self._line_up(sequences, due)
        self.arena.before_write(slots)
        if len(slots) == 1:
            slot = int(slots[0])
            flag = int(self.arena.flags[slot])
            if not flag & _NEAR:
                self.arena.flags[slot] = flag | _NEAR
                self.near += 1
            return
        flags = self.arena.flags.take(slots, mode="clip")
        new = flags & NEAR == 0
        if not every(new):
            slots, flags = slots[new], flags[new]
        self.arena.flags[slots] = flags | NEAR
        self.near += len(slots)

    def _line_up(self, sequences: Int64s, due: Int64s) -> Int64s:
        """New entries, in any order, take their place in the line; their slots, each once."""
        due, sequences = sort_pairs(due, sequences)
        self.ready.push(due, sequences)
        return self.ledger.slots(sequences)

    # Handing out

    def advance(self, to_us: int) -> bool:
        """Brings what is due by `to_us` into the ready line; True if there is more to do.

        Nothing that runs hold and memory doesn't is ever passed: the caller asks for it.
        """
        to_us = min(to_us, self.loaded_until_us - 1)
        if to_us < self.calendar.cursor_us:
            return False
        (sequences, due), more = self.calendar.pull(to_us, self.resolve)
        self._enter_ready(sequences, due)
        return more

    def hand_out(self, count: int, limit_us: int) -> tuple[Int64s, Int64s, Int64s]:
        """Up to `count` scheduled rows due by the limit: (sequences, slots, due), in order."""
        return joined(self._collect(self.ready, count, self.reach(limit_us), self._holds_due))

    def _collect(self, line: Ready, count: int, limit: int, holds: Holds) -> list[HandedOut]:
        """Takes up to `count` entries of a line that still say what their rows say."""
        found: list[HandedOut] = []
        while count > 0:
            values, sequences = line.take(count, limit)
            if not len(sequences):
                break
            last = len(sequences) < count
            slots = self.ledger.slots(sequences)
            good = holds(slots, values)
            if len(slots) > 1:
                good &= self.is_scheduled(slots)
            elif int(self.arena.flags[slots[0]]) & _STATE != State.SCHEDULED:
                good[0] = False
            if self.expiries is not None:
                # Its time is over, and it dies as soon as its turn comes.
                good &= ~self.expiries.is_over(slots, self.now_us)
            if not every(good):
                sequences, slots, values = sequences[good], slots[good], values[good]
            if len(values) > 1 and some(sequences[1:] == sequences[:-1]):
                once = np.concatenate([[True], sequences[1:] != sequences[:-1]])
                sequences, slots, values = sequences[once], slots[once], values[once]
            if found and len(sequences) and found[-1][0][-1] == sequences[0]:
                sequences, slots, values = sequences[1:], slots[1:], values[1:]
            # A batch of nothing but stale entries leaves no trace here.
            if len(sequences):
                found.append((sequences, slots, values))
                count -= len(sequences)
            if last:
                break
        return found

    def _holds_due(self, slots: Int64s, due: Int64s) -> NDArray[np.bool_]:
        """Which rows are due when their entry says so."""
        return self.arena.due.take(slots, mode="clip") == due

    def reach(self, limit_us: int) -> int:
        """How far the ready line is complete: beyond, something may still come in between."""
        return min(limit_us, self.calendar.cursor_us - 1, self.loaded_until_us - 1)

    def head_us(self, limit_us: int) -> int | None:
        """When the first message is due that may be handed out; None if there is none."""
        while (first := self.ready.first()) is not None and first[0] <= self.reach(limit_us):
            due_us, sequence = first
            slot = self.ledger.slot(sequence)
            if self.arena.flags[slot] & STATE_MASK == codes.SCHEDULED:
                if int(self.arena.due[slot]) == due_us:
                    return due_us
            # Stale: it must not decide which partition has its turn.
            self.ready.take(1, due_us)
        return None

    def next_us(self) -> int:
        """When something may be due next; FOREVER if nothing is pending.

        What must be read from runs first doesn't count: its arrival is noted.
        """
        first, coming = self.ready.first_due(), self.calendar.next_us()
        if first is None or (coming is not None and coming < first):
            first = coming
        return FOREVER if first is None or first >= self.loaded_until_us else first

    def load_until(self, until_us: int) -> None:
        """Everything that runs hold is in memory now up to this moment."""
        if until_us > self.loaded_until_us:
            # What was in memory before, but beyond, may go out now.
            self.note_due(self.loaded_until_us)
            self.loaded_until_us = until_us

    def in_order(self, sequences: Int64s) -> Int64s:
        """Rows that are out, as they would be handed out; here their reader sorts them itself."""
        return sequences

    def ready_count(self, now_us: int) -> int:
        """How many scheduled messages are due. The caller has advanced to `now_us`."""
        # The cursor stands at the end of a slice, which may lie behind what was read from runs.
        if min(self.calendar.cursor_us, self.loaded_until_us) <= now_us:
            return self._scan_ready(now_us)
        later = self.ready.after(now_us)
        slots = self.ledger.slots(later)
        waiting = (self.arena.flags.take(slots, mode="clip") & NEAR != 0) & (
            self.arena.due.take(slots, mode="clip") > now_us
        )
        return self.near - int(waiting.sum())

    def oldest_ready_us(self, now_us: int) -> int:
        """When the oldest message that is due was due. The caller knows that there is one.

        Without a scan, so only to the minute where the first entries of the line are stale, or not
        in memory yet.
        """
        first_us = self.histogram.first_us() or 0
        slots = self.ledger.slots(self._first_entries())
        due = self.arena.due.take(slots, mode="clip")
        due = due[self.is_scheduled(slots) & (due <= now_us)]
        seen_us = lowest(due) if len(due) else first_us
        # The histogram is exact: something older lies behind what was looked at.
        return seen_us if seen_us < first_us + BUCKET_US else first_us

    def _scan_ready(self, now_us: int) -> int:
        # Only while rows that are due have not been read back from runs yet, after a start.
        total = 0
        for frame in self.ledger.frames().tolist():
            rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
            scheduled = self.arena.flags[rows] & STATE_MASK == State.SCHEDULED
            total += int((scheduled & (self.arena.due[rows] <= now_us)).sum())
        return total

    # Memory

    @property
    def size_bytes(self) -> int:
        """What it takes, stale entries included."""
        entries = self.calendar.entries * 8 + self.ready.entries * ENTRY_BYTES
        if self.expiries is not None:
            entries += self.expiries.entries * 8
        return entries + self.histogram.size_bytes

    def sweep(self, counts: Int64s) -> bool:
        """Drops stale entries where they outnumber the rows, a bounded piece; True if it did."""
        near = self._line_entries()
        if near + self.calendar.entries > 2 * int(counts[State.SCHEDULED]) + _STALE_MIN:
            if near > 2 * self.near + _STALE_MIN // 2:
                sequences, due = self.resolve(distinct(self._drain_line()))
                # Not "due before the cursor": of a slice that leaves the calendar in pieces, some
                # rows are here already although the cursor has not passed it.
                here = self.arena.flags.take(self.ledger.slots(sequences)) & NEAR != 0
                if here.any():
                    self._line_up(sequences[here], due[here])
            else:
                self.calendar.sweep(self.resolve)
            return True
        if self.expiries is None:
            return False
        live = int(counts[State.SCHEDULED] + counts[State.LEASED])
        if self.expiries.entries <= 2 * live + _STALE_MIN:
            return False
        self.expiries.sweep()
        return True

    def _line_entries(self) -> int:
        return self.ready.entries

    def _drain_line(self) -> Int64s:
        return self.ready.drain()

    def _first_entries(self) -> Int64s:
        return self.ready.heads()


class Partition:
    """State of one partition. Only the sequencer's thread touches it."""

    def __init__(self, memory: Memory, topic: int, number: int) -> None:
        self._memory = memory
        self.arena = memory.arena
        self.topic, self.number = topic, number
        self.ledger = Ledger(memory.arena)
        self.times = TimeIndex(memory, (topic, number), self.ledger)
        self.keys = HashIndex(self.keeps_key, wide=True)
        self.outcomes = Outcomes()
        self.counts = np.zeros(8, dtype=np.int64)
        # What the time index and outcomes took when they were last counted into the memory budget.
        self._index_bytes = self._outcomes_bytes = 0

    # Finding rows

    def states(self, slots: Int64s) -> NDArray[np.uint8]:
        """The state of each row."""
        return self.arena.flags.take(slots, mode="clip") & STATE_MASK

    def find_keys(self, hashes: UInt64s) -> Int64s:
        """The sequence that each key last named, dead or alive; 0 for none."""
        return self.keys.find(hashes[:, 0], hashes[:, 1])

    def is_live(self, sequences: Int64s) -> NDArray[np.bool_]:
        """Which of these are scheduled, leased, or published but not yet landed."""
        return _LIVE.take(self.states(self.ledger.slots(sequences)))

    def keeps_key(self, _: UInt64s, sequences: Int64s) -> NDArray[np.bool_]:
        """Which entries of the key index still mean something."""
        # The dead don't hold their key, but answer to it until somebody else has it.
        kept = self.states(self.ledger.slots(sequences)) != codes.NONE
        rest = np.flatnonzero(~kept)
        if len(rest):
            kept[rest] = self.outcomes.find(sequences[rest], 0)[0] != 0
        return kept

    # Changing rows

    def create(
        self, due: Int64s, locations: Int64s, owner: int, state: State, **columns: Any
    ) -> Int64s:
        """New rows for the next sequences, with further columns if given; returns the sequences."""
        first = self.ledger.next_sequence
        slots = self.ledger.append(len(due))
        arena, undo = self.arena, self._memory.undo
        arena.before_write(slots)
        arena.due[slots] = due
        arena.location[slots] = locations
        arena.version[slots] = 1
        arena.owner[slots] = owner
        arena.lease[slots] = 0
        arena.attempts[slots] = 0
        arena.epoch[slots] = self._memory.epoch_byte
        arena.flags[slots] = int(state)
        for name, values in columns.items():
            getattr(arena, name)[slots] = values
        if undo.active:
            undo.note(lambda: self.ledger.unappend(first, slots))
            undo.note(lambda: self._restore(slots, {"flags": 0}))
        sequences = np.arange(first, first + len(due), dtype=np.int64)
        self._count(State.NONE, state, len(due))
        if state == State.SCHEDULED:
            self.times.schedule(sequences, due)
        self._resized()
        return sequences

    def _resized(self) -> None:
        """Counts what it takes anew: once a batch, so some more or less is not counted at once."""
        index = self.times.size_bytes + self.ledger.size_bytes
        outcomes = self.outcomes.size_bytes
        memory = self._memory
        memory.index_bytes += index - self._index_bytes
        memory.outcomes_bytes += outcomes - self._outcomes_bytes
        self._index_bytes, self._outcomes_bytes = index, outcomes

    def write(self, slots: Int64s, **values: Any) -> None:
        """Sets columns of rows."""
        arena, undo = self.arena, self._memory.undo
        arena.before_write(slots)
        if undo.active:
            before = {
                name: getattr(arena, name)[slots].copy() for name in (*values, "flags", "epoch")
            }
            undo.note(lambda: self._restore(slots, before))
        for name, value in values.items():
            getattr(arena, name)[slots] = value
        if "flags" not in values:
            arena.flags[slots] |= CHANGED
        arena.epoch[slots] = self._memory.epoch_byte

    def relocate(self, slots: Int64s, locations: Int64s, **values: Any) -> None:
        """New payloads: the old places are dead."""
        self._kill(slots)
        self.write(slots, location=locations, **values)

    def turn(self, slots: Int64s, verb: Verb, **values: Any) -> None:
        """Takes rows, all in one state, along an edge of the life cycle."""
        flags = self.arena.flags.take(slots, mode="clip")
        source, target = lifecycle.advance_all(flags & STATE_MASK, verb)
        if source == State.SCHEDULED:
            self.times.unschedule(slots, flags)
            if self.times.size_bytes > 8 * _STALE_MIN:
                # So many entries that some may have to be swept.
                self._memory.untidy.add(self)
        became: Any = int(target) | int(CHANGED)
        if self.times.expiries is not None and verb not in _FORGETS_EXPIRY:
            became |= flags & EXPIRES
        self.write(slots, flags=became, **values)
        self._count(source, target, len(slots))

    def finish(self, sequences: Int64s, slots: Int64s, verb: Verb, at_us: int) -> None:
        """Rows end here: done, cancelled or purged. What became of them is remembered."""
        flags = self.arena.flags.take(slots, mode="clip")
        source, target = lifecycle.advance_all(flags & STATE_MASK, verb)
        if source == State.SCHEDULED:
            self.times.unschedule(slots, flags)
        self._kill(slots)
        self.arena.before_write(slots)
        self.arena.flags[slots] = codes.NONE
        undo = self._memory.undo
        undo.note(lambda: self._restore(slots, {"flags": flags}))
        self.ledger.finish(sequences, slots)
        self._memory.untidy.add(self)
        self._count(source, target, len(sequences))
        remembered = target if target != State.NONE else source
        undo.note(lambda: self.ledger.finish(sequences, slots, sign=1))
        if remembered != State.STAGED:
            self.outcomes.remember(sequences, remembered, at_us)
            undo.note(lambda: self.outcomes.take_back(len(sequences)))

    def set_expiry(self, sequences: Int64s, slots: Int64s, moments: Int64s, at_us: int) -> None:
        """Live rows expire at these moments; 0: never."""
        self.ledger.keep(MOMENT)
        flags = self.arena.flags.take(slots, mode="clip")
        given = moments != 0
        # The NEAR bit stays with the row: what is undone, `_restore` counts.
        became = np.where(given, flags | EXPIRES, flags & ~EXPIRES) | CHANGED
        self.write(slots, moment=moments, flags=became)
        self.times.need_expiries().plan(sequences[given], slots[given], at_us)

    def claim_keys(self, hashes: UInt64s, sequences: Int64s, new: bool = False) -> None:
        """The keys (0: none) name these messages from now on. `new`: the index has none of them."""
        given = hashes[:, 0] != 0
        if not given.all():
            hashes, sequences = hashes[given], sequences[given]
        if not len(sequences):
            return
        if self._memory.undo.active:
            before = self.find_keys(hashes)
            # An entry can't be taken out of the index again: it names nobody. Not 0, because
            # that would look as if the key had no entry, and it would get a second one.
            before[before == 0] = _NOBODY
            self._memory.undo.note(lambda: self.keys.put(hashes[:, 0], before, hashes[:, 1]))
        before_bytes = self.keys.size_bytes
        self.keys.put(hashes[:, 0], sequences, hashes[:, 1], new=new)
        self._memory.keys_bytes += self.keys.size_bytes - before_bytes

    def unclaim_keys(self, hashes: UInt64s, before: Int64s) -> None:
        """The keys name again what they named before (0: nobody)."""
        self.keys.put(hashes[:, 0], np.where(before == 0, _NOBODY, before), hashes[:, 1])

    def _kill(self, slots: Int64s) -> None:
        if not self._memory.marks:
            return
        locations = self.arena.location.take(slots, mode="clip")
        self._memory.marks.kill(locations)
        self._memory.undo.note(lambda: self._memory.marks.revive(locations))

    def _count(self, source: State, target: State, rows: int) -> None:
        self.counts[source] -= rows
        self.counts[target] += rows
        self._memory.undo.note(lambda: self._count(target, source, rows))

    def _restore(self, slots: Int64s, before: dict[str, Any]) -> None:
        # The count of near rows follows their bits, which come back with the flags.
        self.times.near -= self.times.count_near(slots)
        for name, values in before.items():
            getattr(self.arena, name)[slots] = values
        self.times.near += self.times.count_near(slots)

    # Opening, tidying and closing

    def restore_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """Rows that storage read back, as they were at a checkpoint; a later row wins."""
        sequences = columns["sequence"]
        known = self.states(self.ledger.slots(sequences)) != codes.NONE
        if not known.all():
            self.ledger.place(sequences[~known])
        slots = self.ledger.slots(sequences)
        for name in ("due", "location", "version", "owner", "lease", "attempts"):
            getattr(self.arena, name)[slots] = columns[name]
        if MOMENT in columns and some(columns[MOMENT]):
            self.ledger.keep(MOMENT)
            self.arena.moment[slots] = columns[MOMENT]
        flags = columns["flags"]
        if MOMENT in columns:
            expires = (columns[MOMENT] != 0) & (flags & STATE_MASK != State.DEAD)
            flags = np.where(expires, flags | EXPIRES, flags)
            if some(expires):
                self.times.need_expiries().add(sequences[expires], columns[MOMENT][expires], 0)
        self.arena.flags[slots] = flags

    def recount(self) -> None:
        """Works out what is derived from the rows: counts and forecast."""
        self.counts[[State.SCHEDULED, State.LEASED, State.DEAD, State.STAGED]] = 0
        for frame in self.ledger.frames().tolist():
            rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
            states = self.arena.flags[rows] & STATE_MASK
            self.counts += np.bincount(states, minlength=8) * (np.arange(8) != State.NONE)
            self.times.count_scheduled(self.arena.due[rows][states == State.SCHEDULED])
        self._memory.keys_bytes += self.keys.size_bytes
        self._resized()

    def tidy(self) -> bool:
        """Gives memory back, a bounded piece a call; True if there may be more."""
        more = self.ledger.tidy()
        if self.keys.is_rebuilding:
            before_bytes = self.keys.size_bytes
            more |= self.keys.tidy()
            self._memory.keys_bytes += self.keys.size_bytes - before_bytes
        more |= self.times.sweep(self.counts)
        self._resized()
        return more

    def release(self) -> None:
        """The topic is gone: so are all its rows."""
        self._memory.plans.drop((self.topic, self.number))
        for frame in self.ledger.frames().tolist():
            rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
            states = self.arena.flags[rows] & STATE_MASK
            self._memory.marks.kill(self.arena.location[rows][states != State.NONE])
            # A leased one's reason went with its lease.
            named = (states == State.DEAD) | (states == State.SCHEDULED)
            self._memory.reasons.unuse_all(self.arena.lease[rows][named])
        self.ledger.release()
        self._memory.keys_bytes -= self.keys.size_bytes
        self._memory.index_bytes -= self._index_bytes
        self._memory.outcomes_bytes -= self._outcomes_bytes
        # It may still be noted as one that has memory to give back.
        self._memory.untidy.discard(self)


def joined(found: list[HandedOut]) -> HandedOut:
    """What several takes gave, as one."""
    if len(found) == 1:
        return found[0]
    parts = list(zip(*found, strict=True)) if found else [(NOBODY,), (NOBODY,), (NOBODY,)]
    return tuple(np.concatenate(part) for part in parts)  # type: ignore[return-value]
