"""The time index: slices of time, coarse far away and fine nearby, sorted only when near.

A hierarchical timing wheel. Level 0 has slices of 16 ms, and each level's slices are 64 times as
long as those below. A message stands on the lowest level where its slice differs from the
cursor's: what is due within the cursor's second on level 0, within its minute on level 1, and so
on up to millennia, so that a batch touches at most 64 slices a level. When the cursor enters a
slice, its entries are spread over the level below; when a whole slice is past, it goes to the
ready line at once, unless it has so many entries that they would go in several pieces: each piece would
have to be merged with the others at every hand-out, while slices that are sorted whole follow one another.
Entries are sequences only: the due time is read from the row when needed.

The *ready line* has the messages that are due or nearly so, in the order in which they will be handed
out. Most of them arrive in order: slices come one after another, and what is produced for "now" is
later than what was before. These form the main line, a sequence of sorted chunks of which each begins
where the last ended. What comes below the end of the line (a late arrival, a message given back)
becomes a sorted run of its own beside it. `take` merges at the heads, more than is asked for where there
are many runs, and what is left over is the new beginning of the line; a backlog is never sorted again.

Entries are hints: a message may have been cancelled, moved or leased since, so what takes entries
checks each against its row. A cancelled or moved message leaves its entry behind, and
`resolve` (the partition's) drops it when the slice comes near; should stale entries outnumber the
living before that, `sweep` goes through the slices one by one.

Entries of a generation that a checkpoint has written to runs can be dropped as a whole
(`forget`): they are read back from the runs before they are due.

Work is bounded: at most 65,536 entries a call; `pull` says whether there is more to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import distinct, sort_pairs

Int64s = NDArray[np.int64]
Resolve = Callable[[Int64s], tuple[Int64s, Int64s]]

SHIFTS = (14, 20, 26, 32, 38, 44, 50, 56)
ROWS_PER_CALL = 65_536
_CHUNK_FIRST = 64
_CHUNK_MAX = 16_384
_NONE = np.zeros(0, dtype=np.int64)


class _Slice:
    """Unsorted entries, in chunks that each belong to one generation."""

    __slots__ = ("_chunk", "_filled", "_full", "_generation", "_unswept", "entries")

    def __init__(self) -> None:
        self.entries = 0
        self._full: list[tuple[int, Int64s]] = []
        self._chunk = np.empty(_CHUNK_FIRST, dtype=np.int64)
        self._filled = 0
        self._generation = 0
        # How many of the first full chunks a sweep has not come to yet; 0: none is under way.
        self._unswept = 0

    def append(self, sequences: Int64s, generation: int) -> None:
        self.entries += len(sequences)
        if generation != self._generation or self._filled + len(sequences) > len(self._chunk):
            self._seal()
            self._generation = generation
            if len(sequences) >= _CHUNK_MAX:
                self._full.append((generation, sequences))
                return
            size = max(len(sequences), min(_CHUNK_MAX, max(_CHUNK_FIRST, self.entries)))
            self._chunk = np.empty(size, dtype=np.int64)
        self._chunk[self._filled : self._filled + len(sequences)] = sequences
        self._filled += len(sequences)

    def take(self, count: int) -> Int64s:
        """Removes about `count` entries (at least a chunk, or all)."""
        self._seal()
        taken: list[Int64s] = []
        while self._full and count > 0:
            _, chunk = self._full.pop()
            taken.append(chunk)
            count -= len(chunk)
        self._unswept = min(self._unswept, len(self._full))
        self.entries -= sum(len(chunk) for chunk in taken)
        return np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)

    def forget(self, generation: int) -> None:
        self._seal()
        self._full = [(its, chunk) for its, chunk in self._full if its > generation]
        self._unswept = 0
        self.entries = sum(len(chunk) for _, chunk in self._full)

    def sweep(self, keep: Callable[[Int64s], Int64s], count: int) -> tuple[int, bool]:
        """Goes through about `count` more entries: (how many they were, whether there are more).

        What is kept stands behind the others, so the next round finds what two pieces have in common.
        """
        if not self._unswept:
            self._seal()
            self._unswept = len(self._full)
        by_generation: dict[int, list[Int64s]] = {}
        swept = chunks = 0
        while chunks < self._unswept and swept < count:
            its, chunk = self._full[chunks]
            by_generation.setdefault(its, []).append(chunk)
            swept += len(chunk)
            chunks += 1
        remaining = [(its, keep(np.concatenate(parts))) for its, parts in by_generation.items()]
        kept = [(its, chunk) for its, chunk in remaining if len(chunk)]
        self._full = [*self._full[chunks:], *kept]
        self._unswept -= chunks
        self.entries -= swept - sum(len(chunk) for _, chunk in kept)
        return swept, self._unswept > 0

    def _seal(self) -> None:
        if self._filled:
            chunk = self._chunk
            if self._filled < len(chunk) * 3 // 4:
                chunk = chunk[: self._filled].copy()
            self._full.append((self._generation, chunk[: self._filled]))
        self._chunk = np.empty(0, dtype=np.int64)
        self._filled = 0


class Calendar:
    """Entries of one partition that are due at or after the cursor."""

    def __init__(self, generation: int = 1) -> None:
        self._levels: list[dict[int, _Slice]] = [{} for _ in SHIFTS]
        self._sweep_order: Iterator[tuple[int, int]] = iter(())
        # The slice that a sweep has begun with and not finished.
        self._sweeping: tuple[int, int] | None = None
        # Everything due before the cursor has left for the ready line.
        self.cursor_us = 0
        self.generation = generation
        self.entries = 0

    def begin_at(self, now_us: int) -> None:
        """While nothing stands here the cursor follows the time, so that slices stay fine."""
        if not self.entries:
            self.cursor_us = max(self.cursor_us, now_us >> SHIFTS[0] << SHIFTS[0])

    def insert(self, sequences: Int64s, due: Int64s) -> None:
        """Adds entries due at or after the cursor."""
        if not len(due):
            return
        self.entries += len(due)
        if len(due) == 1:
            self._insert_one(sequences, int(due[0]))
            return
        high = int(due.max())
        for level in range(len(SHIFTS) - 1, 0, -1):
            mine = self.cursor_us >> SHIFTS[level]
            if high >> SHIFTS[level] == mine:
                continue
            slices = due >> SHIFTS[level]
            far = slices != mine
            if far.all():
                self._spread(level, slices, sequences)
                return
            self._spread(level, slices[far], sequences[far])
            near = ~far
            sequences, due = sequences[near], due[near]
            high = int(due.max())
        self._spread(0, due >> SHIFTS[0], sequences)

    def _insert_one(self, sequences: Int64s, due_us: int) -> None:
        """Adds one entry: most messages come alone, and numpy takes ten times as long for one."""
        level = len(SHIFTS) - 1
        while level and due_us >> SHIFTS[level] == self.cursor_us >> SHIFTS[level]:
            level -= 1
        number = due_us >> SHIFTS[level]
        piece = self._levels[level].get(number)
        if piece is None:
            piece = self._levels[level][number] = _Slice()
        piece.append(sequences, self.generation)

    def pull(self, to_us: int, resolve: Resolve) -> tuple[tuple[Int64s, Int64s], bool]:
        """Moves on towards `to_us`: (sequences, due) that left, and whether there is more to do.

        All entries due up to `to_us` have left when the answer says that there is no more; the
        cursor then stands behind `to_us`. Until then it only covers what has left entirely.
        """
        gone: list[Int64s] = []
        if not self.entries:
            self._pass(to_us)
            return (_NONE, _NONE), False
        reach_us = self.cursor_us
        budget = ROWS_PER_CALL
        more = True
        while budget > 0 and more:
            place = self._next_until(to_us)
            if place is None:
                self._pass(to_us)
                more = self._entered() is not None
                continue
            level, number = place
            entries = self._levels[level][number].entries
            if budget < entries <= ROWS_PER_CALL:
                break  # Whole in the next call, so that it is sorted whole.
            end_us = (number + 1) << SHIFTS[level]
            # What was spread in part, or came when the cursor had entered, stands below.
            spread = level and (entries > ROWS_PER_CALL or any(self._levels[:level]))
            self.cursor_us = max(self.cursor_us, number << SHIFTS[level])
            taken, left = self._take(level, number, budget)
            budget -= len(taken) + 64
            if spread or (level and end_us > to_us):
                self._descend(level, number, taken, resolve)
                continue
            gone.append(taken)
            reach_us = max(reach_us, end_us)
            if not left:
                self.cursor_us = max(self.cursor_us, end_us)
        if not gone:
            return (_NONE, _NONE), more
        sequences, due = resolve(np.concatenate(gone))
        # What was moved beyond has an entry there.
        here = due < reach_us
        return (sequences[here], due[here]), more

    def next_us(self) -> int | None:
        """No entry is due before this moment; None if there is no entry."""
        first = self._first()
        return None if first is None else first[1] << SHIFTS[first[0]]

    def forget(self, generation: int, from_us: int) -> None:
        """Drops the entries of generations up to this one in slices that begin at `from_us`."""
        for level, slices in enumerate(self._levels):
            for number in [n for n in slices if n << SHIFTS[level] >= from_us]:
                piece = slices[number]
                self.entries -= piece.entries
                piece.forget(generation)
                self.entries += piece.entries
                if not piece.entries:
                    del slices[number]

    def sweep(self, resolve: Resolve) -> None:
        """Drops the stale entries of about 65,536: the next slices, round and round, a large one in
        pieces.
        """
        budget = ROWS_PER_CALL
        while budget > 0:
            place = self._sweeping or next(self._sweep_order, None)
            if place is None:
                places = [(level, n) for level, known in enumerate(self._levels) for n in known]
                self._sweep_order = iter(places)
                return
            self._sweeping = None
            piece = self._levels[place[0]].get(place[1])
            if piece is not None:
                self.entries -= piece.entries
                swept, more = piece.sweep(partial(self._still_in, place, resolve), budget)
                self.entries += piece.entries
                budget -= swept
                if not piece.entries:
                    del self._levels[place[0]][place[1]]
                elif more:
                    self._sweeping = place

    def _still_in(self, place: tuple[int, int], resolve: Resolve, entries: Int64s) -> Int64s:
        """Of a slice's entries those whose message is due there, each once."""
        sequences, due = resolve(distinct(entries))
        return sequences[due >> SHIFTS[place[0]] == place[1]]

    def _first(self) -> tuple[int, int] | None:
        """Level and number of the earliest slice. One that the cursor has entered comes first."""
        entered = self._entered()
        if entered is not None:
            return entered
        for level, slices in enumerate(self._levels):
            if slices:
                return level, min(slices)
        return None

    def _next_until(self, to_us: int) -> tuple[int, int] | None:
        """The next slice to work on: one that the cursor has entered, or that begins in time."""
        first = self._first()
        if first is None or first[1] << SHIFTS[first[0]] <= max(to_us, self.cursor_us):
            return first
        return None

    def _take(self, level: int, number: int, count: int) -> tuple[Int64s, int]:
        """Removes entries of a slice: (some of them, how many are left)."""
        piece = self._levels[level][number]
        entries = piece.take(count)
        self.entries -= len(entries)
        if not piece.entries:
            del self._levels[level][number]
        return entries, piece.entries

    def _entered(self) -> tuple[int, int] | None:
        for level in range(len(SHIFTS) - 1, 0, -1):
            number = self.cursor_us >> SHIFTS[level]
            if number in self._levels[level]:
                return level, number
        return None

    def _descend(self, level: int, number: int, entries: Int64s, resolve: Resolve) -> None:
        """Spreads entries of a slice that the cursor has entered over the levels below."""
        sequences, due = resolve(entries)
        # A moved message whose old entry this is stands where it was moved to.
        here = due >> SHIFTS[level] == number
        self.insert(sequences[here], due[here])

    def _pass(self, to_us: int) -> None:
        self.cursor_us = max(self.cursor_us, ((to_us >> SHIFTS[0]) + 1) << SHIFTS[0])

    def _spread(self, level: int, slices: Int64s, sequences: Int64s) -> None:
        low = int(slices.min())
        span = int(slices.max()) - low
        known = self._levels[level]
        if span == 0:
            known.setdefault(low, _Slice()).append(sequences, self.generation)
            return
        kind = np.uint8 if span < 256 else np.uint16 if span < 65_536 else np.int64
        order = np.argsort((slices - low).astype(kind), kind="stable")
        ordered, sequences = slices[order], sequences[order]
        bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        starts = [0, *bounds.tolist()]
        ends = [*starts[1:], len(ordered)]
        for number, start, end in zip(ordered[starts].tolist(), starts, ends, strict=True):
            piece = known.get(number)
            if piece is None:
                piece = known[number] = _Slice()
            piece.append(sequences[start:end], self.generation)


