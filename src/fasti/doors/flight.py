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

from fasti.broker.caller import Caller, caller_from
from fasti.broker.calls.requests import check_columns
from fasti.broker.logs import fields
from fasti.broker.service import Service
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
from fasti.protocol.envelope import dump, pack, parse_request, unpack
from fasti.protocol.problems import error_to_json
from fasti.protocol.quiet_grpc import quiet_grpc

_log = logging.getLogger("fasti.doors.flight")

_BEARER = "Bearer "
_CREDENTIALS = "credentials"
_LOG_EVERY_S = 60.0
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
        service: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[bytes, bytes] | None = None,
        credentials: Credentials | None = None,
        guard: Guard | None = None,
    ) -> None:
        quiet_grpc()
        scheme = "grpc+tls" if tls else "grpc"
        shown = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{scheme}://{shown}:{port}",
            tls_certificates=[tls] if tls else None,
            middleware={_CREDENTIALS: _Guard(credentials, service)} if credentials else None,
        )
        self._service = service
        self._guard = guard

    def start(self) -> None:
        """Begins to watch its connections. It listens since it was made.

        `serve` is left alone on purpose: it would replace the process's handlers of SIGTERM and
        SIGINT by Arrow's own, which wait for every open stream.
        """
        if self._guard is not None:
            self._guard.start(self.port, self._service.shard.threads)

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

    # Calls, each in a thread of gRPC's

    def do_action(self, context: Any, action: Any) -> Any:
        """Control and mutations by name."""
        self._heard(context)
        with _refusals(self._service):
            try:
                header, parts = unpack(action.body, of_request=True)
                reply, found = self._service.call(action.type, header, parts, _caller(context))
                body = pack(reply, found)
            except FastiError as error:
                body = pack({"error": error_to_json(error)})
            return iter([fl.Result(pa.py_buffer(body))])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Produce: batches in, receipts out."""
        line = self._heard(context)
        with _refusals(self._service):
            intake = self._service.intake(_command(descriptor), _caller(context))
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
                        for metadata, batch in _chunks(reader, line):
                            check()
                            if batch is not None:
                                intake.put(metadata, batch)
                            elif metadata.get("end") is True:
                                intake.end_producer()
                            else:
                                raise InvalidArgument("metadata without a batch", field="batch")
                    finally:
                        intake.finish()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Consume: credits and returns in, leased messages and answers out."""
        line = self._heard(context)
        with _refusals(self._service):
            session = self._service.exchange(_command(descriptor), _caller(context))
            try:
                writer.begin(session.schema)

                def write_all() -> None:
                    try:
                        while (written := session.next()) is not None:
                            header, batch = written
                            line.heard += 1
                            if batch is None:
                                writer.write_metadata(pa.py_buffer(dump(header)))
                            else:
                                writer.write_with_metadata(batch, pa.py_buffer(dump(header)))
                    finally:
                        session.close()

                with _writing(write_all) as check:
                    try:
                        for metadata, batch in _chunks(reader, line):
                            check()
                            session.take(metadata, batch)
                        session.finish()
                    except BaseException:
                        session.close()
                        raise
            finally:
                self._service.leave(session)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """A plan: an endpoint for each partition, all on one snapshot."""
        self._heard(context)
        with _refusals(self._service):
            command = _command(descriptor)
            schema, tickets = self._service.plan(command, _caller(context))
            endpoints = [fl.FlightEndpoint(dump(ticket), []) for ticket in tickets]
            return fl.FlightInfo(schema, descriptor, endpoints, -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Reads what a ticket stands for."""
        line = self._heard(context)
        with _refusals(self._service):
            schema, batches = self._service.read(parse_request(ticket.ticket), _caller(context))
            return fl.GeneratorStream(schema, _guarded(self._service, batches, line))


class _Known(fl.ServerMiddleware):
    """The name of the token with which a call came."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class _Guard(fl.ServerMiddlewareFactory):
    """Lets in only calls with a token that is known."""

    def __init__(self, credentials: Credentials, service: Service) -> None:
        super().__init__()
        self._credentials, self._service = credentials, service
        self._logged_at = -_LOG_EVERY_S

    def start_call(self, info: Any, headers: Any) -> _Known:
        """Called by gRPC before each call. What it returns goes with the call."""
        values = headers.get("authorization") or [""]
        token = values[0].removeprefix(_BEARER) if values[0].startswith(_BEARER) else ""
        name = self._credentials.check(token) if token else None
        if name is None:
            self._note_refused(info)
            raise _as_flight(
                Unauthenticated(
                    "the call has no token that is known here: give one by token=, --token or "
                    "FASTI_TOKEN; `fasti token create` makes one"
                )
            )
        return _Known(name)

    def _note_refused(self, info: Any) -> None:
        """Counted each time, logged now and then: somebody may try for hours."""
        metrics = self._service.metrics
        metrics.unauthenticated()
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            told = fields(call=info.method.name.lower(), total=metrics.unauthenticated_calls())
            _log.warning("a call was refused: no token that is known here", extra=told)


def _caller(context: Any) -> Caller:
    known = context.get_middleware(_CREDENTIALS)
    return caller_from(known.name if known is not None else "", _peer(context))


def _peer(context: Any) -> str:
    """Where a call comes from: an address and a port, as gRPC tells it."""
    kind, _, address = str(context.peer()).partition(":")
    # It writes brackets as URLs do.
    return unquote(address) if kind in ("ipv4", "ipv6") else str(context.peer())


def _command(descriptor: Any) -> dict[str, Any]:
    if descriptor.descriptor_type != fl.DescriptorType.CMD:
        raise InvalidArgument("the descriptor must be a command", field="descriptor")
    return parse_request(descriptor.command)


def _chunks(reader: Any, line: Line) -> Iterator[tuple[dict[str, Any], pa.RecordBatch | None]]:
    """What the other side writes, until it has finished."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        line.heard += 1
        metadata = chunk.app_metadata
        header = parse_request(metadata.to_pybytes()) if metadata is not None else {}
        yield header, chunk.data


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
    service: Service, batches: Iterator[pa.RecordBatch], line: Line
) -> Iterator[pa.RecordBatch]:
    with _refusals(service):
        for batch in batches:
            # Whoever reads much sends much as well: word of what has arrived.
            line.heard += 1
            yield batch


@contextmanager
def _refusals(service: Service) -> Iterator[None]:
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
        service.shard.faults.note_call("call", error)
        raise _as_flight(
            InternalError(f"the broker failed on this call, as far as it came: {error!r}")
        ) from error


def _as_flight(error: FastiError) -> Exception:
    kind = next((made for ours, made in _FLIGHT_ERRORS.items() if isinstance(error, ours)), None)
    problem = error_to_json(error)
    made = (kind or fl.FlightServerError)(
        f"{error.code}: {problem['message']}", extra_info=dump(problem)
    )
    assert isinstance(made, Exception)
    return made
