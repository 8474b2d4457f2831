"""What all partitions of a shard share: the arena, the leases, names, marks and notes.

*Outcomes* are what became of finished messages, for those who ask later: remembered by age and count, as
the topic's settings say; what is older is forgotten and answers `gone`. Finishing is the hot path and
asking is rare, so rows are only appended, in chunks of 65,536, and a chunk is sorted the first time that
something is looked up in it.

*Marks* say which rows of run blocks are dead: finished, or moved to a newer place. A live message has
exactly one live row in runs, or its place in the journal. When it leaves a row, that row is marked, so
that a restart doesn't bring it back; a block whose rows are all marked can go, and one that is mostly
marked is worth rewriting. One bit a row, kept per block.

*Names* give numbers to names that many rows share: owners, consumers, reasons. Number 0 is the empty
name. Counted names are forgotten with their last use, so that workers with ever new names don't fill
the memory. Where names are whatever people write (reasons), there is a bound besides: beyond it new
ones are not kept, and `LEFT_OUT` stands for them.

*Undo* takes back what a transaction did, should its last command turn out to be impossible. While a
transaction is being decided, everything that changes state leaves a note there of how to put it back;
what can't be put back (a lease's slot that serves another message) waits until the transaction stands.
Entries in the time index are not taken back: they are hints that are checked. Only messages change in
transactions: topics, stages and leases are not opened there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import Agenda
from fasti.core.columns.reductions import every, some
from fasti.core.delivery.leases import LeaseTable
from fasti.core.numbered.book import CallBook
from fasti.core.producers import Producers
from fasti.core.rows.arena import FRAME_BITS, FRAME_BYTES, FRAMES_SPARE, Arena
from fasti.core.rows.location import is_in_run, number_of, row_of
from fasti.errors import Overloaded
from fasti.model import SECOND_US

Int64s = NDArray[np.int64]

_CHUNK_ROWS = 65_536
_CHUNK_ROWS_MIN = 64
# What is remembered of a message.
_ROW_BYTES = 17


class _Chunk:
    """Up to 65,536 finished messages in the order in which they finished."""

    def __init__(self, rows: int = _CHUNK_ROWS) -> None:
        self.sequence = np.empty(rows, dtype=np.int64)
        self.at_us = np.empty(rows, dtype=np.int64)
        self.state = np.empty(rows, dtype=np.uint8)
        self.filled = 0
        self._order: NDArray[np.intp] | None = None
        self._sorted: Int64s | None = None

    def append(self, sequences: Int64s, state: int, at_us: int) -> None:
        rows = slice(self.filled, self.filled + len(sequences))
        self.sequence[rows] = sequences
        self.at_us[rows] = at_us
        self.state[rows] = state
        self.filled += len(sequences)
        self._sorted = None

    def find(self, sequences: Int64s) -> NDArray[np.intp]:
        """The row of each sequence, or -1."""
        if self._sorted is None:
            self._order = np.argsort(self.sequence[: self.filled], kind="stable")
            self._sorted = self.sequence[self._order]
        assert self._order is not None
        if not self.filled:
            return np.full(len(sequences), -1, dtype=np.intp)
        place = np.searchsorted(self._sorted, sequences, side="right") - 1
        known = (place >= 0) & (self._sorted[place] == sequences)
        return np.where(known, self._order[place], -1)


class Outcomes:
    """The finished messages of one partition that are still remembered."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self.remembered = 0

    def remember(self, sequences: Int64s, state: int, at_us: int) -> None:
        """These finished at this moment."""
        self.remembered += len(sequences)
        while len(sequences):
            if not self._chunks or self._chunks[-1].filled == _CHUNK_ROWS:
                self._chunks.append(_Chunk(min(_CHUNK_ROWS, max(_CHUNK_ROWS_MIN, self.remembered))))
            chunk = self._chunks[-1]
            room = len(chunk.sequence) - chunk.filled
            if not room:
                self._chunks[-1] = self._enlarged(chunk)
                continue
            chunk.append(sequences[:room], state, at_us)
            sequences = sequences[room:]

    def take_back(self, count: int) -> None:
        """The last `count` did not finish after all: their transaction was void."""
        self.remembered -= count
        while count:
            chunk = self._chunks[-1]
            removed = min(count, chunk.filled)
            chunk.filled -= removed
            chunk._sorted = None
            count -= removed
            if not chunk.filled:
                self._chunks.pop()

    @property
    def size_bytes(self) -> int:
        """What it takes: full chunks, and the last one, which grows."""
        if not self._chunks:
            return 0
        room = len(self._chunks[-1].sequence) - self._chunks[-1].filled
        return (self.remembered + room) * _ROW_BYTES

    def find(self, sequences: Int64s, since_us: int) -> tuple[NDArray[np.uint8], Int64s]:
        """State and time of each (0 where forgotten), counting only what finished since then."""
        states = np.zeros(len(sequences), dtype=np.uint8)
        times = np.zeros(len(sequences), dtype=np.int64)
        for chunk in self._chunks:
            rows = chunk.find(sequences)
            places = np.flatnonzero(rows >= 0)
            places = places[chunk.at_us[rows[places]] >= since_us]
            states[places] = chunk.state[rows[places]]
            times[places] = chunk.at_us[rows[places]]
        return states, times

    def forget(self, before_us: int, count_max: int) -> None:
        """Drops whole chunks that are too old, or more than the setting allows."""
        while len(self._chunks) > 1:
            first = self._chunks[0]
            if first.at_us[first.filled - 1] >= before_us and (
                self.remembered - first.filled < count_max
            ):
                return
            self._chunks.popleft()
            self.remembered -= first.filled

    def columns(self) -> dict[str, NDArray[Any]]:
        """Everything remembered, in order, for a checkpoint."""
        names = ("sequence", "at_us", "state")
        return {
            name: np.concatenate([getattr(c, name)[: c.filled] for c in self._chunks])
            if self._chunks
            else np.zeros(0, dtype=np.int64)
            for name in names
        }

    def restore(self, columns: dict[str, NDArray[Any]]) -> None:
        """Back from `columns`."""
        sequence, at_us, state = columns["sequence"], columns["at_us"], columns["state"]
        self._chunks.clear()
        for begin in range(0, len(sequence), _CHUNK_ROWS):
            part = slice(begin, begin + _CHUNK_ROWS)
            chunk = _Chunk(len(sequence[part]))
            chunk.sequence[:], chunk.at_us[:] = sequence[part], at_us[part]
            chunk.state[:] = state[part]
            chunk.filled = len(chunk.sequence)
            self._chunks.append(chunk)
        self.remembered = len(sequence)

    def _enlarged(self, chunk: _Chunk) -> _Chunk:
        larger = _Chunk(min(_CHUNK_ROWS, len(chunk.sequence) * 2))
        for name in ("sequence", "at_us", "state"):
            getattr(larger, name)[: chunk.filled] = getattr(chunk, name)[: chunk.filled]
        larger.filled = chunk.filled
        return larger