# What an entry takes: when it is due, and what it is.
ENTRY_BYTES = 16
_LATE_RUNS = 8
# Where more runs than this are merged, as many rows as this are: what each run costs, whatever is taken of
# it, is shared by them all.
_MERGED_AT_ONCE = 2
_MERGED_AHEAD_ROWS = 16_384
_MERGED_ROWS_MAX = 65_536
# What `heads` looks at: so many runs, and so many entries of each.
_HEAD_RUNS = 64
_HEAD_ROWS = 256


class _Run:
    """Sorted entries, how many of them are taken already, and the first that isn't."""

    __slots__ = ("due", "head", "position", "sequence")

    def __init__(self, due: Int64s, sequence: Int64s) -> None:
        self.due, self.sequence, self.position = due, sequence, 0
        self.head = int(due[0]), int(sequence[0])

    def __len__(self) -> int:
        return len(self.due) - self.position

    def until(self, limit_us: int, count: int) -> int:
        """How many of the next `count` are due at or before the limit."""
        end = min(self.position + count, len(self.due))
        if self.due[end - 1] <= limit_us:
            return end - self.position
        return int(self.due[self.position : end].searchsorted(limit_us, side="right"))

    def rank(self, number: int) -> int:
        """When the last of so many is due."""
        return int(self.due[self.position + number - 1])

    def move(self, count: int) -> None:
        """So many more are taken."""
        self.position += count
        if self.position < len(self.due):
            self.head = int(self.due[self.position]), int(self.sequence[self.position])

    def peek(self, count: int) -> tuple[Int64s, Int64s]:
        rows = slice(self.position, self.position + count)
        return self.due[rows], self.sequence[rows]


