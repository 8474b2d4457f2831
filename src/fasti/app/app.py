"""The app: handlers of topics, and running them.

    app = fasti.App("fasti://127.0.0.1:7170")

    @app.on("emails", concurrency=8, retry=fasti.Backoff("1s", factor=2, limit="1h"), time_limit="5m")
    def send(order: Order) -> None: ...

    send.later(Order(7), delay="5m", key="order-7")

Nothing is connected until something is sent or the app runs: `app.run()`, `app.start()`, or
`fasti run module:app --workers 4`. Declaring is for one thread; everything else may be called by any.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, Unpack

from fasti.app.access import BrokerAccess
from fasti.app.calls import Middleware
from fasti.app.codec import Codec, JsonCodec
from fasti.app.cron import CronOptions, handler_options, timetable_of
from fasti.app.handler import AnyHandler, Declaration, Handler, Kind, settings_of
from fasti.app.reach import Reach
from fasti.app.running import Running
from fasti.app.stats import HandlerStats
from fasti.app.tasks import HostLoop
from fasti.client import forking
from fasti.client.arguments import ConnectionOptions, ScheduleOptions
from fasti.client.client import Client
from fasti.client.durations import Duration, duration_us
from fasti.client.failures import OnFailure, checked_callback
from fasti.client.topics import Backoff
from fasti.errors import AlreadyExists, FastiError, InvalidArgument, RowsFailed

logger = logging.getLogger("fasti.app")

Hook = TypeVar("Hook", bound=Callable[[], Any])
Wrapper = TypeVar("Wrapper", bound=Middleware)


class App(BrokerAccess):
    """Handlers of topics. A context manager that starts and stops it.

    `address` is for `fasti.connect`, or a client that is connected already, which is not closed then.
    More arguments for `connect`, such as `token`, may follow. `grace` is how long running handlers may
    go on when the app stops. `on_failure` is called for each `later` that failed and whose receipt was
    thrown away unread, and for each refused ack, as `fasti.connect` says.
    """

    def __init__(
        self,
        address: str | Client | None = None,
        *,
        owner: str = "",
        codec: Codec | None = None,
        grace: Duration = "30s",
        on_failure: OnFailure | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(address, owner, checked_callback(on_failure), connection)
        self.codec: Codec = codec or JsonCodec()
        self.grace_s = duration_us(grace, "grace") / 1_000_000
        self.middlewares: list[Middleware] = []
        self.start_hooks: list[Callable[[], Any]] = []
        self.stop_hooks: list[Callable[[], Any]] = []
        # Where its workers find it, if it is defined at the top level of a module.
        self.module: str = sys._getframe(1).f_globals.get("__name__", "__main__")
        self._running: Running | None = None
        # Where tasks run, if not on a loop of the app's own.
        self.host_loop: HostLoop | None = None
        forking.register(self)

    def _forked(self) -> None:
        """In a child process: it has a client and producers of its own, when it needs them."""
        super()._forked()
        self._running, self.host_loop = None, None

    # Declaring

    def on(
        self,
        topic: str,
        *,
        concurrency: int = 1,
        kind: Kind | None = None,
        retry: Backoff | None = None,
        max_attempts: int | None = None,
        time_limit: Duration | None = None,
        prefetch: int | None = None,
        codec: Codec | None = None,
        create: bool | Mapping[str, Any] = True,
        name: str | None = None,
        group: str | None = None,
    ) -> Declaration:
        """Declares a function to be the handler of a topic's messages.

        At most `concurrency` run at a time, by `kind`: `threads`, `asyncio` (for `async def`, and its
        default) or `processes` (spawned; for work that needs a core or may crash).

        `retry` and `max_attempts` become the topic's settings. A handler that takes longer than
        `time_limit` has failed: tasks are cancelled, processes killed; a thread can't be, but loses its
        lease. `prefetch` is how many messages may be here unfinished; by default it adapts: more for quick
        handlers, and for slow ones no more than are being worked on. With `create` a topic that is missing is made, with these
        settings if it is a mapping. `name` is the consumer's, for leases to be had back after a restart.
        Of a log, `group` consumes; each of its groups may have a handler, and a log that is missing is
        made.

        Raises `invalid_argument`, and `already_exists` if the topic, or its group, has a handler.
        """

        def declare(function: Callable[..., Any]) -> Any:
            settings = settings_of(
                topic,
                inspect.iscoroutinefunction(function),
                kind=kind,
                concurrency=concurrency,
                prefetch=prefetch,
                time_limit=time_limit,
                retry=retry,
                max_attempts=max_attempts,
                create=create,
                name=name,
                group=group,
            )
            handler: AnyHandler = Handler(self, function, settings, codec or self.codec)
            self._add(handler)
            return handler

        return declare

    def cron(
        self, expression: str, *, timezone: str = "UTC", **options: Unpack[CronOptions]
    ) -> Declaration:
        """Declares a function to be called at times like "at nine in Paris, on weekdays".

            @app.cron("0 9 * * MON-FRI", timezone="Europe/Paris")
            def report() -> None: ...

        When the app starts, everything that it needs is made, or changed to what is declared here:
        a topic and a schedule with the function's name (or `name`), in the cron topic `schedules`
        (default: `cron.<owner>`, or `cron` without an owner). Any number of workers may do that at
        once; each occurrence has one message, handled by one worker.

        A parameter annotated `datetime` gets the moment of the occurrence, `date` the day in
        `timezone`, `Message` the message; any other gets `payload`. `start`, `end`, `jitter`, `gap`,
        `fold`, `misfire`, `overlap` and so on are those of `Schedules.put`; `paused` pauses or resumes
        the schedule at each start. How the handler is run is said as for `on`.

        Raises `invalid_argument`, and `already_exists` if the topic has a handler.
        """
        return self._timed({"cron": expression, "timezone": timezone}, options)

    def every(self, interval: Duration, **options: Unpack[CronOptions]) -> Declaration:
        """Declares a function to be called again and again: `@app.every("5m")`.

        As `cron`. The interval is counted from `start`, or from midnight UTC: `every="15m"` happens
        at :00, :15, :30 and :45, whenever the app was started.
        """
        duration_us(interval, "interval")
        return self._timed({"every": interval}, options)

    def _timed(self, timing: ScheduleOptions, options: CronOptions) -> Declaration:
        def declare(function: Callable[..., Any]) -> Any:
            name, topic, how = handler_options(function, options)
            codec = how.pop("codec", None) or self.codec
            settings = settings_of(topic, inspect.iscoroutinefunction(function), **how)
            handler: AnyHandler = Handler(self, function, settings, codec)
            handler.timetable = timetable_of(handler, name, timing, options)
            self._add(handler)
            return handler

        return declare

    def _add(self, handler: AnyHandler) -> None:
        for other in self.handlers:
            if other.topic == handler.topic and other.settings.group == handler.settings.group:
                of_group = f"group {other.settings.group!r} of " if other.settings.group else ""
                raise AlreadyExists(
                    f"{of_group}topic {handler.topic!r} has a handler in this app: {other.label}"
                )
        self.handlers.append(handler)

    def middleware(self, wrapper: Wrapper) -> Wrapper:
        """Declares a callable `(message, call_next)` that wraps every call of a handler."""
        self.middlewares.append(wrapper)
        return wrapper

    def on_start(self, hook: Hook) -> Hook:
        """Declares a function to be called before messages are taken, in every worker."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Declares a function to be called after the last message, in every worker."""
        self.stop_hooks.append(hook)
        return hook

    def bind(self, client: Client) -> App:
        """Uses this client from now on instead of the address. It is not closed with the app."""
        with self._lock:
            self._check_not_running()
            self.close()
            self._bound = client
        return self

    # Running

    @property
    def running(self) -> bool:
        """Whether handlers get messages."""
        return self._running is not None and not self._running.ended.is_set()

    def _check_not_running(self) -> None:
        if self.running:
            raise InvalidArgument("the app is running already", field="app")

    def start(
        self,
        *,
        concurrency: int | None = None,
        worker: int | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> App:
        """Starts the handlers in this process and returns; for programs that do more besides.

        `concurrency` beats every handler's own; `worker` numbers this process among several; `ended` is
        called when it has stopped. Raises what the broker refuses and what a hook raises.
        """
        if not self.handlers:
            raise InvalidArgument("the app has no handlers", field="app")
        client = self.client
        with self._lock:
            self._check_not_running()
            before = self._running
            running = Running(self, client, concurrency=concurrency, worker=worker, ended=ended)
            self._running = running
        try:
            # Without the lock: hooks may send, from other threads too.
            running.start()
        except BaseException:
            self._running = before
            raise
        return self

    def stop(self, grace: Duration | None = None) -> None:
        """Takes no more messages, waits up to `grace` for running handlers, and disconnects.

        What was not begun, and what did not end in time, is given back. Called by a handler it only
        asks for that. Raises the error that ended the app, if one did.
        """
        running = self._running
        if running is None:
            return
        running.begin_stop(None if grace is None else duration_us(grace, "grace") / 1_000_000)
        if running.called_by_worker():
            return
        running.ended.wait()
        self._after(running)

    @property
    def last_run(self) -> Running | None:
        """How it runs, or ran the last time."""
        return self._running

    def _after(self, running: Running) -> None:
        try:
            # What failed unread was logged and given to `on_failure` when it did: a worker that stops
            # has not failed because of it.
            with suppress(RowsFailed):
                self.close()
        finally:
            error, running.error = running.error, None
            if error is not None:
                raise error

    def request_stop(self, now: bool = False) -> None:
        """Begins to stop and returns at once; with `now` running handlers get no more time."""
        running = self._running
        if running is not None:
            if now:
                running.hasten()
            running.begin_stop()

    def run(
        self,
        workers: int = 1,
        *,
        concurrency: int | None = None,
        grace: Duration | None = None,
    ) -> None:
        """Runs until SIGTERM or SIGINT, or until a handler raises `SystemExit`.

        A second signal stops without grace. With several workers each is a process of its own, which
        imports the app: it must be defined at the top level of a module. A worker that dies is started
        again.
        """
        if grace is not None:
            self.grace_s = duration_us(grace, "grace") / 1_000_000
        if workers > 1:
            from fasti.app.supervisor import WorkerPlan, supervise

            plan = WorkerPlan(self.reference(), Reach(self.address), concurrency, self.grace_s)
            supervise(plan, workers)
            return
        from fasti.app.events import Events
        from fasti.app.foreground import run_here

        with Events() as events:
            run_here(self, events, concurrency=concurrency)

    def finish(self) -> None:
        """Waits for a stop that was begun, and disconnects. Raises the error that ended the app."""
        running = self._running
        if running is not None:
            running.ended.wait()
            self._after(running)

    def reference(self) -> str:
        """`module:name`, by which another process finds it. Raises `invalid_argument` if none can."""
        module = sys.modules.get(self.module)
        for name, value in vars(module).items() if module is not None else ():
            if value is self:
                return f"{self.module}:{name}"
        raise InvalidArgument(
            "workers import the app, so it must be defined at the top level of a module",
            field="workers",
        )

    def stats(self) -> dict[str, HandlerStats]:
        """What each handler did since the last start, by topic; in this process alone.

        Handlers of a log's group are named `topic/group`.
        """
        return {} if self._running is None else self._running.stats()

    def __enter__(self) -> App:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            # The error of the block is raised, not one that it caused.
            with suppress(FastiError):
                self.stop()

    def __repr__(self) -> str:
        topics = ", ".join(handler.topic for handler in self.handlers)
        return f"<App of {topics or 'no topics'}>"
