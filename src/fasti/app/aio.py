"""The app for asyncio: the names of `fasti.App`, with `await` where it waits.

    app = fasti.aio.App("fasti://127.0.0.1:7170")

    @app.on("emails", concurrency=100)
    async def send(order: Order) -> None: ...

    await send.later(Order(7), delay="5m", key="order-7")

It stands on an app of the other kind, its `base`, which runs the handlers: those made by `async def` are
tasks of the event loop in which the app was started, the others run in threads or processes. What waits
for the broker runs in threads, so that the loop goes on. `fasti run module:app` takes either kind; with
it the handlers have a loop of their own.

Declaring is for one thread; everything else is for tasks of one event loop, except where it says so.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Generic, Protocol, Unpack, overload

from fasti.aio.client import Client
from fasti.aio.messages import Messages
from fasti.aio.producer import Producer
from fasti.app import app as threads
from fasti.app.app import Hook, Wrapper
from fasti.app.codec import Codec
from fasti.app.cron import CronOptions
from fasti.app.handler import Handler as ThreadsHandler
from fasti.app.handler import LaterOptions, OnOptions, P, R, V
from fasti.app.running import Running
from fasti.app.stats import HandlerStats
from fasti.app.tasks import HostLoop
from fasti.client.arguments import ConnectionOptions, Moment
from fasti.client.client import Client as ThreadsClient
from fasti.client.durations import Duration, duration_us
from fasti.client.failures import OnFailure
from fasti.client.message import Message
from fasti.client.outcomes import Outcome
from fasti.errors import FastiError

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.2, 10.0


class Handler(Generic[V, P, R]):
    """Made by `app.on`: takes a `V`, and is called as the function that it was."""

    def __init__(self, app: App, base: ThreadsHandler[V, P, R]) -> None:
        functools.update_wrapper(self, base.function)
        self.app = app
        self.base = base

    @property
    def topic(self) -> str:
        """Whose messages it handles."""
        return self.base.topic

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.base.function(*args, **kwargs)

    @overload
    async def later(
        self: Handler[None, P, R], value: None = None, **options: Unpack[LaterOptions]
    ) -> Outcome: ...
    @overload
    async def later(self, value: V, **options: Unpack[LaterOptions]) -> Outcome: ...

    async def later(self, value: Any = None, **options: Unpack[LaterOptions]) -> Outcome:
        """Puts a message that this handler will get, and waits until it is durable.

            await send.later(Order(7), delay="5m", key="order-7")

        Options, and what it raises, as for `fasti.App`. What tasks send at the same time travels
        together: `await asyncio.gather(...)` of a thousand is one batch or a few. If the task is
        cancelled, the message may or may not have been sent.
        """
        payload, content_type = self.base.encode(value)
        producer = await self.app.producer(self.topic)
        return await (await producer.send(payload, content_type=content_type, **options))

    async def cancel(self, *, key: str, version: int | None = None) -> Outcome:
        """Cancels the pending message with this key; after `ok` it is never handled."""
        return await (await self.app.messages(self.topic)).cancel(key=key, version=version)

    async def move(
        self,
        *,
        key: str,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        version: int | None = None,
    ) -> Outcome:
        """Gives the pending message with this key another due time."""
        messages = await self.app.messages(self.topic)
        return await messages.move(key=key, delay=delay, at=at, due=due, version=version)

    def __repr__(self) -> str:
        return repr(self.base)


class Declaration(Protocol):
    """What `app.on` gives, to be called with the function: as a decorator."""

    @overload
    def __call__(self, function: Callable[[Message], R], /) -> Handler[Any, [Message], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[V, P], R], /
    ) -> Handler[V, Concatenate[V, P], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Handler[None, [], R]: ...


class App:
    """Handlers of topics, for asynchronous programs. `async with app:` starts and stops it.

    `address` is for `fasti.connect`, or a client of either kind that is connected already, which is
    not closed then. The other arguments are those of `fasti.App`.
    """

    def __init__(
        self,
        address: str | Client | ThreadsClient | None = None,
        *,
        owner: str = "",
        codec: Codec | None = None,
        grace: Duration = "30s",
        on_failure: OnFailure | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        reached = address.synchronous if isinstance(address, Client) else address
        self.base = threads.App(
            reached, owner=owner, codec=codec, grace=grace, on_failure=on_failure, **connection
        )
        self.base.module = sys._getframe(1).f_globals.get("__name__", "__main__")
        self._given = address if isinstance(address, Client) else None
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()

    # Declaring

    def on(self, topic: str, **options: Unpack[OnOptions]) -> Declaration:
        """Declares a function to be the handler of a topic's messages; see `fasti.App.on`."""
        return self._declaration(self.base.on(topic, **options))

    def cron(
        self, expression: str, *, timezone: str = "UTC", **options: Unpack[CronOptions]
    ) -> Declaration:
        """Declares a function to be called at times; see `fasti.App.cron`."""
        return self._declaration(self.base.cron(expression, timezone=timezone, **options))

    def every(self, interval: Duration, **options: Unpack[CronOptions]) -> Declaration:
        """Declares a function to be called again and again; see `fasti.App.every`."""
        return self._declaration(self.base.every(interval, **options))

    def _declaration(self, declare: Callable[..., Any]) -> Declaration:
        def declare_here(function: Callable[..., Any]) -> Any:
            return Handler(self, declare(function))

        return declare_here

    def middleware(self, wrapper: Wrapper) -> Wrapper:
        """Declares a callable `(message, call_next)` that wraps every call of a handler."""
        return self.base.middleware(wrapper)

    def on_start(self, hook: Hook) -> Hook:
        """Declares a function to be called before messages are taken, in every worker."""
        return self.base.on_start(hook)

    def on_stop(self, hook: Hook) -> Hook:
        """Declares a function to be called after the last message, in every worker."""
        return self.base.on_stop(hook)

    # The broker

    async def client(self) -> Client:
        """The client; connected now if it was not. Raises what `connect` raises."""
        if self._given is not None:
            return self._given
        current = self._client
        if current is not None and self._is_of_use(current):
            return current
        async with self._lock:
            if self._client is current:
                self._producers.clear()
                self._client = Client(await asyncio.to_thread(lambda: self.base.client))
            assert self._client is not None
            return self._client

    def _is_of_use(self, client: Client) -> bool:
        """Not after its loop has ended, nor when the app was closed or bound otherwise."""
        return not client.loop.is_closed() and client.synchronous is self.base.connected

    def bind(self, client: Client | ThreadsClient) -> App:
        """Uses this client from now on instead of the address. It is not closed with the app."""
        self._given = client if isinstance(client, Client) else None
        self.base.bind(client.synchronous if isinstance(client, Client) else client)
        self._client = None
        self._producers.clear()
        return self

    async def producer(self, topic: str) -> Producer:
        """The app's producer of a topic; the topic of a handler is made if it is missing."""
        client = await self.client()
        if topic not in self._producers:
            await asyncio.to_thread(self.base.ensure, topic)
            if topic not in self._producers:
                self._producers[topic] = client.producer(topic, owner=self.base.owner or None)
        return self._producers[topic]

    async def messages(self, topic: str) -> Messages:
        """A topic's pending messages, changed in the app's name. Makes it as `producer` does."""
        client = await self.client()
        if not self.base.has_ensured(topic):
            await asyncio.to_thread(self.base.ensure, topic)
        return client.messages(topic, owner=self.base.owner or None)

    async def close(self) -> None:
        """Sends what is under way and disconnects; the next use connects again."""
        client, self._client = self._client, None
        producers, self._producers = self._producers, {}
        if self._given is not None:
            for producer in producers.values():
                await producer.flush()
        elif client is None or client.loop.is_closed():
            await asyncio.to_thread(self.base.close)
        elif self.base.bound is not None:
            await client.detach()
        else:
            try:
                await client.close()
            finally:
                await asyncio.to_thread(self.base.close)

    # Running

    @property
    def handlers(self) -> list[Any]:
        """What was declared."""
        return self.base.handlers

    @property
    def running(self) -> bool:
        """Whether handlers get messages."""
        return self.base.running

    async def start(self, *, concurrency: int | None = None) -> App:
        """Starts the handlers and returns: `async def` ones as tasks of this event loop.

        Raises what the broker refuses and what a hook raises.
        """
        loop = asyncio.get_running_loop()
        await self.client()
        self.base.host_loop = HostLoop(loop)
        ended = self._ended = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        starting = asyncio.create_task(
            asyncio.to_thread(self.base.start, concurrency=concurrency, ended=tell)
        )
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It can't be interrupted: what has been started is stopped again, with the usual grace, for
            # handlers may have begun.
            with suppress(Exception):
                await starting
                await self.stop()
            raise
        return self

    async def stop(self, grace: Duration | None = None) -> None:
        """Takes no more messages, waits up to `grace` for running handlers, and disconnects.

        As `fasti.App.stop`; called by a handler it only asks for that.
        """
        running = self.base.last_run
        if running is None:
            return
        running.begin_stop(None if grace is None else duration_us(grace, "grace") / 1_000_000)
        if not running.called_by_task():
            # Even if this task is cancelled, the app is stopped to the end.
            await asyncio.shield(asyncio.ensure_future(self._finish(running)))

    async def _finish(self, running: Running) -> None:
        if not running.ended.is_set():
            await self._ended.wait()
        self.base.host_loop = None
        try:
            await self.close()
        finally:
            error, running.error = running.error, None
            if error is not None:
                raise error

    def request_stop(self, now: bool = False) -> None:
        """Begins to stop and returns at once; with `now` running handlers get no more time.

        Any thread may call.
        """
        self.base.request_stop(now)

    async def run(self, *, concurrency: int | None = None, grace: Duration | None = None) -> None:
        """Runs until SIGTERM, until the task is cancelled, or until a handler raises `SystemExit`.

            asyncio.run(app.run())

        SIGTERM is heeded in the main thread if the program has no handler of its own for it; Ctrl-C
        cancels the task that `asyncio.run` runs. While no broker answers it waits for one. For several
        processes: `fasti run module:app --workers 4`.
        """
        if grace is not None:
            self.base.grace_s = duration_us(grace, "grace") / 1_000_000
        await self._start_soon(concurrency)
        try:
            async with self._sigterm():
                await self._ended.wait()
        finally:
            await self.stop()

    async def _start_soon(self, concurrency: int | None) -> None:
        pause = _PAUSE_FIRST_S
        while True:
            try:
                await self.start(concurrency=concurrency)
                return
            except FastiError as error:
                if not error.retryable:
                    raise
                threads.logger.warning("can't start yet, trying again: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    @asynccontextmanager
    async def _sigterm(self) -> AsyncIterator[None]:
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.request_stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def stats(self) -> Mapping[str, HandlerStats]:
        """What each handler did since the last start, by topic; in this process alone."""
        return self.base.stats()

    async def __aenter__(self) -> App:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.stop()
        else:
            # The error of the block is raised, not one that it caused.
            with suppress(FastiError):
                await self.stop()

    def __repr__(self) -> str:
        return repr(self.base)