class Ready:
    """The entries of one partition."""

    def __init__(self) -> None:
        self._line: deque[_Run] = deque()
        self._late: list[_Run] = []
        self.entries = 0

    def push(self, due: Int64s, sequence: Int64s) -> None:
        """Adds entries, sorted by (due, sequence)."""
        if not len(due):
            return
        self.entries += len(due)
        run = _Run(due, sequence)
        if not self._line or self._follows(run):
            self._line.append(run)
            return
        self._late.append(run)
        short = [run for run in self._late if len(run) <= _MERGED_ROWS_MAX // 2]
        if len(short) > _LATE_RUNS:
            self._merge_late(sorted(short, key=len))

    def take(self, count: int, limit_us: int) -> tuple[Int64s, Int64s]:
        """Removes and returns up to `count` first entries that are due by the limit."""
        sources = self._heads(count, limit_us)
        if not sources:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if len(sources) == 1:
            run, number = sources[0]
            due, sequence = run.peek(number)
            run.move(number)
            self.entries -= number
            self._drop_empty()
        elif len(sources) <= _MERGED_AT_ONCE or count >= _MERGED_AHEAD_ROWS:
            due, sequence = self._merge(sources, count)
            self._drop_empty()
        else:
            due, sequence = self._merge_ahead(count, limit_us)
        return due, sequence

    def first(self) -> tuple[int, int] | None:
        """Due time and sequence of the first entry."""
        heads = [run.head for run in self._late]
        if self._line:
            heads.append(self._line[0].head)
        return min(heads, default=None)

    def first_due(self) -> int | None:
        """The due time of the first entry."""
        first = self.first()
        return None if first is None else first[0]

    def heads(self) -> Int64s:
        """Sequences of some first entries of each run, of which some may be stale. Bounded."""
        runs = [*list(self._line)[:1], *self._late[:_HEAD_RUNS]]
        heads = [run.peek(_HEAD_ROWS)[1] for run in runs]
        return np.concatenate(heads) if heads else np.zeros(0, dtype=np.int64)

    def after(self, limit_us: int) -> Int64s:
        """Sequences of the entries due after the limit. They are few: the calendar's last slice."""
        parts = []
        for run in [*self._late, *reversed(self._line)]:
            begin = int(np.searchsorted(run.due, limit_us, side="right"))
            parts.append(run.sequence[max(begin, run.position) :])
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)

    def pairs(self) -> tuple[Int64s, Int64s]:
        """Copies of all entries, in no particular order: (due, sequence)."""
        parts = [run.peek(len(run)) for run in [*self._line, *self._late]]
        if not parts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return np.concatenate([due for due, _ in parts]), np.concatenate([s for _, s in parts])

    def drain(self) -> Int64s:
        """Removes everything and returns the sequences: stale entries are being swept out."""
        runs = [*self._line, *self._late]
        self._line.clear()
        self._late.clear()
        self.entries = 0
        left = [run.sequence[run.position :] for run in runs]
        return np.concatenate(left) if left else np.zeros(0, dtype=np.int64)

    def _follows(self, run: _Run) -> bool:
        last = self._line[-1]
        return run.head > (int(last.due[-1]), int(last.sequence[-1]))

    def _heads(self, count: int, limit_us: int) -> list[tuple[_Run, int]]:
        """The runs that may hold some of the next `count`, and how many each."""
        late = [run for run in self._late if run.head[0] <= limit_us]
        if late and self._line and len(self._line[0]) >= count:
            # Mostly the next ones have been merged before.
            last_us = self._line[0].rank(count)
            late = [run for run in late if run.head[0] <= last_us]
        if late and self._line:
            # A nearer limit mostly has enough of them, and keeps the merge from sorting several
            # times what is asked for: where runs lie side by side, some rows of each; where one
            # lies behind the other, as many as are asked for of the first.
            runs = [self._line[0], *late]
            some = count * 5 // (4 * len(runs)) + 16
            for rows in (some, 2 * some, count):
                near = [run.rank(rows) for run in runs if len(run) >= rows]
                if not near:
                    break
                heads = self._heads_until(count, min(limit_us, *near), late)
                if sum(number for _, number in heads) >= count:
                    return heads
        return self._heads_until(count, limit_us, late)

    def _heads_until(self, count: int, limit_us: int, late: list[_Run]) -> list[tuple[_Run, int]]:
        heads: list[tuple[_Run, int]] = []
        missing = count
        for run in self._line:
            number = run.until(limit_us, missing)
            if number:
                heads.append((run, number))
            missing -= number
            if not missing or number < len(run):
                break
        if not missing and late:
            run, number = heads[-1]
            limit_us = int(run.due[run.position + number - 1])
        heads += [(run, run.until(limit_us, count)) for run in late if run.head[0] <= limit_us]
        return heads

    def _merge_ahead(self, count: int, limit_us: int) -> tuple[Int64s, Int64s]:
        """The first `count`; those behind them that were merged too come before all others."""
        sources = self._heads(_MERGED_AHEAD_ROWS, limit_us)
        due, sequence = self._merge(sources, _MERGED_AHEAD_ROWS)
        self._drop_empty()
        if len(due) > count:
            self._line.appendleft(_Run(due[count:], sequence[count:]))
            self.entries += len(due) - count
        return due[:count], sequence[:count]

    def _merge(self, sources: list[tuple[_Run, int]], count: int) -> tuple[Int64s, Int64s]:
        peeked = [run.peek(number) for run, number in sources]
        due, sequence = sort_pairs(
            np.concatenate([part[0] for part in peeked]),
            np.concatenate([part[1] for part in peeked]),
            of_runs=True,
        )
        due, sequence = due[:count], sequence[:count]
        last_us, last = due[-1], sequence[-1]
        for (run, _), (its_due, its_sequence) in zip(sources, peeked, strict=True):
            begin = int(its_due.searchsorted(last_us))
            if begin < len(its_due) and its_due[begin] == last_us:
                end = int(its_due.searchsorted(last_us, side="right"))
                begin += int(its_sequence[begin:end].searchsorted(last, side="right"))
            run.move(begin)
            self.entries -= begin
        return due, sequence

    def _drop_empty(self) -> None:
        while self._line and not len(self._line[0]):
            self._line.popleft()
        if any(not len(run) for run in self._late):
            self._late = [run for run in self._late if len(run)]
        if self._late and not self._line:
            # What comes may follow it, and it tells how far to look into the others.
            longest = max(self._late, key=len)
            self._late.remove(longest)
            self._line.append(longest)

    def _merge_late(self, short: list[_Run]) -> None:
        """The shortest runs become one: as many as are about as long as those before together.

        So a row is merged again only into something much longer, and never in long work.
        """
        chosen, rows = short[:2], len(short[0]) + len(short[1])
        for run in short[2:]:
            if len(run) > 2 * rows or rows + len(run) > _MERGED_ROWS_MAX:
                break
            chosen.append(run)
            rows += len(run)
        parts = [run.peek(len(run)) for run in chosen]
        due, sequence = sort_pairs(
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            of_runs=True,
        )
        self.entries -= rows - len(due)
        self._late = [run for run in self._late if run not in chosen]
        self._late.append(_Run(due, sequence))
