"""Batches on their way to a broker: in order, each carried out once, whatever the connection does.

A producer numbers its batches; up to eight are under way without a receipt. When the connection is
lost, those are written again under their old numbers, and the broker answers what it has carried out
already from its receipts. A batch that was refused because the broker is full is written again after
the time it asked for. A batch that can't be carried out at all (or not before its deadline) fails
alone; if it may have been carried out, its number could be taken for the next one's, so the rest goes
on under a new producer's name, and those that may have been carried out too fail as `unknown`.

The shell calls `poll` whenever it was woken or its wait is over, and does what the `Step` says. After
each call it ends the stream if `connected` is false, and wakes the sending thread if `work` is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa

from fasti.client.pauses import PASSING, pause_s
from fasti.errors import FastiError, OutcomeUnknown, TimedOut, UnknownProducer
from fasti.protocol.schemas import PRODUCE_TYPES


class Parcel:
    """A batch on its way to the broker: rows in columns, one receipt for all of them.

    It is filled in steps of the machine until it is sealed.
    """

    __slots__ = (
        "atomic",
        "batch",
        "columns",
        "deadline",
        "maybe",
        "number",
        "on_conflict",
        "partition",
        "payloads",
        "rows",
        "sequence",
        "size_bytes",
        "stage",
    )

    def __init__(self, on_conflict: str, partition: int | None = None) -> None:
        self.on_conflict = on_conflict
        # Where all of it goes; None: by key, or where the broker likes.
        self.partition = partition
        self.atomic = False
        self.stage = ""
        self.payloads: list[bytes] = []
        self.columns: dict[str, list[Any]] = {}
        self.batch: pa.RecordBatch | None = None
        self.rows = self.size_bytes = 0
        # How many the producer had made with it; and its number among those that are under way.
        self.number = self.sequence = 0
        # Whether it was written to a connection that was lost: it may have been carried out.
        self.maybe = False
        self.deadline = 0.0

    def put(self, name: str, row: int, value: Any) -> None:
        """A value of a column that most rows may not use."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = []
        if len(column) < row:
            column.extend([None] * (row - len(column)))
        column.append(value)

    def seal(self) -> pa.RecordBatch:
        """The rows as Arrow: made by the thread that sends, once."""
        if self.batch is None:
            self.rows = len(self.payloads)
            arrays = [pa.array(self.payloads, type=pa.binary())]
            names = ["payload"]
            for name, column in self.columns.items():
                column.extend([None] * (self.rows - len(column)))
                arrays.append(pa.array(column, type=PRODUCE_TYPES[name]))
                names.append(name)
            self.batch = pa.RecordBatch.from_arrays(arrays, names)
            self.payloads, self.columns = [], {}
        return self.batch

    def row(self) -> tuple[dict[str, Any], bytes] | None:
        """The columns and the payload of one message by itself, which needs no batch; else None."""
        if self.batch is not None or len(self.payloads) != 1 or "headers" in self.columns:
            return None
        self.rows = 1
        columns = {name: values[0] for name, values in self.columns.items()}
        return columns, self.payloads[0]

    @property
    def names(self) -> list[str]:
        """Which columns it has, about: of one that is being filled, those so far."""
        return list(self.columns) if self.batch is None else self.batch.schema.names

    def header(self) -> dict[str, Any]:
        """What is written with the rows."""
        header: dict[str, Any] = {"sequence": self.sequence, "on_conflict": self.on_conflict}
        if self.atomic:
            header["atomic"] = True
        if self.stage:
            header["stage"] = self.stage
        if self.partition is not None:
            header["partition"] = self.partition
        return header


P = TypeVar("P", bound=Parcel)

# The broker keeps the receipts of so many batches, so no more may be without one.
UNDER_WAY_MAX = 8
# Behind a batch under way, single sends are gathered up to this before they go.
GATHER_ROWS, GATHER_BYTES = 5_000, 1 << 20
_IDLE_S = 10.0


@dataclass(slots=True)
class Step(Generic[P]):
    """What the sending thread does next; `fail`: settles what is in `failed`."""

    action: Literal["wait", "write", "fail", "end"]
    wait_s: float = 0.0
    parcel: P | None = None
    failed: list[tuple[P, FastiError]] = field(default_factory=list)


