"""The Arrow Flight door: gRPC in, the service's words out, and back.

Every call runs in a thread of gRPC's. A stream has one writer thread of its own beside the thread
that reads it, because two writers at once abort the process; the handler joins its writer before
it returns. All refusals are `FastiError`s and become Flight errors with the code in front and the
whole of it, as JSON, in `extra_info`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as fl

from fasti.broker.caller import PEER, Caller, caller_from
from fasti.broker.calls.call_stream import SCHEMA, CallStream
from fasti.broker.calls.requests import check_columns
from fasti.broker.host import SHARD_NUMBER, Host, OneService, reader_of
from fasti.broker.lobby import Lobby
from fasti.broker.logs import fields
from fasti.broker.metrics.counts import Metrics
from fasti.broker.service import Service
from fasti.broker.stale import StaleService
from fasti.doors.guard import Guard
from fasti.doors.strangers import Line
from fasti.errors import (
    FastiError,
    InternalError,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from fasti.protocol.envelope import dump, join_row, pack, parse_request, split_row, unpack
from fasti.protocol.grpc_setup import prepare_grpc
from fasti.protocol.problems import error_to_json
from fasti.protocol.tokens import check_token

_log = logging.getLogger("fasti.doors.flight")

_BEARER = "Bearer "
_CREDENTIALS = "credentials"
_LOG_EVERY_S = 60.0
# What is there already is read in less.
_SILENCE_S = 0.0001
_FLIGHT_ERRORS: dict[type[FastiError], Any] = {
    Unavailable: fl.FlightUnavailableError,
    Unauthenticated: fl.FlightUnauthenticatedError,
    PermissionDenied: fl.FlightUnauthorizedError,
}


class Credentials(Protocol):
    """Who may come in."""

    def check(self, token: str) -> str | None:
        """The name behind a token, or None."""


class FlightDoor(fl.FlightServerBase):
    """Listens as soon as it is made."""

    def __init__(
        self,
        service: Service | Host,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[bytes, bytes] | None = None,
        credentials: Credentials | None = None,
        guard: Guard | None = None,
        client_ca: bytes | None = None,
        advertise: str = "",
        inside: bool = False,
    ) -> None:
        """`host` may be the path of a Unix socket, with a slash in front; then without a port.

        `advertise` is the host and port at which other machines reach this broker. `inside`: only
        processes of this broker can reach it, and calls without a token are theirs.
        """
        prepare_grpc()
        # Which service a call is for, and the one that answers for all.
        shards = service if isinstance(service, Host) else OneService(service)
        self._shards = shards
        scheme = "grpc+tls" if tls else "grpc"
        shown = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc+unix://{host}" if host.startswith("/") else f"{scheme}://{shown}:{port}",
            tls_certificates=[tls] if tls else None,
            verify_client=client_ca is not None,
            root_certificates=client_ca,
            middleware=self._middleware(credentials, shards.metrics, inside),
        )
        self._service: Service | Lobby = shards.first
        self._guard = guard
        self._advertise = f"grpc+{'tls' if tls else 'tcp'}://{advertise}" if advertise else ""

    @staticmethod
    def _middleware(
        credentials: Credentials | None, metrics: Metrics, inside: bool
    ) -> dict[str, Any] | None:
        if inside:
            return {_CREDENTIALS: _Insiders(credentials, metrics)}
        return {_CREDENTIALS: _Tokens(credentials, metrics)} if credentials else None

    def start(self) -> None:
        """Begins to watch its connections. It listens since it was made.

        `serve` is left alone on purpose: it would replace the process's handlers of SIGTERM and
        SIGINT by Arrow's own, which wait for every open stream.
        """
        if self._guard is not None:
            self._guard.start(self.port, self._service.threads)

    def stop(self) -> None:
        """Returns when every call that was under way has ended."""
        self.shutdown()
        if self._guard is not None:
            self._guard.stop()

    def _heard(self, context: Any) -> Line:
        """A call was let in: its connection is no stranger's."""
        line = Line() if self._guard is None else self._guard.line(context.peer())
        line.heard += 1
        return line

    def _let_in(self, context: Any) -> Caller:
        """Who calls. Raises `unauthenticated` for a call that the middleware left to be refused."""
        known = context.get_middleware(_CREDENTIALS)
        if isinstance(known, _Refused):
            known.tokens.note(known.why, "do_action", _peer(context))
            raise _unknown_token()
        return _caller(context)

    # Calls, each in a thread of gRPC's

    def do_action(self, context: Any, action: Any) -> Any:
        """Control and mutations by name."""
        with _refusals(self._service):
            caller = self._let_in(context)
            self._heard(context)
            try:
                header, parts = unpack(action.body, of_request=True)
                service = self._shards.service_for(action.type, header)
                reply, rows = service.call(caller, action.type, header, parts)
                body = pack(reply, rows)
            except FastiError as error:
                body = pack({"error": error_to_json(error)})
            return iter([fl.Result(pa.py_buffer(body))])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Produce: batches in, receipts out."""
        line = self._heard(context)
        with _refusals(self._service):
            command = _command(descriptor)
            intake = self._shards.service_of(command).intake(_caller(context), command)
            with closing(intake):
                check_columns(reader.schema, intake.types, intake.needed)

                def write_receipts() -> None:
                    try:
                        while (receipt := intake.next_receipt()) is not None:
                            writer.write(pa.py_buffer(dump(receipt)))
                    finally:
                        intake.end()

                with _writing(write_receipts) as check:
                    try:
                        for metadata, content, waited in _chunks(reader, line):
                            check()
                            if content is not None:
                                put = intake.put_row if type(content) is bytes else intake.put
                                receipt = put(metadata, content, waited)
                                if receipt is not None:
                                    writer.write(pa.py_buffer(dump(receipt)))
                            elif metadata.get("end") is True:
                                intake.end_producer()
                            else:
                                raise InvalidArgument("metadata without a batch", field="batch")
                    finally:
                        intake.finish()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Calls: requests in, answers out. Or a session, see `_consume`."""
        line = self._heard(context)
        with _refusals(self._service):
            caller, command = _caller(context), _command(descriptor)
            if command.get("call") == CallStream.call:
                self._answer_calls(caller, command, reader, writer, line)
            else:
                self._consume(caller, command, reader, writer, line)

    def _answer_calls(
        self, caller: Caller, command: dict[str, Any], reader: Any, writer: Any, line: Line
    ) -> None:
        """Reads, carries out and writes in this thread. Ends when the broker stops, behind an answer."""
        # Each request names its shard.
        command.pop(SHARD_NUMBER, None)
        service, route = self._service, self._shards.service_for
        with service.call_stream(caller, command, route) as stream:
            if len(reader.schema):
                raise InvalidArgument("a stream of calls has no columns", field="schema")
            writer.begin(SCHEMA)
            writer.write_metadata(pa.py_buffer(stream.greeting))
            while not self._service.stopping:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                line.heard += 1
                writer.write_metadata(pa.py_buffer(stream.answer(chunk.app_metadata)))

    def _consume(
        self, caller: Caller, command: dict[str, Any], reader: Any, writer: Any, line: Line
    ) -> None:
        """Credits and returns in, leased messages and answers out."""
        service = self._shards.service_of(command)
        session = service.exchange(caller, command)
        try:
            writer.begin(session.schema)

            def write_all() -> None:
                try:
                    while (written := session.next()) is not None:
                        header, content = written
                        line.heard += 1
                        if type(content) is bytes:
                            writer.write_metadata(pa.py_buffer(join_row(header, content)))
                        elif content is None:
                            writer.write_metadata(pa.py_buffer(dump(header)))
                        else:
                            writer.write_with_metadata(content, pa.py_buffer(dump(header)))
                finally:
                    session.close()

            with _writing(write_all) as check:
                try:
                    for metadata, content, _ in _chunks(reader, line):
                        check()
                        if type(content) is bytes:
                            raise InvalidArgument("what is returned has no payload", field="row")
                        session.take(metadata, content)
                    session.finish()
                except BaseException:
                    session.close()
                    raise
        finally:
            service.leave(session)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """A plan: an endpoint for each partition, all on one snapshot."""
        self._heard(context)
        with _refusals(self._service):
            command = _command(descriptor)
            service = self._shards.service_of(command)
            schema, tickets = service.plan(_caller(context), command)
            # Without an address, the tickets are for the broker that was asked.
            where = [self._advertise] if self._advertise else []
            endpoints = [fl.FlightEndpoint(dump(ticket), where) for ticket in tickets]
            return fl.FlightInfo(schema, descriptor, endpoints, -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Reads what a ticket stands for."""
        line = self._heard(context)
        with _refusals(self._service):
            command = parse_request(ticket.ticket)
            service = reader_of(self._shards, command)
            schema, batches = service.read(_caller(context), command)
            return fl.GeneratorStream(schema, _guarded(service, batches, line))


class _Known(fl.ServerMiddleware):
    """The name of the token with which a call came."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class _Refused(fl.ServerMiddleware):
    """Of an action that has no token: refused by the door, which knows where it comes from."""

    def __init__(self, tokens: _Tokens, why: str) -> None:
        super().__init__()
        self.tokens, self.why = tokens, why


class _Tokens(fl.ServerMiddlewareFactory):
    """Lets in only calls with a token that is known.

    Middleware isn't told who calls, and the log should say it. An action is one message, which is here
    already: it is left to `do_action` to refuse. Everything else is refused before any of it is read.
    """

    def __init__(self, credentials: Credentials, metrics: Metrics) -> None:
        super().__init__()
        self._credentials, self._metrics = credentials, metrics
        self._logged_at = -_LOG_EVERY_S

    def start_call(self, info: Any, headers: Any) -> _Known | _Refused:
        """Called by gRPC before each call. What it returns goes with the call."""
        try:
            token = _token(headers)
            name = self._credentials.check(token)
            if name is not None:
                return _Known(name)
            why = "the token is not known here"
        except Unauthenticated as error:
            why = error.message
        if info.method == fl.FlightMethod.DO_ACTION:
            return _Refused(self, why)
        self.note(why, info.method.name.lower())
        raise _as_flight(_unknown_token())

    def note(self, why: str, call: str, peer: str = "-") -> None:
        """Counted each time, logged now and then: a stranger may try for hours. Never the token."""
        metrics = self._metrics
        metrics.unauthenticated()
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            facts = fields(call=call, peer=peer, total=metrics.unauthenticated_calls())
            _log.warning("a call was refused: %s", why, extra=facts)


class _Peer(fl.ServerMiddleware):
    """Of a call by a process of this broker."""


class _Insiders(_Tokens):
    """At a socket that only processes of this broker can reach: they need no token. One that a call has
    is that of somebody in whose name it is made, and is looked at as at any door.
    """

    def __init__(self, credentials: Credentials | None, metrics: Metrics) -> None:
        super().__init__(credentials or _NoCredentials(), metrics)

    def start_call(self, info: Any, headers: Any) -> Any:
        """Called by gRPC before each call."""
        return super().start_call(info, headers) if headers.get("authorization") else _Peer()


class _NoCredentials:
    """Nobody has a token."""

    def check(self, token: str) -> str | None:
        return None


def _token(headers: Any) -> str:
    """The token of a call. Raises `unauthenticated` with what is odd about it."""
    values = headers.get("authorization")
    if not values:
        raise Unauthenticated("it has no token")
    value = values[0]
    if len(values) > 1 or not isinstance(value, str) or not value.startswith(_BEARER):
        raise Unauthenticated("its authorization is not one bearer token")
    return check_token(value.removeprefix(_BEARER))


def _unknown_token() -> Unauthenticated:
    return Unauthenticated(
        "the call has no token that is known here: give one by token=, --token or "
        "FASTI_TOKEN; `fasti token create` makes one"
    )


def _caller(context: Any) -> Caller:
    """By its token; without one by its certificate, if it showed one."""
    known = context.get_middleware(_CREDENTIALS)
    if isinstance(known, _Peer):
        return PEER
    name = known.name if known is not None else context.peer_identity().decode(errors="replace")
    return caller_from(name, _peer(context))


def _peer(context: Any) -> str:
    """Where a call comes from: an address and a port, as gRPC tells it."""
    kind, _, address = str(context.peer()).partition(":")
    # It writes brackets as URLs do.
    return unquote(address) if kind in ("ipv4", "ipv6") else str(context.peer())


def _command(descriptor: Any) -> dict[str, Any]:
    if descriptor.descriptor_type != fl.DescriptorType.CMD:
        raise InvalidArgument("the descriptor must be a command", field="descriptor")
    return parse_request(descriptor.command)


def _chunks(reader: Any, line: Line) -> Iterator[tuple[dict[str, Any], Any, bool]]:
    """What the other side writes, until it has finished: metadata with a batch, or with the payload of
    a row, or alone; and whether it was silent before.
    """
    while True:
        begin = time.perf_counter()
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        waited = time.perf_counter() - begin >= _SILENCE_S
        line.heard += 1
        metadata, content = chunk.app_metadata, chunk.data
        if metadata is None:
            yield {}, content, waited
            continue
        text, payload = split_row(metadata.to_pybytes())
        if payload is not None:
            if content is not None:
                raise InvalidArgument("a row's payload and a batch in one message", field="row")
            content = payload
        yield parse_request(text), content, waited


@contextmanager
def _writing(write: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Runs the stream's one writer beside the body, and outlives neither.

    What it gives raises what the writer died of: a stream that is only read from would go on for ever
    without a word to the other side.
    """
    died: list[Exception] = []

    def run() -> None:
        try:
            write()
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            # The other side is gone; the thread that reads notices by itself.
            _log.debug("a stream ended: %s", error)
        except Exception as error:
            died.append(error)

    def check() -> None:
        if died:
            raise died[0]

    thread = threading.Thread(target=run, name="fasti-writer", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        thread.join()
    check()


def _guarded(
    service: Service | StaleService, batches: Iterator[pa.RecordBatch], line: Line
) -> Iterator[pa.RecordBatch]:
    with _refusals(service):
        for batch in batches:
            # A connection that reads much sends much as well: word of what has arrived.
            line.heard += 1
            yield batch


@contextmanager
def _refusals(service: Service | Lobby | StaleService) -> Iterator[None]:
    """Our errors as Flight's. Others that come from a stream that broke pass as they are."""
    try:
        yield
    except FastiError as error:
        raise _as_flight(error) from error
    except pa.ArrowMemoryError as error:
        raise _as_flight(Overloaded(f"there is no memory for this: {error}")) from error
    except (fl.FlightError, pa.ArrowException, OSError, StopIteration, GeneratorExit):
        raise
    except Exception as error:
        service.faults.note_call("call", error)
        raise _as_flight(
            InternalError(f"the broker failed on this call, as far as it came: {error!r}")
        ) from error


def _as_flight(error: FastiError) -> Exception:
    kinds = (theirs for ours, theirs in _FLIGHT_ERRORS.items() if isinstance(error, ours))
    problem = error_to_json(error)
    text = f"{error.code}: {problem['message']}"
    refusal: Exception = next(kinds, fl.FlightServerError)(text, extra_info=dump(problem))
    return refusal
