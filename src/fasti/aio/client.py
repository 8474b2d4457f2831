"""The asyncio client: one connection to a broker, living in one event loop.

It stands on a synchronous client and its threads. Everything here is for tasks of the loop in which
it was made; several loops, in several threads or one after the other, have a client each.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from fasti.aio.calls import LoopCalls
from fasti.aio.changes import Changes
from fasti.aio.closing import AsyncClosing
from fasti.aio.consumer import Consumer
from fasti.aio.home import Home
from fasti.aio.messages import Messages
from fasti.aio.producer import Producer
from fasti.aio.reader import Reader
from fasti.aio.sinks import Sink
from fasti.aio.topic_calls import TopicCalls
from fasti.aio.transaction import Transaction
from fasti.client import client as sync
from fasti.client.arguments import ConnectOptions
from fasti.client.calls import Answer
from fasti.client.durations import Duration, duration_us, seconds
from fasti.client.failures import OnFailure, call_safely, checked_callback
from fasti.client.log_place import Start
from fasti.client.transport import BrokerClock
from fasti.errors import Closed, FastiError, InvalidArgument


def connect(
    address: str | None = None,
    *,
    on_failure: OnFailure | None = None,
    **options: Unpack[ConnectOptions],
) -> Connecting:
    """Connects to a broker, or opens one inside this process; arguments as for `fasti.connect`.

        client = await fasti.aio.connect("fasti://127.0.0.1:7170", owner="billing")
        async with fasti.aio.connect("embedded:./data") as client: ...

    `on_failure(failure)`, a plain function, is called in the loop's thread for every send and ack
    that failed and whose outcome was not awaited; what it raises is logged.

    Raises `unavailable` when no broker answers, `unauthenticated`, `locked` when another process
    has the directory open, `invalid_argument`.
    """
    return Connecting(partial(sync.connect, address, **options), _plain(on_failure))


def _plain(on_failure: OnFailure | None) -> OnFailure | None:
    if inspect.iscoroutinefunction(on_failure):
        raise InvalidArgument(
            "on_failure must be a plain function; it may start a task", field="on_failure"
        )
    return checked_callback(on_failure)


class Connecting:
    """A client to be: await it, or use it by `async with`. Once."""

    def __init__(
        self, connect: Callable[[], sync.Client], on_failure: OnFailure | None = None
    ) -> None:
        self._connect = connect
        self._on_failure = on_failure
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._made().__await__()

    async def _made(self) -> Client:
        home = Home()
        connecting = home.submit(self._connect)
        try:
            return Client(await home.hear(connecting), home, on_failure=self._on_failure)
        except BaseException:
            # Connected too late to be used.
            connecting.add_done_callback(_close_unused)
            home.abandon()
            raise

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None, "entered before"
        await self._client.__aexit__(kind, error, traceback)


def _close_unused(connecting: Any) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        with suppress(FastiError):
            connecting.result().close()


class Client(TopicCalls, AsyncClosing):
    """Made by `await fasti.aio.connect(...)`, or around a synchronous client, which it then owns:

        async with fasti.aio.Client(broker.client()) as client: ...      # broker: a VirtualBroker

    Closing it flushes its producers and gives back what its consumers have not started.
    """

    _client: sync.Client

    def __init__(
        self,
        client: sync.Client,
        home: Home | None = None,
        *,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.owner = client.owner
        self._on_failure = on_failure
        self.server = client.server
        self.limits = client.limits
        self._client = client
        self._home = home or Home()
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        # Those that may have something under way: not to be forgotten before it is sent.
        self._kept: set[Producer] = set()
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._calls: LoopCalls | None = None

    @property
    def clock(self) -> BrokerClock:
        """The broker's clock, as far as it is known here: its lower end."""
        return self._client.clock

    @property
    def unread_failures(self) -> int:
        """How many sends and acks failed without anything reading their outcome."""
        return self._client.unread_failures

    def _in_loop(self, on_failure: OnFailure | None) -> OnFailure | None:
        """The callback as the client's thread calls it: it runs in the loop's."""
        given = _plain(on_failure) or self._on_failure
        if given is None:
            return None
        return lambda failure: self._home.post(partial(call_safely, given, failure))

    def _check_open(self) -> None:
        if self._home.closing:
            raise Closed("the client is closed")

    # Messages

    def producer(
        self,
        topic: str,
        *,
        owner: str | None = None,
        max_block: Duration = "30s",
        deadline: Duration = "2m",
        buffer_rows: int = 200_000,
        buffer_bytes: int = 64 << 20,
        on_failure: OnFailure | None = None,
    ) -> Producer:
        """A producer of a topic's messages, in `owner`'s name (default: the client's).

        At `buffer_rows` or `buffer_bytes` without a receipt `await send(...)` waits up to
        `max_block`. While the broker is full or away a send is repeated for up to `deadline`. Each
        producer has a connection's stream and two threads while it is used: keep it rather than
        make one per message. `on_failure` (default: the client's) as for `connect`.
        """
        self._check_open()
        made = Producer(
            self._home,
            self._client.producer(
                topic,
                owner=owner,
                max_block=max_block,
                deadline=deadline,
                buffer_rows=buffer_rows,
                buffer_bytes=buffer_bytes,
                on_failure=self._in_loop(on_failure),
            ),
            duration_us(max_block, "max_block") / 1_000_000,
        )
        self._kept = {producer for producer in self._kept if producer.busy} | {made}
        self._producers.add(made)
        return made

    def consumer(
        self,
        topic: str,
        *,
        name: str | None = None,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        group: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Consumer:
        """A consumer: iterate over it for messages, each at its moment, under a lease.

            async for message in client.consumer("emails", name="worker-1"):
                await handle(message.payload)
                message.ack()

        `name` is its identity: one that comes back under its name gets its live leases again, and
        ends an older session of that name (`fenced`). The default is unique. With `timeout` the
        iteration ends after that long without a message. Leases renew themselves, however busy the
        loop is, for a message that your code has held for `time_limit` no longer. `on_failure` (default: the client's)
        as for `connect`.

        At most `prefetch` messages are here unfinished. Without it the number adapts: it grows while
        messages are finished within milliseconds, and falls to what is being worked on when they
        take long, so that nothing waits here that another consumer could begin with.

        Of a log, `group` consumes: its consumers share the rows, and each row is acked once for the
        group. A group that is not there is made, and begins at the earliest row.
        """
        self._check_open()
        made = Consumer(
            self._home,
            self._client.transport,
            topic,
            name=name,
            prefetch=prefetch,
            timeout=timeout,
            time_limit=time_limit,
            limits=self.limits,
            group=group,
            on_failure=self._in_loop(on_failure),
            reports=self._client.failure_reports,
        )
        self._consumers.add(made)
        self._client.look_after(made.session)
        return made

    def reader(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Reader:
        """A reader of a log: rows in the order of their offsets; nothing is leased or acked.

            async for message in client.reader("events", start="earliest"): ...

        Arguments as for `fasti.Client.reader`.
        """
        self._check_open()
        reader = self._client.reader(
            topic, start=start, partition=partition, follow=follow, timeout=timeout
        )
        return Reader(self._home, reader)

    async def changes(
        self,
        *,
        start: Any = "earliest",
        topic: str | None = None,
        key: str | None = None,
        id: int | Sequence[int] | None = None,
        payload: bool = False,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Changes:
        """Everything that happened to every message, in order, as Arrow tables.

            async for table in await client.changes(topic="emails"): ...

        Arguments as for `fasti.Client.changes`.
        """
        self._check_open()
        make = partial(
            self._client.changes,
            start=start,
            topic=topic,
            key=key,
            id=id,
            payload=payload,
            follow=follow,
            timeout=timeout,
        )
        return Changes(self._home, await self._home.run(make))

    def messages(self, topic: str, *, owner: str | None = None) -> Messages:
        """The pending messages of a topic: read, move, cancel, update, count."""
        self._check_open()
        return Messages(self._home, self._client.messages(topic, owner=owner))

    async def call(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout: Duration = "5s",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        owner: str | None = None,
        **columns: Any,
    ) -> Answer:
        """Sends a request and waits for its answer: its `payload`, `headers`, `content_type`.

            answer = await client.call("prices", b"...", timeout="5s")

        As `fasti.Client.call`; any number of tasks may call at once. If the task is cancelled, a
        request that no consumer has taken is withdrawn; of any other the reply is dead.
        """
        self._check_open()
        if self._calls is None:
            self._calls = LoopCalls(self._home, self._client.calls, self.clock, self.producer)
        given = {"key": key, "content_type": content_type, **columns}
        return await self._calls.call(topic, payload, timeout, owner, headers, **given)

    def transaction(self) -> Transaction:
        """Several changes that happen whole or not at all.

        async with client.transaction() as tx:
            tx.ack(message)
            tx.send("receipts", b"...", delay="1d")
        """
        self._check_open()
        return Transaction(self._home, self._client.transport, self.owner, self._client._flush_all)

    def sink(
        self,
        topic: str,
        sink_id: str,
        operation: str = "produce",
        on_conflict: str = "fail",
        *,
        owner: str | None = None,
    ) -> Sink:
        """Batches of rows that take effect exactly once, however often they are sent."""
        made = self._client.sink(topic, sink_id, operation, on_conflict, owner=owner)
        return Sink(self._home, made)

    # The end

    async def close(self, timeout: Duration | None = "30s") -> None:
        """Flushes producers, gives back what was not started, and disconnects.

        Raises `rows_failed` if sends or acks failed and were not awaited, `timed_out`. Everything
        is closed even then, and goes on closing if the task is cancelled; again: it waits for that.
        """
        await self._home.close(partial(self._close, seconds(timeout)))

    async def detach(self) -> None:
        """Sends what is under way and ends its threads, but leaves the synchronous client open."""
        await self._home.run(self._client._flush_all)
        await self._home.close(lambda: None)

    @property
    def synchronous(self) -> sync.Client:
        """The client that it stands on."""
        return self._client

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it belongs to."""
        return self._home.loop

    def _close(self, timeout_s: float | None) -> None:
        """In a thread of its own, so that it may block."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        problems: list[FastiError] = []

        def attempt(close: Callable[[float | None], None]) -> None:
            try:
                close(None if until is None else max(0.1, until - time.monotonic()))
            except FastiError as problem:
                problems.append(problem)

        for consumer in list(self._consumers):
            attempt(consumer.close_session)
        attempt(self._client.close)
        if problems:
            raise problems[0]

    def __repr__(self) -> str:
        return f"<Client of {self._client.transport}>"
