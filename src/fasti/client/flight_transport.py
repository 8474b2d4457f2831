"""A way to broker processes over Arrow Flight.

A plan's tickets say which broker to ask where another one has the rows (`at`): each address has one
transport, with connections and a clock of its own.

Connections are made when they are needed and thrown away when they fail; the next use makes a new
one, to the next address if there are several. Actions, produce streams and sessions use connections
of their own, so that a large batch doesn't stand before a small word. Small calls that follow each other
closely go over streams that stay open (call_streams.py). What can be asked twice without harm, and what
has a number (call_numbers.py), is asked again, within the time allowed, while no broker answers; everything
else is the caller's to repeat.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from fasti.client import forking
from fasti.client.address import Address, host_and_port, warn_of_clear_token
from fasti.client.call_numbers import CallNumbers
from fasti.client.call_streams import CallStreams, Opened
from fasti.client.clock import STEADY_US, ClockEstimate, monotonic_us
from fasti.client.flight_errors import fasti_error
from fasti.client.flight_streams import ConsumeStream, FlightStream, ProduceStream
from fasti.client.peers import Peers
from fasti.client.transport import (
    LOCATION,
    Arrived,
    BrokerClock,
    Content,
    Ended,
    Header,
    OnlyShard,
    Stream,
)
from fasti.errors import Closed, FastiError, TimedOut, Unavailable
from fasti.protocol.envelope import dump, pack, parse, unpack
from fasti.protocol.grpc_setup import CLIENT_OPTIONS, prepare_grpc
from fasti.protocol.problems import error_from_json
from fasti.protocol.schemas import RETURNED, VERSION
from fasti.protocol.tokens import check_token
from fasti.runtime import Runtime, SystemRuntime

if TYPE_CHECKING:
    from fasti.client.waiting_calls import WaitingCall

logger = logging.getLogger("fasti.client")

# While something is open the broker is asked for its time this often. One that doesn't answer for so
# long, while nothing else comes from it either, is gone, or the way to it is.
_CLOCK_EVERY_S = 2.0
_SILENCE_S = 5.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 2.0
_END_S = 5.0
# A broker that asks for tokens ends connections that bring much before a call was let in. An action
# with more than this is sent on a connection of which one was answered a moment ago.
_LARGE_BYTES = 256 << 10
_MOMENT_S = 1.0


class FlightTransport(OnlyShard):
    """Connections to one broker at a time. Any thread may call."""

    clock: BrokerClock
    runtime: Runtime = SystemRuntime()
    on_network = True

    def __init__(
        self,
        address: Address,
        *,
        token: str | None = None,
        tls_ca: bytes | None = None,
        tls_client: tuple[bytes, bytes] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.address = address
        self.entrance: dict[str, Any] = {"token": token, "tls_ca": tls_ca}
        self.entrance |= {"tls_client": tls_client, "timeout": timeout}
        self._peers = Peers(partial(_peer, address, self.entrance))
        self._tls_client = tls_client or (None, None)
        self.timeout_s = timeout
        # gRPC wants the names of headers in lower case.
        self._headers = (
            [(b"authorization", f"Bearer {check_token(token)}".encode())] if token else []
        )
        if token:
            warn_of_clear_token(address)
        self._lock = threading.Lock()
        self._clients: dict[str, flight.FlightClient] = {}
        # The number of the host whose turn it is.
        self.place = self._generation = 0
        self._closed = threading.Event()
        self._streams: weakref.WeakSet[FlightStream] = weakref.WeakSet()
        self._keeper: threading.Thread | None = None
        # When something came from the broker by a stream.
        self._heard_at = 0.0
        # When an action was answered.
        self._answered_at = -_MOMENT_S
        self._gate = forking.CallGate()
        self._numbers = CallNumbers(self.runtime)
        self._call_streams = CallStreams(partial(_open_call_stream, weakref.ref(self)))
        # What gRPC may be at work for, besides streams: answers that are being read, and connections.
        self._reads: dict[int, tuple[Any, Any]] = {}
        self._left: list[flight.FlightClient] = []
        self.estimate = ClockEstimate()
        self.clock = self.estimate
        prepare_grpc()
        forking.check()
        forking.register_connection(self)

    def __str__(self) -> str:
        return str(self.address)

    # Connections

    def connect(self) -> Header:
        """Says hello to the first broker that answers. Raises `unavailable` if none does."""
        for _ in self.address.hosts[1:]:
            try:
                return self.greet()
            except (Unavailable, TimedOut):
                continue
        try:
            return self.greet()
        except Unavailable as error:
            from fasti.client.tls_probe import missing_in

            tried = self.address.hosts[self.place - 1]
            missing = missing_in(self.address, *tried)
            if missing is None:
                raise
            raise Unavailable(missing, details=error.details) from error

    def greet(self, timeout_s: float | None = None) -> Header:
        """Says hello to the broker whose turn it is: what it answers. Raises `unavailable`, `timed_out`."""
        asked_us = monotonic_us()
        limit_s = timeout_s or self.timeout_s
        try:
            header, _ = self._call_once("hello", pack({"version": VERSION}), limit_s)
        except TimedOut as error:
            raise too_late(self, "hello", timeout_s) from error
        _learn_time(self.estimate, asked_us, header)
        return header

    def _client(self, purpose: str) -> tuple[flight.FlightClient, int]:
        forking.check()
        with self._lock:
            if self._closed.is_set():
                raise Closed("the client is closed")
            client = self._clients.get(purpose)
            if client is None:
                client = flight.FlightClient(
                    self.address.location(self.place),
                    tls_root_certs=self.entrance["tls_ca"],
                    cert_chain=self._tls_client[0],
                    private_key=self._tls_client[1],
                    generic_options=CLIENT_OPTIONS,
                )
                self._clients[purpose] = client
            return client, self._generation

    def _lost(self, generation: int) -> None:
        """A connection of this generation failed: the next use makes new ones."""
        with self._lock:
            if generation != self._generation:
                return
            self._generation += 1
            self.place = (self.place + 1) % len(self.address.hosts)
            self._clients.clear()
            self._answered_at = -_MOMENT_S
        self._call_streams.leave()
        if len(self.address.hosts) > 1:
            self.estimate.forget()

    def at(self, location: str | None) -> FlightTransport:
        """The way to the broker that an endpoint names: one for each address, with its own clock.

        It speaks TLS if this one does, whatever the endpoint says: a token goes nowhere in clear.
        """
        if location is None or location == self.address.location(self.place):
            return self
        return self._peers.at(location)

    def _options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    # Actions

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """An action's reply; an error in it is raised, after `timeout` seconds `timed_out`."""
        header = versioned(header or {})
        until = time.monotonic() + (self.timeout_s if timeout is None else timeout)
        pause = _PAUSE_FIRST_S
        with self._numbers.call(action) as pending:
            while True:
                try:
                    return self.attempt(action, pending.header(header), parts, _left(until))
                except TimedOut as error:
                    raise too_late(self, action, timeout) from error
                except FastiError as error:
                    pause = min(pause * 2, _PAUSE_MAX_S)
                    wait = pause * random.uniform(0.5, 1.0)
                    if not pending.may_repeat(error) or time.monotonic() + wait > until:
                        raise pending.give_up(error) from error.__cause__
                if self._closed.wait(wait):
                    raise Closed("the client is closed")

    def attempt(
        self,
        action: str,
        header: Header,
        parts: Sequence[pa.RecordBatch],
        timeout_s: float,
        waiting: WaitingCall | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """An action's reply at the first try. Raises `unavailable` and `timed_out`, repeats nothing.

        `header` has the protocol's version in it. With `waiting` it can be given up from outside.
        """
        answer = self._ask(action, header, parts, timeout_s, waiting)
        if answer is not None:
            return answer
        call = partial(self._call_once, action, pack(header, parts), timeout_s)
        return call() if waiting is None else waiting.wait_aside(self.runtime, call)

    def _ask(
        self,
        action: str,
        header: Header,
        parts: Sequence[pa.RecordBatch],
        timeout: float,
        waiting: WaitingCall | None,
    ) -> tuple[Header, list[pa.Table]] | None:
        """The reply by a stream that is open; None if there is none for this call."""
        with self._gate:
            generation = self._generation
            try:
                answer = self._call_streams.ask(action, header, parts, timeout, waiting)
            except Exception as error:
                raise self._failed(error, generation) from error
        return None if answer is None else _reply(answer)

    def _call_once(self, action: str, body: bytes, timeout: float) -> tuple[Header, list[pa.Table]]:
        with self._gate:
            client, generation = self._client("actions")
            try:
                options = self._options(timeout)
                known = time.monotonic() - self._answered_at < _MOMENT_S
                if len(body) > _LARGE_BYTES and self._headers and not known:
                    list(client.do_action(("hello", pack(versioned({}))), options))
                results = list(client.do_action(flight.Action(action, body), options))
                self._answered_at = time.monotonic()
            except Exception as error:
                raise self._failed(error, generation) from error
            finally:
                # Who keeps the error, and with it this frame, keeps no connection.
                del client
        return _reply(results[0].body)

    def _failed(self, error: BaseException, generation: int) -> FastiError:
        meant = fasti_error(error)
        if isinstance(meant, (Unavailable, TimedOut)):
            self._lost(generation)
        if isinstance(meant, Unavailable) and "cause" in meant.details:
            return Unavailable(f"{meant.message} ({self.address})", details=meant.details)
        return meant

    # Streams

    def produce(
        self,
        descriptor: Header,
        schema: pa.Schema,
        receipt: Callable[[Header], None],
        ended: Ended,
    ) -> Stream:
        """Opens a stream of batches."""

        def heard(header: Header) -> None:
            self._heard_at = time.monotonic()
            receipt(header)

        with self._gate:
            client, generation = self._client("produce")
            try:
                writer, reader = client.do_put(_command(descriptor), schema, self._options())
            except Exception as error:
                raise self._failed(error, generation) from error
            finally:
                del client
            stream = ProduceStream(writer, reader, heard, _ending(self, generation, ended))
            self._begin(stream, "receipts")
        self._keep_time()
        return stream

    def consume(
        self,
        descriptor: Header,
        arrived: Arrived,
        ended: Ended,
    ) -> Stream:
        """Opens a session. The clock is asked first: the broker may be another by now."""
        self.sample_clock(min(self.timeout_s, _SILENCE_S))
        heard = self.estimate.heard

        def timed(header: Header, content: Content) -> None:
            self._heard_at = time.monotonic()
            if "now_us" in header:
                heard(header["now_us"])
            arrived(header, content)

        with self._gate:
            client, generation = self._client("sessions")
            try:
                writer, reader = client.do_exchange(_command(descriptor), self._options())
                writer.begin(RETURNED)
            except Exception as error:
                raise self._failed(error, generation) from error
            finally:
                del client
            stream = ConsumeStream(writer, reader, timed, _ending(self, generation, ended))
            self._begin(stream, "session")
        self._keep_time()
        return stream

    def _begin(self, stream: FlightStream, name: str) -> None:
        """Begins to read, unless the client was closed meanwhile: nothing would end it any more."""
        with self._lock:
            closed = self._closed.is_set()
            if not closed:
                self._streams.add(stream)
                stream.start(name)
        if closed:
            stream.cancel()
            raise Closed("the client is closed")

    # Reads

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """The batches that a ticket stands for; at least one, maybe empty."""
        ticket = dict(ticket)
        other = self.at(ticket.pop(LOCATION, None))
        if other is not self:
            yield from other.read(ticket)
            return
        with self._gate:
            client, generation = self._client("actions")
        reader = None
        try:
            reader = client.do_get(flight.Ticket(dump(versioned(ticket))), self._options())
            self._reads[id(reader)] = client, reader
            self._keep_time()
            empty = True
            for chunk in reader:
                self._heard_at = time.monotonic()
                empty = False
                yield chunk.data
            if empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        except GeneratorExit:
            # The caller wants no more: the broker shall not go on writing it.
            if reader is not None and not forking.refused():
                reader.cancel()
            raise
        except Exception as error:
            raise self._failed(error, generation) from error
        finally:
            self._reads.pop(id(reader), None)
            del client, reader

    def plan(self, descriptor: Header) -> list[Header]:
        """The tickets of a read."""
        with self._gate:
            client, generation = self._client("actions")
            try:
                info = client.get_flight_info(_command(descriptor), self._options(self.timeout_s))
                return [_ticket(endpoint) for endpoint in info.endpoints]
            except Exception as error:
                raise self._failed(error, generation) from error
            finally:
                del client

    # The clock

    def sample_clock(self, timeout: float | None = None) -> None:
        """Asks the broker for its time. Raises `unavailable` and the like."""
        body = pack({"version": VERSION})
        asked_us = monotonic_us()
        header, _ = self._call_once("clock", body, timeout or self.timeout_s)
        _learn_time(self.estimate, asked_us, header)

    def look_after(self) -> None:
        """Asks for the time, and ends what is open when the broker is silent: it connects again."""
        if not len(self._streams) and not self._reads:
            return
        asked_at = time.monotonic()
        try:
            self.sample_clock(_SILENCE_S)
        except TimedOut:
            if self._heard_at < asked_at:
                self._vanished()
        except FastiError:
            pass  # The streams on the connection notice, and connect again.

    def _vanished(self) -> None:
        logger.warning("the broker at %s is silent: connecting again", self.address)
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.abandon()
        for _, reader in list(self._reads.values()):
            reader.cancel()

    def _keep_time(self) -> None:
        with self._lock:
            if self._keeper is None and not self._closed.is_set():
                self._keeper = threading.Thread(
                    target=_sample_now_and_then,
                    args=(weakref.ref(self), self._closed),
                    name="fasti-clock",
                    daemon=True,
                )
                self._keeper.start()

    # Forks, see `forking.py`

    def pause(self) -> None:
        """Calls that begin wait until `after_fork`."""
        self._gate.pause()

    @property
    def in_use(self) -> bool:
        """Whether gRPC has something of ours."""
        return bool(self._clients or self._gate.count or len(self._streams) or self._reads)

    def before_fork(self, until: float) -> bool:
        """Ends all connections. False if something could not be ended."""
        self._leave_all(until)
        done = self._gate.wait_until_empty(until)
        # A call that had begun before the pause may have connected since.
        self._leave_all(until)
        if done and not self._reads:
            self._left = []
            return True
        return False

    def _leave_all(self, until: float) -> None:
        with self._lock:
            self._generation += 1
            self._left += self._clients.values()
            self._clients.clear()
            self._answered_at = -_MOMENT_S
            streams = list(self._streams)
        self._call_streams.leave()
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.join(max(0.0, until - time.monotonic()))

    def after_fork(self) -> None:
        """In the parent: who waited goes on."""
        self._left = []
        self._gate.resume()

    def _fork_locks(self) -> list[forking.Lock]:
        """Those that calls take."""
        return []

    def _forked(self) -> None:
        """In the child, where nothing is open and no thread is left."""
        forking.leak([*self._left, *self._clients.values(), *self._reads.values()])
        forking.leak(part for stream in list(self._streams) for part in stream.in_grpc())
        forking.leak(self._call_streams.in_grpc())
        self._call_streams = CallStreams(partial(_open_call_stream, weakref.ref(self)))
        self._lock = threading.Lock()
        self._gate = forking.CallGate()
        self._peers.forked()
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()
        self._clients, self._streams = {}, weakref.WeakSet()
        self._keeper = None
        self.estimate._forked()

    def close(self) -> None:
        """Ends everything that is open, and waits a while until no thread is inside gRPC any more.

        A thread that comes back from there when the interpreter has ended crashes the process.
        """
        with self._lock:
            self._closed.set()
            self._clients.clear()
            streams = list(self._streams)
        self._peers.close()
        self._call_streams.close()
        for stream in streams:
            stream.cancel()
        until = time.monotonic() + _END_S
        for stream in streams:
            stream.join(max(0.0, until - time.monotonic()))
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(max(0.0, until - time.monotonic()))
        self._gate.wait_until_empty(until)


def _sample_now_and_then(transport: weakref.ref[FlightTransport], closed: threading.Event) -> None:
    while not closed.wait(_CLOCK_EVERY_S):
        alive = transport()
        if alive is None:
            return
        try:
            alive.look_after()
        except Exception:  # The thread must live as long as its client.
            logger.exception("looking after %s", alive)
        del alive


def _learn_time(estimate: ClockEstimate, asked_us: int, header: Header) -> None:
    steady_us = int(header.get("steady_us", STEADY_US))
    estimate.sample(asked_us, monotonic_us(), int(header["now_us"]), steady_us)


def _open_call_stream(transport: weakref.ref[FlightTransport], life_s: float) -> Opened:
    alive = transport()
    if alive is None:
        raise Closed("the client is gone")
    client, _ = alive._client("actions")
    opened: Opened = client.do_exchange(_command({"call": "calls"}), alive._options(life_s))
    return opened


def _peer(address: Address, entrance: dict[str, Any], location: str) -> FlightTransport:
    return FlightTransport(replace(address, hosts=(host_and_port(location),)), **entrance)


def too_late(transport: FlightTransport, action: str, timeout: float | None) -> TimedOut:
    """What a caller is told whose answer didn't come in time; `timeout` if it was the caller's own."""
    limit_s = transport.timeout_s if timeout is None else timeout
    longer = "; connect(timeout=...) waits longer" if timeout is None else ""
    return TimedOut(
        f"{transport} did not answer {action} within {limit_s:g} s{longer}",
        details={"action": action},
    )


def _ending(transport: FlightTransport, generation: int, ended: Ended) -> Ended:
    def end(error: FastiError | None) -> None:
        if isinstance(error, Unavailable):
            transport._lost(generation)
        ended(error)

    return end


def _ticket(endpoint: Any) -> Header:
    """Where the broker that answers is not the one to ask, the ticket says which is."""
    ticket = parse(endpoint.ticket.ticket)
    if endpoint.locations:
        ticket[LOCATION] = endpoint.locations[0].uri.decode()
    return ticket


def _reply(body: pa.Buffer) -> tuple[Header, list[pa.Table]]:
    header, parts = unpack(body)
    if "error" in header:
        raise error_from_json(header["error"])
    return header, parts


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


def versioned(header: Header) -> Header:
    """A header with the protocol's version in it."""
    return {"version": VERSION, **header}


def _command(descriptor: Header) -> Any:
    return flight.FlightDescriptor.for_command(dump(versioned(descriptor)))
