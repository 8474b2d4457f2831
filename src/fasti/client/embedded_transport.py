"""A broker inside this process: the SDK's words go to its service without a wire.

Answers come from threads of their own, as they do over Flight, so that everything above behaves
alike; but nothing is encoded, and the broker's clock is asked directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fasti.broker.caller import EMBEDDED
from fasti.broker.calls.intake import Intake
from fasti.broker.clock import EngineClock
from fasti.broker.host import SHARD_NUMBER, Host
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Exchange, Service
from fasti.broker.shard import Shard
from fasti.client import forking
from fasti.client.call_numbers import CallNumbers
from fasti.client.transport import (
    TIMEOUT_S,
    Arrived,
    BrokerClock,
    Content,
    Ended,
    Header,
    OnlyShard,
)
from fasti.config import Durability, ShardSettings
from fasti.errors import (
    Closed,
    FastiError,
    IllegalTransition,
    InvalidArgument,
    Unavailable,
)
from fasti.protocol.schemas import VERSION
from fasti.protocol.single_row import SingleRow
from fasti.runtime import may_be_interrupted
from fasti.storage.directory import directory_storage, shard_storages
from fasti.storage.storage_engine import StorageEngine

_VERSION = {"version": VERSION}
# So often a call is made whose outcome is not known, because the broker failed and recovers.
_TRIES = 4


class LocalClock:
    """The broker's own clock: there is nothing to estimate."""

    unsure_us = 0

    def __init__(self, clock: EngineClock) -> None:
        # Exactly what the broker goes by. Asked for every message: nothing stands in between.
        self.now_us = clock.now_us
        self.seconds_until = clock.seconds_until

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Real time doesn't leap here: waits are short, and are looked at again when they end."""
        return lambda: None


def open_embedded(directory: str, options: dict[str, Any], timeout_s: float) -> EmbeddedTransport:
    """For `connect`, with its options of an embedded broker."""
    clone = bool(options.pop("clone", False))
    settings = _shard_settings(options)
    return EmbeddedTransport(Path(directory), settings=settings, timeout_s=timeout_s, clone=clone)


def open_shards(
    directory: str, options: dict[str, Any], timeout_s: float
) -> tuple[list[EmbeddedTransport], Header, Callable[[], None]]:
    """Opens all shards of a directory, for `connect`: a way to each by number, what `hello` tells, and
    how to shut the broker down behind them.

    `shards` in the options is for a new directory. One that has one shard is opened like any other.
    Raises what `connect` does.
    """
    shards, clone = options.pop("shards", None), bool(options.pop("clone", False))
    settings = _shard_settings(options)
    folders, storages = shard_storages(directory, shards, clone=clone)
    host = Host(storages, settings, shards=folders.shards, cluster=folders.cluster)
    transports = [
        EmbeddedTransport(directory, service=service, timeout_s=timeout_s)
        for service in host.all_services()
    ]
    hello, _ = transports[0].call("hello")

    def close() -> None:
        for transport in transports:
            transport.close()
        host.begin_stopping()
        host.close_services()
        host.close()

    return transports, hello, close


def _shard_settings(given: dict[str, Any]) -> ShardSettings:
    """The settings of an embedded broker: those of `ShardSettings`, or one made before."""
    whole = given.pop("settings", None)
    names = {field.name for field in fields(ShardSettings)}
    for name in given:
        if name not in names:
            raise InvalidArgument(f"connect has no option {name!r}", field=name)
    if "durability" in given:
        try:
            given["durability"] = Durability(given["durability"])
        except ValueError:
            raise InvalidArgument(
                "durability must be always or interval", field="durability"
            ) from None
    return replace(whole or ShardSettings(), **given)


