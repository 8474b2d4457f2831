"""The way to one shard, in whichever process it is.

Every call names the shard. A process that doesn't have it answers `moved`, and has done nothing: the call
is made again where it is now, within its time. A process that is gone may have come back at another
address, and one that has lost the shard may not know to whom: the others are asked, with pauses, until one
leads it. A call to a process that hangs is given up when another one leads the shard (`hanging.py`). A stale read
goes to whoever answers, standbys first. Streams that end for such a reason end as lost connections do; whoever opened them opens them
again, and comes to the right place. A stream is told that the shard has left by its end, or by a word in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from fasti.client.call_numbers import CallNumbers, PendingCall
from fasti.client.flight_transport import FlightTransport, too_late, versioned
from fasti.client.shards.clocks import ShardClock
from fasti.client.shards.hanging import LOOK_S
from fasti.client.shards.processes import Processes
from fasti.client.shards.shard_map import HostPort, Place
from fasti.client.transport import (
    LOCATION,
    Arrived,
    Content,
    Ended,
    Header,
    OnlyShard,
    Stream,
)
from fasti.errors import (
    FastiError,
    Moved,
    NoQuorum,
    OutcomeUnknown,
    StorageFailed,
    TimedOut,
    Unavailable,
)
from fasti.protocol.problems import error_from_json
from fasti.protocol.schemas import STALE
from fasti.runtime import Runtime

SHARD_NUMBER = "shard_number"
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 2.0
# Between two looks for a shard that moves: it is led by another process soon.
_MOVING_FIRST_S, _MOVING_MAX_S = 0.02, 0.25
# A try in less time than this would only be too late.
_LAST_TRY_S = 0.1

# So long a process is waited for that may answer a stale read, the first time, before another one is asked.
_READER_FIRST_S = 2.0
# Who answered one is asked first for so long: then a standby may have loaded, or come back.
_READER_KEPT_S = 5.0

# What a process says that is gone, or that reaches its storage no more: another one may lead by now.
_CUT_OFF = (Unavailable, OutcomeUnknown, StorageFailed)

T = TypeVar("T")


class _Reader(NamedTuple):
    """Who answered a stale read; its connection is kept with it."""

    host: HostPort
    process: FlightTransport
    until: float


class ShardTransport(OnlyShard):
    """One shard of a broker's processes. Any thread may call."""

    on_network = True

    def __init__(self, processes: Processes, number: int) -> None:
        self.number = number
        self._processes = processes
        # It has left the process where it was, which did not say for where: the next stream asks first.
        self._is_lost = False
        # Who answered the last stale read.
        self._reader: _Reader | None = None
        # What all shards have together: one is away or back for all who wait, see `absence.py`.
        self.broker = processes
        process = processes.of(number)
        self.timeout_s = process.timeout_s
        self.runtime: Runtime = process.runtime
        self.clock = ShardClock(process.estimate)
        self._numbers = CallNumbers(self.runtime)

    def __str__(self) -> str:
        return f"shard {self.number} of {self._processes}"

    def _process(self, place: Place) -> FlightTransport:
        process = self._processes.at(place.host)
        self.clock.go_by(process.estimate)
        return process

    def _named(self, header: Header | None) -> Header:
        return {**(header or {}), SHARD_NUMBER: self.number}

    # Calls

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """An action's reply; an error in it is raised, after `timeout` seconds `timed_out`."""
        body = versioned(self._named(header))
        until = time.monotonic() + (self.timeout_s if timeout is None else timeout)
        if body.get(STALE):
            return self._ask_readers(
                lambda process, wait_s: process.attempt(action, body, parts, wait_s), action, until
            )

        several = self._processes.are_several

        with self._numbers.call(action) as pending:

            def attempt(process: FlightTransport, place: Place) -> tuple[Header, list[pa.Table]]:
                left_s = max(0.001, until - time.monotonic())
                header = pending.header(body)
                try:
                    if left_s <= LOOK_S or not pending.is_repeatable or not several:
                        return process.attempt(action, header, parts, left_s)
                    with self._processes.hanging.watch(self.number, place) as waiting:
                        return process.attempt(action, header, parts, left_s, waiting)
                except TimedOut as error:
                    raise too_late(process, action, timeout) from error

            return self._follow(attempt, until, pending=pending)

    def plan(self, descriptor: Header) -> list[Header]:
        """The tickets of a read. Each names the shard and the address that has the rows."""
        fields = self._named(descriptor)
        until = time.monotonic() + self.timeout_s
        tickets = self._follow(lambda process, _: process.plan(fields), until, repeat=True)
        return [{**ticket, SHARD_NUMBER: self.number} for ticket in tickets]

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """The batches that a ticket stands for; at least one, maybe empty."""
        fields = self._named(ticket)
        # Where the shard is now is known better here than when the plan was made.
        fields.pop(LOCATION, None)
        until = time.monotonic() + self.timeout_s

        def begin(process: FlightTransport) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
            batches = process.read(fields)
            return next(batches), batches

        def begin_soon(
            process: FlightTransport, wait_s: float
        ) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
            # A read that has begun waits for as long as its process may take.
            process.sample_clock(wait_s)
            return begin(process)

        if fields.get(STALE):
            first, rest = self._ask_readers(begin_soon, "read", until)
        else:
            first, rest = self._follow(lambda process, _: begin(process), until)
        yield first
        yield from rest

    def _ask_readers(
        self, attempt: Callable[[FlightTransport, float], T], what: str, until: float
    ) -> T:
        """The answer of whoever gives one: who did the last time, a standby, the leader, or any other process.

        One that is silent is waited for longer each time around. Raises what the last one said.
        """
        failure: FastiError = TimedOut(f"nobody answered {what} of shard {self.number}")
        wait_s, pause_s = _READER_FIRST_S, _PAUSE_FIRST_S
        while True:
            for host in self._readers(until):
                process = self._processes.at(host)
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise failure
                try:
                    answer = attempt(process, min(wait_s, left_s))
                except Moved as error:
                    self._processes.map.take_move(dict(error.details), self.number)
                    if not isinstance(failure, NoQuorum):
                        failure = self._lost(error)
                except (NoQuorum, TimedOut, *_CUT_OFF) as error:
                    failure = error
                else:
                    known, now = self._reader, time.monotonic()
                    if known is None or known.host != host or now > known.until:
                        self._reader = _Reader(host, process, now + _READER_KEPT_S)
                    return answer
                if self._reader is not None and self._reader.host == host:
                    self._reader = None
            self._processes.ask(self.number, until)
            rest_s = pause_s * random.uniform(0.5, 1.0)
            if time.monotonic() + rest_s > until:
                raise failure
            self._processes.wait(rest_s)
            wait_s, pause_s = wait_s * 2, min(pause_s * 2, _PAUSE_MAX_S)

    def _readers(self, until: float) -> list[HostPort]:
        known, reader = self._processes.map.readers(self.number), self._reader
        if reader is None or time.monotonic() > reader.until:
            likely = known if reader is None else [reader.host, *known]
            self._processes.look_around(likely, until)
            return self._processes.map.readers(self.number)
        return list(dict.fromkeys([reader.host, *known]))

    def _follow(
        self,
        attempt: Callable[[FlightTransport, Place], T],
        until: float,
        repeat: bool = False,
        pending: PendingCall | None = None,
    ) -> T:
        """Tries where the shard is, and again where it went; with `repeat`, or if a `pending` call says so,
        also after a lost connection.
        """
        pause_s, moving_s, moves = _PAUSE_FIRST_S, _MOVING_FIRST_S, 0
        while True:
            asked = self._processes.map.place(self.number)
            try:
                return attempt(self._process(asked), asked)
            except Moved as error:
                found = self._processes.follow(self.number, asked, error, until)
                moves += 1
                # The first time the new address is good; who is sent to and fro waits.
                wait_s = 0.0 if moves == 1 and found else moving_s * random.uniform(0.5, 1.0)
                moving_s = min(moving_s * 2, _MOVING_MAX_S)
                if time.monotonic() + wait_s + _LAST_TRY_S > until:
                    raise _given_up(pending, self._lost(error)) from error
            except TimedOut:
                raise
            except FastiError as error:
                lost = isinstance(error, Unavailable)
                again = (lost and repeat) if pending is None else pending.may_repeat(error)
                if lost and self._processes.map.place(self.number) == asked:
                    self._processes.ask(self.number, until)
                wait_s = pause_s * random.uniform(0.5, 1.0)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                if not again or time.monotonic() + wait_s > until:
                    raise _given_up(pending, error) from error.__cause__
            if wait_s:
                self._processes.wait(wait_s)

    def _lost(self, error: FastiError) -> Unavailable:
        return Unavailable(
            f"shard {self.number} is moving, and nobody says where it is now: {error.message}",
            details={"shard": self.number},
        )

    def _moved(self, error: FastiError) -> Unavailable:
        """It is known where the shard is: see `pauses.py`."""
        return Unavailable(
            f"shard {self.number} has moved: {error.message}",
            retry_after_us=0,
            details={"shard": self.number},
        )

    def _gone(self, error: FastiError) -> Unavailable:
        """Its process doesn't answer."""
        return Unavailable(
            error.message,
            retry_after_us=error.retry_after_us,
            details={**error.details, "shard": self.number},
        )

    # Streams

    def produce(
        self,
        descriptor: Header,
        schema: pa.Schema,
        receipt: Callable[[Header], None],
        ended: Ended,
    ) -> Stream:
        """Opens a stream of batches."""
        fields, end = self._named(descriptor), self._ending(ended)

        def look(header: Header) -> None:
            if "error" in header:
                self._heed(error_from_json(header["error"]))
            receipt(header)

        return self._open(lambda process: process.produce(fields, schema, look, end))

    def consume(self, descriptor: Header, arrived: Arrived, ended: Ended) -> Stream:
        """Opens a session."""
        fields, end = self._named(descriptor), self._ending(ended)

        def look(header: Header, content: Content) -> None:
            if header.get("kind") == "error":
                self._heed(error_from_json(header["error"]))
            arrived(header, content)

        return self._open(lambda process: process.consume(fields, look, end))

    def _open(self, attempt: Callable[[FlightTransport], T]) -> T:
        """Tries once: who opens streams tries again by itself."""
        until = time.monotonic() + self.timeout_s
        if self._is_lost:
            self._is_lost = False
            self._processes.ask(self.number, until)
        asked = self._processes.map.place(self.number)
        try:
            return attempt(self._process(asked))
        except Moved as error:
            found = self._processes.follow(self.number, asked, error, until)
            raise (self._moved(error) if found else self._lost(error)) from error
        except (Unavailable, TimedOut) as error:
            # One that hangs says nothing: another one may lead by now.
            self._processes.ask(self.number, until)
            found = self._processes.map.place(self.number) != asked
            raise (self._moved(error) if found else self._gone(error)) from error

    def _heed(self, error: FastiError) -> None:
        """A word on a stream, in the thread that reads it: nothing is asked here."""
        if isinstance(error, Moved):
            found = self._processes.map.take_move(dict(error.details), self.number)
            self._is_lost = not found
        elif isinstance(error, _CUT_OFF):
            self._is_lost = True

    def _ending(self, ended: Ended) -> Ended:
        def end(error: FastiError | None) -> None:
            if isinstance(error, Moved):
                # From here on it is a lost connection: to be opened again, at the new place.
                self._heed(error)
                if self._is_lost:
                    error = self._lost(error)
                else:
                    error = self._moved(error)
            elif isinstance(error, Unavailable):
                # Its process may be gone, and another one lead it.
                self._is_lost = True
                error = self._gone(error)
            elif error is not None:
                self._heed(error)
            ended(error)

        return end

    def at(self, location: str | None) -> ShardTransport:
        """This one: it knows where the shard is."""
        return self

    def close(self) -> None:
        """Nothing: the processes close with the client."""


def _given_up(pending: PendingCall | None, error: FastiError) -> FastiError:
    return error if pending is None else pending.give_up(error)


def shard_transports(processes: Processes) -> list[Any]:
    """One for each shard."""
    return [ShardTransport(processes, number) for number in range(processes.map.count)]
