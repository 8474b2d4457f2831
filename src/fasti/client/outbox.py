"""Batches on their way to a broker: in order, each carried out once, whatever the connection does.

A producer numbers its batches; up to eight are under way without a receipt. When the connection is
lost, those are written again under their old numbers, and the broker answers what it has carried out
already from its receipts. A batch that was refused because the broker is full is written again after
the time it asked for. A batch that can't be carried out at all (or not before its deadline) fails
alone; if it may have been carried out, nobody could tell its number from the next one's, so the rest
goes on under a new producer's name, and those that may have been carried out too fail as `unknown`.

Threads: callers add under `lock`; one sending thread writes and connects; the stream's reading thread
brings receipts. The sending thread ends when there was nothing to do for a while.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from fasti.client import forking
from fasti.client.failures import Failures
from fasti.client.machines.run import prepare
from fasti.client.outcomes import Outcomes
from fasti.client.pauses import PASSING
from fasti.client.receipts import Parcel
from fasti.client.transport import Header, Stream, Transport
from fasti.errors import (
    Closed,
    FastiError,
    OutcomeUnknown,
    Overloaded,
    TimedOut,
    UnknownProducer,
)
from fasti.protocol.problems import error_from_json
from fasti.protocol.schemas import PRODUCE_TYPES

logger = logging.getLogger("fasti.client")

# The broker keeps the receipts of so many batches, so no more may be without one.
UNDER_WAY_MAX = 8
# Behind a batch under way, single sends are gathered up to this before they go.
GATHER_ROWS, GATHER_BYTES = 5_000, 1 << 20
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 2.0
_IDLE_S = 10.0
_LAST_WORD_S = 1.0


class Outbox:
    """What one producer has on its way to one topic."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str,
        *,
        max_block_s: float,
        deadline_s: float,
        rows_max: int,
        bytes_max: int,
        failures: Failures | None = None,
    ) -> None:
        self._transport = transport
        self.topic, self._owner = topic, owner
        self._max_block_s, self._deadline_s = max_block_s, deadline_s
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self.failures = failures or Failures(topic)
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        # Single sends are gathered here. Whoever has the lock may append.
        self.open: Parcel | None = None
        # The sending thread waits and nothing is under way: the next send should wake it.
        self.idle = False
        self._sleeping = False
        self._waiting: deque[Parcel] = deque()
        self._under_way: deque[Parcel] = deque()
        self._written = 0
        self._rows = self._bytes = 0
        self._made = 0
        # Those without an answer, by their numbers. `_settled`: all up to that one have theirs.
        self._unsettled: dict[int, None] = {}
        self._settled = 0
        self._flushing = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._name = uuid.uuid4().hex
        self._sequence = 0
        self._stream: Stream | None = None
        self._stream_number = self._opening = 0
        self._columns: set[str] = {"payload"}
        self._schema: pa.Schema | None = None
        self._abandoned: list[Stream] = []
        # Of these, on which the broker is told that the producer is over.
        self._last_words: set[int] = set()
        # A stream was given up with batches on it: they may reach the broker at any time.
        self._lingers = False
        self._retry_at = 0.0
        self._tries = 0
        self._trouble: FastiError | None = None
        # Called without the lock, by whichever thread brought the answer, after each parcel's.
        self.on_settled: Callable[[Parcel], None] | None = None
        forking.register(self)

    # Callers, with the lock

    @property
    def full(self) -> bool:
        """Whether a send or a batch might have to wait for room."""
        gathered = self.open
        rows, size_bytes = self._rows, self._bytes
        if gathered is not None:
            rows += len(gathered.payloads)
            size_bytes += gathered.size_bytes
        return rows >= self._rows_max or size_bytes >= self._bytes_max

    def mark(self) -> int:
        """Has everything gathered so far go; `answered` tells when all of it has its receipt."""
        self.seal()
        return self._made

    def answered(self, mark: int) -> bool:
        """Whether everything sent before the mark has its receipt. Needs no lock."""
        return self._settled >= mark

    @property
    def settled(self) -> bool:
        """Whether nothing is gathered or under way. Needs no lock."""
        return self.open is None and self._settled == self._made

    def begin(self, on_conflict: str, partition: int | None = None) -> Parcel:
        """A parcel for single sends; what was gathered before goes on its way.

        Waits while the buffer is full. Raises `overloaded` after `max_block`, `closed`.
        """
        self.seal()
        self._await_room()
        found = self.open
        if found is None or found.on_conflict != on_conflict or found.partition != partition:
            self.seal()
            found = self.open = self._new(on_conflict, partition)
        return found

    def seal(self) -> None:
        """What was gathered so far goes as a batch of its own."""
        parcel, self.open = self.open, None
        if parcel is None:
            return
        if parcel.payloads:
            parcel.rows = len(parcel.payloads)
            self._enqueue(parcel)
        else:
            self._count(parcel)

    def add(
        self,
        batch: pa.RecordBatch,
        on_conflict: str,
        atomic: bool,
        stage: str,
        partition: int | None = None,
    ) -> Parcel:
        """A batch behind everything that was sent before."""
        self.seal()
        self._await_room()
        self.seal()
        parcel = self._new(on_conflict, partition)
        parcel.batch, parcel.rows, parcel.size_bytes = batch, batch.num_rows, batch.nbytes
        parcel.atomic, parcel.stage = atomic, stage
        self._enqueue(parcel)
        return parcel

    def _new(self, on_conflict: str, partition: int | None) -> Parcel:
        parcel = Parcel(on_conflict, self.failures, partition)
        parcel.deadline = time.monotonic() + self._deadline_s
        parcel.timeout_s = self._transport.timeout_s
        self._made += 1
        parcel.number = self._made
        self._unsettled[parcel.number] = None
        if self._thread is None:
            # Here and not in the thread: an interpreter that is ending imports nothing more, and
            # what a program sent last would be lost.
            prepare()
            self._thread = threading.Thread(
                target=self._run, name=f"fasti-send-{self.topic}", daemon=True
            )
            self._thread.start()
        return parcel

    def _enqueue(self, parcel: Parcel) -> None:
        self._waiting.append(parcel)
        self._rows += parcel.rows
        self._bytes += parcel.size_bytes
        self.wake()

    def wake(self) -> None:
        """There is something for the sending thread to look at."""
        self.idle = False
        if self._sleeping:
            self._work.notify()

    def _await_room(self) -> None:
        until: float | None = None
        while True:
            if self._closed:
                raise Closed(f"the producer of {self.topic!r} is closed")
            if self._rows < self._rows_max and self._bytes < self._bytes_max:
                return
            now = time.monotonic()
            until = until or now + self._max_block_s
            if now >= until:
                raise Overloaded(
                    f"{self._rows} messages of {self.topic!r} have no receipt yet, and none "
                    f"came in {self._max_block_s} s ({self._trouble or 'the broker is slow'})",
                    retry_after_us=100_000,
                    details={"rows": self._rows, "bytes": self._bytes},
                )
            self._room.wait(until - now)

    # Callers, without the lock

    def flush(self, timeout: float | None) -> None:
        """Waits until everything sent before has its receipt. Raises `timed_out`."""
        with self.lock:
            self.seal()
            target = self._made
            done = self._room.wait_for(lambda: self._settled >= target, timeout)
        if not done:
            raise TimedOut(f"not everything sent to {self.topic!r} was answered in {timeout} s")

    def close(self) -> None:
        """Takes nothing more. What has no receipt yet fails as `closed`."""
        with self.lock:
            self.seal()
            self._closed = True
            left = [*self._under_way, *self._waiting]
            self._under_way.clear()
            self._waiting.clear()
            self._end_producer()
        for parcel in left:
            self._settle(parcel, None, Closed("the producer was closed before the receipt came"))
        self._finish_abandoned()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """What is gathered is whole when it is not held."""
        return [self.lock]

    def _forked(self) -> None:
        """In a child process: what is on its way is the parent's, and so is its name."""
        left = [*self._under_way, *self._waiting, *([self.open] if self.open else [])]
        for parcel in left:
            parcel.leave_to_parent()
        # With those that waited for the old ones are gone.
        self._work, self._room = threading.Condition(self.lock), threading.Condition(self.lock)
        self._under_way, self._waiting, self.open = deque(), deque(), None
        self._unsettled, self._settled = {}, self._made
        self._rows = self._bytes = self._written = self._sequence = self._tries = 0
        self.idle = self._sleeping = False
        self._thread = self._stream = self._schema = self._trouble = None
        self._abandoned, self._retry_at, self._lingers = [], 0.0, False
        self._last_words = set()
        self._stream_number += 1
        self._name = uuid.uuid4().hex

    # The sending thread

    def _run(self) -> None:
        while True:
            with self.lock:
                parcel = self._next()
                number = self._stream_number
                if parcel is None:
                    self._thread = None
                    self._end_producer()
                    break
            try:
                self._write(parcel)
            except FastiError as error:
                self._broken(max(number, self._opening), error)
            except Exception as error:  # The thread must live; the batch can't be sent.
                logger.exception("sending to %r", self.topic)
                self._fail(parcel, FastiError(f"{type(error).__name__}: {error}"))
            self._finish_abandoned()
        self._finish_abandoned()

    def _next(self) -> Parcel | None:
        """The parcel to write; None to end the thread. Waits, with the lock, while there is none."""
        idle_until = time.monotonic() + _IDLE_S
        while not self._closed:
            now = time.monotonic()
            self._expire(now)
            wait: float | None = None
            if now < self._retry_at:
                wait = self._retry_at - now
            else:
                parcel = self._choose()
                if parcel is not None:
                    return parcel
            if self._under_way:
                due = self._under_way[0].deadline - now
                wait = due if wait is None else min(wait, due)
            elif wait is None:
                if now >= idle_until and self._settled == self._made:
                    return None
                wait = max(0.0, idle_until - now) or _IDLE_S
                self.idle = True
            self._sleeping = True
            self._work.wait(wait)
            self._sleeping = self.idle = False
        return None

    def _choose(self) -> Parcel | None:
        if self._written < len(self._under_way):
            parcel = self._under_way[self._written]
        elif len(self._under_way) >= UNDER_WAY_MAX:
            return None
        else:
            first = self._first_waiting()
            if first is None:
                return None
            parcel = first
        if self._stream is not None and not self._fits(parcel):
            # A stream has one schema. Order holds over streams only if the old one is answered.
            if self._written:
                return None
            self._end_stream()
        return parcel

    def _first_waiting(self) -> Parcel | None:
        """Moves the next batch under way, and gives it its number."""
        if not self._waiting:
            gathered = self.open
            if gathered is None or not gathered.payloads:
                return None
            if self._under_way and (
                len(gathered.payloads) < GATHER_ROWS and gathered.size_bytes < GATHER_BYTES
            ):
                return None
            self.seal()
        parcel = self._waiting.popleft()
        self._sequence += 1
        parcel.sequence = self._sequence
        self._under_way.append(parcel)
        return parcel

    def _fits(self, parcel: Parcel) -> bool:
        names = parcel.batch.schema.names if parcel.batch is not None else parcel.columns
        self._columns.update(names)
        return self._schema is not None and len(self._schema) == len(self._columns)

    def _write(self, parcel: Parcel) -> None:
        batch = parcel.seal()
        with self.lock:
            self._columns.update(batch.schema.names)
            stream, number, schema = self._stream, self._stream_number, self._schema
        if stream is None or schema is None:
            stream, number, schema = self._open()
        with self.lock:
            if self._stream is not stream or parcel is not self._upcoming():
                return
            # Counted before it is written, because the receipt may be faster than we are.
            self._written += 1
            metadata: Header = {"sequence": parcel.sequence, "on_conflict": parcel.on_conflict}
            if parcel.atomic:
                metadata["atomic"] = True
            if parcel.stage:
                metadata["stage"] = parcel.stage
            if parcel.partition is not None:
                metadata["partition"] = parcel.partition
        try:
            stream.send(metadata, _widened(batch, schema))
        except FastiError:
            # The end of the stream tells more than the write that met it.
            with self.lock:
                if self._work.wait_for(lambda: number != self._stream_number, _LAST_WORD_S):
                    return
            raise

    def _upcoming(self) -> Parcel | None:
        under_way = self._under_way
        return under_way[self._written] if self._written < len(under_way) else None

    def _open(self) -> tuple[Stream, int, pa.Schema]:
        with self.lock:
            self._stream_number += 1
            number = self._opening = self._stream_number
            names = [name for name in PRODUCE_TYPES if name in self._columns]
            schema = pa.schema([pa.field(name, PRODUCE_TYPES[name]) for name in names])
            descriptor: Header = {"call": "produce", "topic": self.topic, "producer": self._name}
            if self._owner:
                descriptor["owner"] = self._owner
        stream = self._transport.produce(
            descriptor,
            schema,
            lambda header: self._receipt(number, header),
            lambda error: self._ended(number, error),
        )
        with self.lock:
            if number == self._stream_number and not self._closed:
                self._stream, self._schema, self._written = stream, schema, 0
            else:
                self._abandoned.append(stream)
        return stream, number, schema

    # The stream's reading thread

    def _receipt(self, number: int, header: Header) -> None:
        error = error_from_json(header["error"]) if "error" in header else None
        with self.lock:
            if number != self._stream_number or not self._written:
                return
            failed = []
            answered: Parcel | None = None
            if error is not None:
                failed = self._refused(error)
            else:
                answered = self._under_way.popleft()
                self._written -= 1
                self._tries = 0
                self._trouble = None
        if answered is not None:
            self._settle(answered, Outcomes.of_reply(header))
        for parcel, meant in failed:
            self._settle(parcel, None, meant)

    def _ended(self, number: int, error: FastiError | None) -> None:
        self._broken(number, error or Closed("the broker ended the stream"))

    def _broken(self, number: int, error: FastiError) -> None:
        """A stream is of no use any more, or could not be opened."""
        failed: list[tuple[Parcel, FastiError]] = []
        with self.lock:
            if number != self._stream_number:
                return
            if error.code in PASSING:
                self._lose(error)
            else:
                failed = [(parcel, error) for parcel in self._under_way]
                self._forget_stream()
                self._under_way.clear()
                self._rename()
        for parcel, meant in failed:
            self._settle(parcel, None, meant)

    # Trouble, with the lock

    def _lose(self, error: FastiError) -> None:
        """The connection is gone: what was written may have been carried out."""
        for parcel in list(self._under_way)[: self._written]:
            parcel.maybe = True
        self._pause(error)
        self._forget_stream()

    def _pause(self, error: FastiError) -> None:
        self._tries += 1
        pause = min(_PAUSE_FIRST_S * 2 ** min(self._tries, 10), _PAUSE_MAX_S)
        if error.retry_after_us is not None:
            pause = max(error.retry_after_us / 1_000_000, min(pause, 0.1))
        self._retry_at = time.monotonic() + pause * random.uniform(0.5, 1.0)
        self._trouble = error
        logger.debug("sending to %r again in %.3f s: %s", self.topic, pause, error)

    def _refused(self, error: FastiError) -> list[tuple[Parcel, FastiError]]:
        """The first batch, and with it all behind it, were not carried out by this stream."""
        self._forget_stream()
        if error.code in PASSING:
            self._pause(error)
            return []
        if isinstance(error, UnknownProducer) and not self._under_way[0].maybe:
            return self._rename()
        return self._give_up(error)

    def _give_up(self, error: FastiError) -> list[tuple[Parcel, FastiError]]:
        """The first batch fails; the others move up, under a new name if need be."""
        parcel = self._under_way.popleft()
        failed = [(parcel, error)]
        if parcel.maybe or isinstance(error, UnknownProducer):
            return failed + self._rename()
        for other in self._under_way:
            other.sequence -= 1
        self._sequence -= 1
        return failed

    def _rename(self) -> list[tuple[Parcel, FastiError]]:
        """Goes on as another producer. What may have been carried out can't be sent as it."""
        self._name, self._lingers = uuid.uuid4().hex, False
        failed: list[tuple[Parcel, FastiError]] = [
            (parcel, OutcomeUnknown("the connection was lost; it may or may not have been sent"))
            for parcel in self._under_way
            if parcel.maybe
        ]
        kept = [parcel for parcel in self._under_way if not parcel.maybe]
        self._under_way = deque(kept)
        for number, parcel in enumerate(kept, start=1):
            parcel.sequence = number
        self._sequence = len(kept)
        return failed

    def _expire(self, now: float) -> None:
        failed: list[tuple[Parcel, FastiError]] = []
        while self._under_way and now >= self._under_way[0].deadline:
            if self._written:
                self._lose(TimedOut("no receipt came in time"))
            trouble = self._trouble or TimedOut("no receipt came in time")
            failed += self._give_up(trouble)
        while not self._under_way and self._waiting and now >= self._waiting[0].deadline:
            late = self._waiting.popleft()
            failed.append((late, self._trouble or TimedOut("it could not be sent in time")))
        if failed:
            self.lock.release()
            try:
                for parcel, error in failed:
                    self._settle(parcel, None, error)
            finally:
                self.lock.acquire()

    def _fail(self, parcel: Parcel, error: FastiError) -> None:
        """A batch that could not even be written."""
        with self.lock:
            failed = []
            if self._under_way and parcel in self._under_way:
                self._lose(error)
                self._retry_at = 0.0
                self._under_way.remove(parcel)
                failed = [(parcel, error), *self._rename()]
        for each, meant in failed:
            self._settle(each, None, meant)

    def _forget_stream(self) -> None:
        if self._stream is not None:
            self._abandoned.append(self._stream)
        self._lingers |= self._written > 0
        self._stream, self._written = None, 0
        self._stream_number += 1
        self._work.notify()

    _end_stream = _forget_stream

    def _end_producer(self) -> None:
        """Nothing is under way and nothing comes for now: the broker need not remember this name."""
        stream, lingers = self._stream, self._lingers or self._written > 0
        self._end_stream()
        if stream is not None and self._sequence and not lingers:
            self._last_words.add(id(stream))
            self._name, self._sequence = uuid.uuid4().hex, 0

    def _finish_abandoned(self) -> None:
        """Ends streams without the lock: that may take a while."""
        with self.lock:
            streams, self._abandoned = self._abandoned, []
            last_words, self._last_words = self._last_words, set()
        for stream in streams:
            if id(stream) in last_words:
                # Lost: then it is remembered for a while.
                with suppress(FastiError):
                    stream.send({"end": True})
            stream.finish()

    def _settle(
        self, parcel: Parcel, outcomes: Outcomes | None, error: FastiError | None = None
    ) -> None:
        parcel.settle(outcomes, error)
        with self.lock:
            self._rows -= parcel.rows
            self._bytes -= parcel.size_bytes
            self._count(parcel)
            self._room.notify_all()
            if self._sleeping:
                self._work.notify()
        if self.on_settled is not None:
            self.on_settled(parcel)

    def _count(self, parcel: Parcel) -> None:
        """With the lock. Answers may be brought by two threads at once, in any order."""
        self._unsettled.pop(parcel.number, None)
        self._settled = next(iter(self._unsettled), self._made + 1) - 1


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of its stream, empty where it has none."""
    names = batch.schema.names
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