class ProducerMachine(Generic[P]):
    """What one producer has on its way to one topic. For one caller at a time.

    `make` makes a parcel of a conflict rule and a partition, `new_name` a name that no other producer
    has; `draw` gives random numbers from 0 to 1.
    """

    def __init__(
        self,
        make: Callable[[str, int | None], P],
        new_name: Callable[[], str],
        draw: Callable[[], float],
        *,
        deadline_s: float,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._make, self._new_name, self._draw = make, new_name, draw
        self._deadline_s, self._rows_max, self._bytes_max = deadline_s, rows_max, bytes_max
        # Single sends are gathered here.
        self.open: P | None = None
        # The sending thread waits and nothing is under way: the next send goes at once.
        self.idle = False
        self.closed = False
        self._waiting: deque[P] = deque()
        self._under_way: deque[P] = deque()
        self._written = 0
        self.rows = self.size_bytes = 0
        # How many parcels were made.
        self.made = 0
        # Those without an answer, by their numbers. `_settled`: all up to that one have theirs.
        self._unsettled: dict[int, None] = {}
        self._settled = 0
        self._name = new_name()
        self._sequence = 0
        self.connected = False
        self.stream_number = 0
        self._columns: set[str] = {"payload"}
        self.schema: pa.Schema | None = None
        # A stream was given up with batches on it: they may reach the broker at any time.
        self._lingers = False
        # The broker is told on the stream that ends that the producer is over.
        self.last_word = False
        self._retry_at = 0.0
        self._tries = 0
        self.trouble: FastiError | None = None
        self._idle_until: float | None = None
        # Those to the other shards of the topic: the limits are for all of them together.
        self.peers: list[ProducerMachine[P]] = []

    # Callers

    @property
    def full(self) -> bool:
        """Whether a send or a batch might have to wait for room."""
        rows = size_bytes = 0
        for machine in (self, *self.peers):
            # Without the locks of the others: about.
            gathered = machine.open
            rows, size_bytes = rows + machine.rows, size_bytes + machine.size_bytes
            if gathered is not None:
                rows += len(gathered.payloads)
                size_bytes += gathered.size_bytes
        return rows >= self._rows_max or size_bytes >= self._bytes_max

    @property
    def has_room(self) -> bool:
        """Whether a new parcel may be begun."""
        if self.peers:
            return not self.full
        return self.rows < self._rows_max and self.size_bytes < self._bytes_max

    def mark(self) -> int:
        """Has everything gathered so far go; `answered` tells when all of it has its receipt."""
        self.seal()
        return self.made

    def answered(self, mark: int) -> bool:
        """Whether everything sent before the mark has its receipt. Needs no lock."""
        return self._settled >= mark

    def gather(self, on_conflict: str, partition: int | None, now: float) -> P:
        """The parcel that single sends go into; another one is sent first."""
        parcel = self.open
        if parcel is None or parcel.on_conflict != on_conflict or parcel.partition != partition:
            self.seal()
            parcel = self.open = self._new(on_conflict, partition, now)
        return parcel

    def seal(self) -> None:
        """What was gathered so far goes as a batch of its own."""
        parcel, self.open = self.open, None
        if parcel is None:
            return
        if parcel.payloads:
            parcel.rows = len(parcel.payloads)
            self._enqueue(parcel)
        else:
            self.settle(parcel)

    def add(self, batch: pa.RecordBatch, on_conflict: str, partition: int | None, now: float) -> P:
        """A batch behind everything that was sent before."""
        self.seal()
        parcel = self._new(on_conflict, partition, now)
        parcel.batch, parcel.rows, parcel.size_bytes = batch, batch.num_rows, batch.nbytes
        self._enqueue(parcel)
        return parcel

    def settle(self, parcel: P) -> bool:
        """A parcel has its answer, by whichever thread brought it and in any order.

        True if the sending thread should look: not where all is answered and nothing waits.
        """
        self.rows -= parcel.rows
        self.size_bytes -= parcel.size_bytes
        self._unsettled.pop(parcel.number, None)
        self._settled = next(iter(self._unsettled), self.made + 1) - 1
        gathered = self.open is not None and self.open.payloads
        self.idle = self.connected and not (self._under_way or self._waiting or gathered)
        return not self.idle

    def close(self) -> list[P]:
        """Takes nothing more. Gives what has no receipt yet."""
        self.seal()
        self.closed = True
        left = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        self._end_producer()
        return left

    def begin_anew(self) -> list[P]:
        """In a forked process: gives what is on its way, which is the parent's, as is the name."""
        left = [*self._under_way, *self._waiting, *([self.open] if self.open else [])]
        self._under_way, self._waiting, self.open = deque(), deque(), None
        self._unsettled, self._settled = {}, self.made
        self.rows = self.size_bytes = self._written = self._sequence = self._tries = 0
        self.idle = self.connected = self.last_word = self._lingers = False
        self.schema = self.trouble = self._idle_until = None
        self._retry_at = 0.0
        self.stream_number += 1
        self._name = self._new_name()
        return left

    def _new(self, on_conflict: str, partition: int | None, now: float) -> P:
        parcel = self._make(on_conflict, partition)
        parcel.deadline = now + self._deadline_s
        self.made += 1
        parcel.number = self.made
        self._unsettled[parcel.number] = None
        return parcel

    def _enqueue(self, parcel: P) -> None:
        self._waiting.append(parcel)
        self.rows += parcel.rows
        self.size_bytes += parcel.size_bytes
        self.idle = False

    # The sending thread

    def poll(self, now: float) -> Step[P]:
        """What to do now. After `end` the thread is over, and a new parcel needs another."""
        self.idle = False
        if self.closed:
            return Step("end")
        if failed := self._expire(now):
            return Step("fail", failed=failed)
        if self._idle_until is None:
            self._idle_until = now + _IDLE_S
        wait_s: float | None = None
        if now < self._retry_at:
            wait_s = self._retry_at - now
        elif (parcel := self._choose()) is not None:
            self._idle_until = None
            return Step("write", parcel=parcel)
        if self._under_way:
            # Nobody wakes the thread when the last answer comes: then it is idle from its next look on.
            due_s = min(self._under_way[0].deadline - now, _IDLE_S)
            return Step("wait", due_s if wait_s is None else min(wait_s, due_s))
        if wait_s is None:
            if now >= self._idle_until and self._settled == self.made:
                self._idle_until = None
                self._end_producer()
                return Step("end")
            wait_s = max(0.0, self._idle_until - now) or _IDLE_S
            self.idle = True
        return Step("wait", wait_s)

    def _choose(self) -> P | None:
        """The batch to write; a new one moves under way, and gets its number."""
        if self._written < len(self._under_way):
            parcel = self._under_way[self._written]
        else:
            if len(self._under_way) >= UNDER_WAY_MAX or not self._has_waiting():
                return None
            parcel = self._waiting.popleft()
            self._sequence += 1
            parcel.sequence = self._sequence
            self._under_way.append(parcel)
        self._columns.update(parcel.names)
        if self.connected and (self.schema is None or len(self.schema) < len(self._columns)):
            # A stream has one schema. Order holds over streams only if the old one is answered.
            if self._written:
                return None
            self._forget_stream()
        return parcel

    def _has_waiting(self) -> bool:
        """Whether a batch waits; gathered sends become one if nothing is under way, or are many."""
        gathered = self.open
        if not self._waiting and gathered is not None and gathered.payloads:
            rows, size_bytes = len(gathered.payloads), gathered.size_bytes
            if not self._under_way or rows >= GATHER_ROWS or size_bytes >= GATHER_BYTES:
                self.seal()
        return bool(self._waiting)

    def take_back(self, parcel: P) -> None:
        """`poll` was interrupted, by a signal's handler that raised, while this was all that there was:
        it comes next, by another name, for it may have a number already.
        """
        if parcel is not self.open and parcel not in (*self._waiting, *self._under_way):
            self._waiting.append(parcel)
        self._forget_stream()
        self._rename()

    def connect(self, columns: Iterable[str]) -> tuple[int, str, pa.Schema]:
        """Begins to open a stream for a batch of these columns: its number, the producer's name, and
        the columns that it has.
        """
        self._columns.update(columns)
        self.stream_number += 1
        names = [name for name in PRODUCE_TYPES if name in self._columns]
        schema = pa.schema([pa.field(name, PRODUCE_TYPES[name]) for name in names])
        return self.stream_number, self._name, schema

    def opened(self, number: int, schema: pa.Schema) -> bool:
        """A stream was opened; False if it is not wanted any more."""
        if number != self.stream_number or self.closed:
            return False
        self.connected, self.schema, self._written = True, schema, 0
        return True

    def write(self, parcel: P) -> dict[str, Any] | None:
        """What is written with a parcel, now; None if it is not its turn any more.

        It counts as written before it is, because the receipt may be faster.
        """
        under_way = self._under_way
        if self._written >= len(under_way) or parcel is not under_way[self._written]:
            return None
        self._written += 1
        return parcel.header()

    # What the broker answers

    def receive(
        self, error: FastiError | None, now: float
    ) -> tuple[P | None, list[tuple[P, FastiError]]]:
        """A receipt came on the stream: the parcel that it is for, or what failed by its error."""
        if not self._written:
            return None, []
        if error is None:
            self._written -= 1
            self._tries = 0
            self.trouble = None
            return self._under_way.popleft(), []
        # The first batch, and with it all behind it, were not carried out by this stream.
        self._forget_stream()
        if error.code in PASSING:
            self._pause(error, now)
            return None, []
        if isinstance(error, UnknownProducer) and not self._under_way[0].maybe:
            return None, self._rename()
        return None, self._give_up(error)

    def break_off(self, error: FastiError, now: float) -> list[tuple[P, FastiError]]:
        """The stream is of no use any more, or could not be opened. Gives what failed by it."""
        if error.code in PASSING:
            self._lose(error, now)
            return []
        failed = [(parcel, error) for parcel in self._under_way]
        self._forget_stream()
        self._under_way.clear()
        self._rename()
        return failed

    def fail(self, parcel: P, error: FastiError, now: float) -> list[tuple[P, FastiError]]:
        """A batch that could not even be written."""
        if parcel not in self._under_way:
            return []
        self._lose(error, now)
        self._retry_at = 0.0
        self._under_way.remove(parcel)
        return [(parcel, error), *self._rename()]

    # Trouble

    def _lose(self, error: FastiError, now: float) -> None:
        """The connection is gone: what was written may have been carried out."""
        for parcel in list(self._under_way)[: self._written]:
            parcel.maybe = True
        self._pause(error, now)
        self._forget_stream()

    def _pause(self, error: FastiError, now: float) -> None:
        self._tries += 1
        wait_s = pause_s(error, self._tries)
        if error.retry_after_us is not None:
            wait_s = max(error.retry_after_us / 1_000_000, min(wait_s, 0.1))
        self._retry_at = now + wait_s * (0.5 + self._draw() / 2)
        self.trouble = error

    def _give_up(self, error: FastiError) -> list[tuple[P, FastiError]]:
        """The first batch fails; the others move up, under a new name if need be."""
        parcel = self._under_way.popleft()
        failed = [(parcel, error)]
        if parcel.maybe or isinstance(error, UnknownProducer):
            return failed + self._rename()
        for other in self._under_way:
            other.sequence -= 1
        self._sequence -= 1
        return failed

    def _rename(self) -> list[tuple[P, FastiError]]:
        """Goes on as another producer. What may have been carried out can't be sent as it."""
        self._name, self._lingers = self._new_name(), False
        failed: list[tuple[P, FastiError]] = [
            (parcel, OutcomeUnknown("the connection was lost; it may or may not have been sent"))
            for parcel in self._under_way
            if parcel.maybe
        ]
        self._under_way = deque(parcel for parcel in self._under_way if not parcel.maybe)
        for number, parcel in enumerate(self._under_way, start=1):
            parcel.sequence = number
        self._sequence = len(self._under_way)
        return failed

    def _expire(self, now: float) -> list[tuple[P, FastiError]]:
        failed: list[tuple[P, FastiError]] = []
        while self._under_way and now >= self._under_way[0].deadline:
            if self._written:
                self._lose(TimedOut("no receipt came in time"), now)
            failed += self._give_up(self.trouble or TimedOut("no receipt came in time"))
        while not self._under_way and self._waiting and now >= self._waiting[0].deadline:
            late = self._waiting.popleft()
            failed.append((late, self.trouble or TimedOut("it could not be sent in time")))
        return failed

    def _forget_stream(self) -> None:
        self._lingers |= self._written > 0
        self.connected, self._written = False, 0
        self.stream_number += 1

    def _end_producer(self) -> None:
        """Nothing is under way and nothing comes for now: the broker need not remember this name."""
        ends = self.connected and self._sequence > 0 and not self._lingers and not self._written
        self._forget_stream()
        if ends:
            self.last_word = True
            self._name, self._sequence = self._new_name(), 0