_GATHERED_MAX = 65_536


class Marks:
    """Dead rows per block number."""

    def __init__(self) -> None:
        self._dead: dict[int, NDArray[np.uint8]] = {}
        self._rows: dict[int, int] = {}
        self._gathered: list[Int64s] = []
        self._gathered_rows = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add_block(self, number: int, rows: int, dead: NDArray[np.uint8] | None = None) -> None:
        """A block is in force from now on; `dead` is its bitmap, one byte for eight rows."""
        self._rows[number] = rows
        self._dead[number] = np.zeros((rows + 7) // 8, dtype=np.uint8) if dead is None else dead

    def remove_block(self, number: int) -> None:
        """The block is gone."""
        self.settle()
        del self._rows[number], self._dead[number]

    def kill(self, locations: Int64s) -> None:
        """The messages left these places. Those in the journal need no mark."""
        locations = locations[is_in_run(locations)]
        if len(locations):
            self._gathered.append(locations)
            self._gathered_rows += len(locations)
            if self._gathered_rows >= _GATHERED_MAX:
                self.settle()

    def revive(self, locations: Int64s) -> None:
        """Takes `kill` back: the transaction was void."""
        self.settle()
        for number, rows in _by_block(locations[is_in_run(locations)]):
            bits = np.unpackbits(self._dead[number], bitorder="little")
            bits[rows] = 0
            self._dead[number] = np.packbits(bits, bitorder="little")

    def settle(self) -> None:
        """Sorts what was gathered into the bitmaps."""
        if not self._gathered:
            return
        gathered = np.concatenate(self._gathered)
        self._gathered.clear()
        self._gathered_rows = 0
        for number, rows in _by_block(gathered):
            bitmap = self._dead.get(number)
            if bitmap is not None:
                np.bitwise_or.at(bitmap, rows >> 3, np.uint8(1) << (rows & 7).astype(np.uint8))

    def blocks(self) -> list[int]:
        """The blocks in force."""
        return sorted(self._rows)

    def rows(self, number: int) -> int:
        """How many rows a block has."""
        return self._rows[number]

    def dead(self, number: int) -> int:
        """How many of them are dead."""
        self.settle()
        return int(np.bitwise_count(self._dead[number]).sum())

    def bitmaps(self) -> dict[int, NDArray[np.uint8]]:
        """A copy of every bitmap that has a dead row, for a checkpoint."""
        self.settle()
        return {number: bits.copy() for number, bits in self._dead.items() if bits.any()}


def _by_block(locations: Int64s) -> list[tuple[int, Int64s]]:
    if not len(locations):
        return []
    ordered = np.sort(locations)
    numbers = number_of(ordered)
    starts = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
    pieces = np.split(row_of(ordered), starts[1:])
    return list(zip(numbers[starts].tolist(), pieces, strict=True))


# What a name costs beside its own bytes, about.
_NAME_BYTES = 192
LEFT_OUT = "(not kept: there are too many different reasons)"


class Names:
    """Names to numbers and back. Numbers mean nothing outside this process."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max, self.size_bytes = bytes_max, 0
        self._numbers: dict[str, int] = {"": 0}
        self._names: list[str | None] = [""]
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def number(self, name: str) -> int:
        """The number of a name, given if it is new."""
        known = self._numbers.get(name)
        if known is not None:
            return known
        size = _size(name)
        if self._bytes_max is not None and self.size_bytes + size > self._bytes_max:
            if name != LEFT_OUT:
                return self.number(LEFT_OUT)
        self.size_bytes += size
        if self._free:
            number = self._free.pop()
            self._names[number], self._uses[number] = name, 0
        else:
            number = len(self._names)
            self._names.append(name)
            self._uses.append(0)
        self._numbers[name] = number
        return number

    def find(self, name: str) -> int | None:
        """The number of a name that is in use."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """The name behind a number."""
        return self._names[number] or ""

    def __len__(self) -> int:
        """How many there are beside the empty one."""
        return len(self._numbers) - 1

    def look_up(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.object_]:
        """The names behind numbers; None behind 0."""
        distinct, places = np.unique(numbers, return_inverse=True)
        names = [self._names[number] or None for number in distinct.tolist()]
        return np.array(names, dtype=np.object_)[places]

    def use(self, number: int, count: int) -> None:
        """`count` more rows name it; with a negative count, fewer."""
        self._uses[number] += count
        if number and not self._uses[number]:
            name = self.name(number)
            del self._numbers[name]
            self.size_bytes -= _size(name)
            self._names[number] = None
            self._free.append(number)

    def unuse_all(self, numbers: NDArray[np.integer[Any]]) -> None:
        """One use fewer for each row's name."""
        if len(numbers) and every(numbers == numbers[0]):
            self.use(int(numbers[0]), -len(numbers))
            return
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self.use(int(number), -int(count))

    def restore(self, names: list[str]) -> None:
        """The same names under the same numbers; those without a name are free."""
        for number, name in enumerate(names[1:], start=1):
            self._names.append(name or None)
            self._uses.append(0)
            if name:
                self._numbers[name] = number
                self.size_bytes += _size(name)
            else:
                self._free.append(number)

    def all(self) -> list[str]:
        """Every name by its number, for translating a column of numbers."""
        return [name or "" for name in self._names]


def _size(name: str) -> int:
    return len(name.encode()) + _NAME_BYTES


class Undo:
    """Notes in order; `rollback` carries them out from the last to the first."""

    def __init__(self) -> None:
        self.active = False
        self._notes: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def begin(self) -> None:
        """From now on notes are taken."""
        assert not self.active, "transactions don't nest"
        self.active = True

    def note(self, restore: Callable[[], None]) -> None:
        """How to take the next change back."""
        if self.active:
            self._notes.append(restore)

    def when_settled(self, finish: Callable[[], None], restore: Callable[[], None]) -> None:
        """Carries `finish` out when the transaction stands: at once, if there is none."""
        if not self.active:
            finish()
            return
        self._waiting.append(finish)
        self._notes.append(restore)

    def once_settled(self, finish: Callable[[], None]) -> None:
        """The same for what leaves nothing to restore, should the transaction be void."""
        if self.active:
            self._waiting.append(finish)
        else:
            finish()

    def commit(self) -> None:
        """The transaction stands."""
        self.active = False
        self._notes.clear()
        for finish in self._waiting:
            finish()
        self._waiting.clear()

    def rollback(self) -> None:
        """The transaction never was."""
        self.active = False
        self._waiting.clear()
        while self._notes:
            self._notes.pop()()


# Some eighty thousand different ones of the usual length. The journal has every reason in full.
_REASONS_BYTES = 16 << 20


class Tidied(Protocol):
    """A partition, as the memory sees it."""

    def tidy(self) -> bool: ...


class Memory:
    """One per engine. `epoch` counts checkpoints; rows remember in which they last changed."""

    def __init__(self, budget_bytes: int, leases_max: int, producers_max: int = 100_000) -> None:
        # What may be used now, and at most: shards of one process lend to each other.
        self.budget_bytes = self.limit_bytes = budget_bytes
        # How often something was refused for it.
        self.refusals = 0
        self.arena = Arena(budget_bytes)
        self.producers = Producers(producers_max)
        self.calls = CallBook()
        # What the key indexes of all partitions take; their places in time, with all that finds
        # their rows; and what became of finished messages.
        self.keys_bytes = self.index_bytes = self.outcomes_bytes = 0
        # Topics with their partitions and bindings; where rows of logs lie; consumer groups.
        self.topics_bytes = self.logs_bytes = self.groups_bytes = 0
        # Staged rows beside their columns; schedules.
        self.stages_bytes = self.schedules_bytes = 0
        self.leases = LeaseTable(leases_max)
        self.owners = Names()
        self.consumers = Names()
        self.reasons = Names(_REASONS_BYTES)
        self.marks = Marks()
        self.undo = Undo()
        self.epoch = 1
        # What was trimmed of logs since the last checkpoint, which gives the space back.
        self.trimmed_bytes = 0
        # Partitions in which messages expire: (topic, partition).
        self.plans: Agenda[tuple[int, int]] = Agenda()
        # Partitions that have memory to give back.
        self.untidy: set[Tidied] = set()
        # By topic: the earliest due time of what became scheduled since the last look.
        self.news: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Everything that is remembered, as it is counted: running sums, whatever the allocator does."""
        return (
            self.arena.frames_used * FRAME_BYTES
            + self.keys_bytes
            + self.index_bytes
            + self.outcomes_bytes
            + self.leases.size_bytes
            + self.topics_bytes
            + self.logs_bytes
            + self.groups_bytes
            + self.producers.size_bytes
            + self.calls.size_bytes
            + self.stages_bytes
            + self.schedules_bytes
            + self._names_bytes
        )

    @property
    def _names_bytes(self) -> int:
        return self.owners.size_bytes + self.consumers.size_bytes + self.reasons.size_bytes

    def parts(self) -> dict[str, int]:
        """The same by what it is for."""
        return {
            "rows": self.arena.frames_used * FRAME_BYTES,
            "keys": self.keys_bytes,
            "index": self.index_bytes,
            "outcomes": self.outcomes_bytes,
            "leases": self.leases.size_bytes,
            "topics": self.topics_bytes,
            "logs": self.logs_bytes,
            "groups": self.groups_bytes,
            "producers": self.producers.size_bytes,
            "calls": self.calls.size_bytes,
            "stages": self.stages_bytes,
            "schedules": self.schedules_bytes,
            "names": self._names_bytes,
        }

    def close_leases(self, held: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """The leases of these messages are over, once that stands."""
        leases, consumers = self.leases, self.consumers
        assert every(leases.sequence[held] == sequences), "the lease is this message's"
        tokens = leases.token[held]
        leases.token[held] = 0

        def let_go() -> None:
            consumers.unuse_all(leases.consumer[held])
            leases.close(held)

        def take_back() -> None:
            leases.token[held] = tokens

        self.undo.when_settled(let_go, take_back)

    def use_reason(self, reason: str, rows: int) -> int:
        """The number of a reason that so many rows have from now on."""
        number = self.reasons.number(reason)
        self.reasons.use(number, rows)
        self.undo.note(lambda: self.reasons.use(number, -rows))
        return number

    def drop_reasons(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Rows have these reasons no more, once that stands."""
        if some(numbers):
            self.undo.once_settled(lambda: self.reasons.unuse_all(numbers))

    def require(self, needed_bytes: int, what: str) -> None:
        """Raises `overloaded` if the budget has no room for what a command would make it remember.

        Whatever gives memory back (acks, cancels, deletes) is never asked.
        """
        used_bytes = self.used_bytes
        if used_bytes + needed_bytes > self.budget_bytes:
            self.refusals += 1
            raise Overloaded(
                f"the memory budget is spent: there is no room for {what}; consume, cancel or "
                "delete something, or give the broker more (memory)",
                retry_after_us=SECOND_US,
                details={"memory_used": used_bytes, "memory": self.budget_bytes},
            )

    def require_rows(self, rows: int, partitions: int) -> None:
        """The same for rows that may go to any of so many partitions."""
        frames = (rows >> FRAME_BITS) + 2 * min(rows, partitions) + FRAMES_SPARE
        self.require(frames * FRAME_BYTES, "more messages")
        if frames > self.arena.frames_left:
            raise Overloaded(
                "the memory budget for pending messages is spent", retry_after_us=SECOND_US
            )

    def note_due(self, topic: int, due_us: int) -> None:
        """From this moment on there may be something to hand out that was not there before."""
        if due_us < self.news.get(topic, due_us + 1):
            self.news[topic] = due_us

    def names(self) -> dict[str, list[str]]:
        """Owners, consumers and reasons by the numbers that rows and leases have for them."""
        return {
            "owner": self.owners.all(),
            "consumer": self.consumers.all(),
            "reason": self.reasons.all(),
        }

    @property
    def epoch_byte(self) -> np.uint8:
        """The epoch as rows keep it. After 256 epochs a row may look changed that isn't."""
        return np.uint8(self.epoch & 0xFF)
