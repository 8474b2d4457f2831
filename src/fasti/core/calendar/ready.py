"""Messages that are due or nearly so, in the order in which they will be handed out.

Most of them arrive in order: slices of the calendar come one after another, and what is produced
for "now" is later than what was before. These form the main line, a sequence of sorted chunks of
which each begins where the last ended. What comes below the end of the line (a late arrival, a
message given back) becomes a sorted run of its own beside it. `take` merges at the heads; a
backlog is never sorted again.

Entries are hints: a message may have been cancelled, moved or leased since, so whoever takes
entries checks each against its row.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.pairs import sort_pairs

Int64s = NDArray[np.int64]

# What an entry takes: when it is due, and what it is.
ENTRY_BYTES = 16
_LATE_RUNS = 8
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
        else:
            due, sequence = self._merge(sources, count)
        self._drop_empty()
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
        found = [run.peek(_HEAD_ROWS)[1] for run in runs]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def after(self, limit_us: int) -> Int64s:
        """Sequences of the entries due after the limit. They are few: the calendar's last slice."""
        found = []
        for run in [*self._late, *reversed(self._line)]:
            begin = int(np.searchsorted(run.due, limit_us, side="right"))
            found.append(run.sequence[max(begin, run.position) :])
        return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)

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