class EmbeddedTransport(OnlyShard):
    """Opens a data directory, or takes a broker that its caller made (and will close)."""

    clock: BrokerClock
    on_network = False

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        storage: StorageEngine | None = None,
        settings: ShardSettings | None = None,
        service: Service | None = None,
        clock: BrokerClock | None = None,
        timeout_s: float = TIMEOUT_S,
        clone: bool = False,
    ) -> None:
        self.timeout_s = timeout_s
        self._owns_shard = service is None
        self._data = data
        if service is None:
            if storage is None:
                if data is None:
                    raise ValueError("data, storage or service must be given")
                storage = directory_storage(data, clone)
            service = _opened(Shard(storage, settings))
        self.service = service
        self.runtime = service.placement.catalogue.runtime
        self.clock = clock or LocalClock(service.clock)
        self._numbers = CallNumbers(self.runtime)
        self._open: set[_ProduceStream | _ConsumeStream] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._elsewhere = False
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """None: the broker stays in the parent."""
        return []

    def _forked(self) -> None:
        """In a child process: the broker, its threads and its files are the parent's."""
        self._elsewhere = True

    def _check_here(self) -> None:
        if self._elsewhere:
            raise IllegalTransition(
                "the embedded broker is in the process that this one was forked from: open one "
                "after the fork, or start `fasti serve` for several processes"
            )

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """Carried out in this thread."""
        self._check_here()
        given = [part if isinstance(part, SingleRow) else _table(part) for part in parts]
        fields = {**_VERSION, **(header or {})}
        tries = 0
        with self._numbers.call(action) as pending:
            while True:
                try:
                    reply, parts_out = self.service.call(
                        EMBEDDED, action, pending.header(fields), given
                    )
                    return reply, [_table(part) for part in parts_out]
                except FastiError as error:
                    # The broker recovers: the next attempt waits in its inbox until it has.
                    tries += 1
                    ended = isinstance(error, Unavailable) or tries == _TRIES
                    if ended or not pending.may_repeat(error):
                        raise pending.give_up(error) from error.__cause__

    def produce(
        self,
        descriptor: Header,
        schema: pa.Schema,
        receipt: Callable[[Header], None],
        ended: Ended,
    ) -> _ProduceStream:
        """Receipts come from a thread of the stream's own."""
        self._check_here()
        intake = self.service.intake(EMBEDDED, {**_VERSION, "call": "produce", **descriptor})
        stream = _ProduceStream(intake, receipt, ended, self._forget)
        return self._started(stream, intake.end)

    def consume(
        self,
        descriptor: Header,
        arrived: Arrived,
        ended: Ended,
    ) -> _ConsumeStream:
        """Messages and answers come from a thread of the stream's own."""
        self._check_here()
        session = self.service.exchange(EMBEDDED, {**_VERSION, "call": "consume", **descriptor})
        stream = _ConsumeStream(self.service, session, arrived, ended, self._forget)
        return self._started(stream, lambda: self.service.leave(session))

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """Pages are read as they are asked for."""
        self._check_here()
        header = {**_VERSION, "call": "list", **ticket}
        header.pop(SHARD_NUMBER, None)
        yield from self.service.read(EMBEDDED, header)[1]

    def plan(self, descriptor: Header) -> list[Header]:
        """The tickets of a read."""
        self._check_here()
        return self.service.plan(EMBEDDED, {**_VERSION, "call": "list", **descriptor})[1]

    def at(self, location: str | None) -> EmbeddedTransport:
        """There is no other broker."""
        return self

    def close(self) -> None:
        """Ends every stream; shuts the broker down if it is ours."""
        if self._elsewhere:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            streams = list(self._open)
        for stream in streams:
            stream.cancel()
        if self._owns_shard:
            self.service.begin_stopping()
            self.service.close()
            for shard in self.service.placement.shards():
                shard.close()

    def __repr__(self) -> str:
        return f"embedded:{self._data}" if self._data is not None else "an embedded broker"

    def _started(self, stream: Any, undo: Callable[[], None]) -> Any:
        with self._lock:
            closed = self._closed
            if not closed:
                self._open.add(stream)
        if closed:
            # The broker may live on without this client, and would keep it.
            undo()
            raise Closed("the client is closed")
        stream.start()
        return stream

    def _forget(self, stream: _ProduceStream | _ConsumeStream) -> None:
        with self._lock:
            self._open.discard(stream)


def _opened(shard: Shard) -> Service:
    """A service for the shard, which is closed if there can't be one: it has the directory's lock."""
    try:
        return Service(OneShard(shard), Metrics())
    except BaseException:
        shard.close(checkpoint=False)
        raise


def _cancelled(cancelled: bool) -> FastiError | None:
    return Unavailable("the stream was cancelled") if cancelled else None


class _ProduceStream:
    """A producer's stream without a wire."""

    def __init__(
        self,
        intake: Intake,
        receipt: Callable[[Header], None],
        ended: Ended,
        forget: Callable[[Any], None],
    ) -> None:
        self._intake, self._receipt, self._ended = intake, receipt, ended
        self._forget = forget
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="fasti-receipts", daemon=True)

    def start(self) -> None:
        """Receipts may come from now on."""
        self._thread.start()

    def _run(self) -> None:
        error: FastiError | None = None
        try:
            while (receipt := self._intake.next_receipt()) is not None and not self._cancelled:
                self._receipt(receipt)
        except BaseException as failed:
            error = Unavailable(f"the stream failed: {failed!r}")
            raise
        finally:
            self._intake.end()
            self._forget(self)
            self._ended(error or _cancelled(self._cancelled))

    def send(self, metadata: Header, content: Content = None) -> None:
        """Waits while too much has no receipt yet."""
        try:
            if content is None:
                self._intake.end_producer()
            else:
                put: Callable[..., Header | None] = self._intake.put
                if type(content) is bytes:
                    put = self._intake.put_row
                # Receipts are for threads that no signal interrupts: one that is half noted is lost.
                receipt = put(metadata, content, waited=not may_be_interrupted())
                if receipt is not None:
                    self._receipt(receipt)
        except Closed as error:
            raise Unavailable("the stream has ended") from error

    def finish(self) -> None:
        """No more batches."""
        self._intake.finish()

    def cancel(self) -> None:
        """Ends it; what was taken is carried out all the same."""
        self._cancelled = True
        self._intake.finish()
        self._intake.end()


class _ConsumeStream:
    """A consumer's session without a wire."""

    def __init__(
        self,
        service: Service,
        session: Exchange,
        arrived: Arrived,
        ended: Ended,
        forget: Callable[[Any], None],
    ) -> None:
        self._service, self._session = service, session
        self._arrived, self._ended, self._forget = arrived, ended, forget
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="fasti-session", daemon=True)

    def start(self) -> None:
        """Messages may come from now on."""
        self._thread.start()

    def _run(self) -> None:
        error: FastiError | None = None
        try:
            while (written := self._session.next()) is not None and not self._cancelled:
                self._arrived(*written)
        except BaseException as failed:
            error = Unavailable(f"the stream failed: {failed!r}")
            raise
        finally:
            self._service.leave(self._session)
            self._forget(self)
            self._ended(error or _cancelled(self._cancelled))

    def send(self, metadata: Header, content: Content = None) -> None:
        """Carried out at once; answered by `arrived`."""
        assert type(content) is not bytes, "a consumer returns rows in batches"
        self._session.take(metadata, content)

    def finish(self) -> None:
        """What was asked is answered, then the session ends."""
        self._session.finish()

    def cancel(self) -> None:
        """Ends it at once."""
        self._cancelled = True
        with suppress(FastiError):
            self._session.close()


def _table(part: pa.RecordBatch | pa.Table) -> pa.Table:
    return part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
