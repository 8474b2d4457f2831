"""An app that runs: its client, its handlers' workers, its hooks, and how all of it ends.

Ending goes in steps. No handler takes more messages, and what no worker has begun is given back. Running
handlers may finish within the grace, their leases renewed. What is left then is given back, processes
are killed and tasks cancelled. Last the hooks run and the connections close. A thread of its own does
it, so that a handler may ask for it; asking for haste cuts the grace to nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from fasti.app.calls import call_of
from fasti.app.cron import check_timetables, ensure_timetables
from fasti.app.feed import MessageFeed
from fasti.app.handler import AnyHandler
from fasti.app.processes import ProcessExecutor
from fasti.app.slots import Executor, Slots, ThreadExecutor
from fasti.app.stats import HandlerStats, WorkerTally, total
from fasti.app.tasks import HostLoop, LoopThread, Tasks
from fasti.app.topics import check_topic, ensure_topic
from fasti.client.client import Client
from fasti.client.consumer import Consumer
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.app.app import App

logger = logging.getLogger("fasti.app")

# After they were told to end: for what only has to notice it.
_ENDING_S = 5.0


class Runner(Protocol):
    """The workers of one handler: threads, tasks or processes."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def done(self) -> bool: ...
    def abandon(self) -> None: ...
    def join(self, timeout: float) -> None: ...
    def owns(self, thread: threading.Thread) -> bool: ...
    def tallies(self) -> list[WorkerTally]: ...


class Callbacks(TypedDict):
    """What workers call: at their end, when a handler asks to stop, on an error."""

    ended: Callable[[], None]
    stop_asked: Callable[[str], None]
    crashed: Callable[[Exception], None]


class Running:
    """Made by `App.start`; lives until it has stopped, once."""

    def __init__(
        self,
        app: App,
        client: Client,
        *,
        concurrency: int | None,
        worker: int | None,
        ended: Callable[[], None],
    ) -> None:
        self.app = app
        self.client = client
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._tell_ended = ended
        self._concurrency = concurrency
        self._worker = worker
        self._loop: HostLoop | None = None
        self._consumers: list[Consumer] = []
        self._runners: list[tuple[AnyHandler, Consumer, Runner]] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._stopper: threading.Thread | None = None
        self._changed = threading.Condition()
        self._haste = False
        self._grace_s = 0.0

    # Starting

    def start(self) -> None:
        """Raises what the broker refuses or a hook raises; nothing is left running then.

        Everything that is declared is judged before anything is made.
        """
        try:
            handlers = self.app.handlers
            for handler in handlers:
                if handler.settings.kind == "processes":
                    handler.place.find()
                check_topic(self.client, handler.settings)
            check_timetables(self.client, handlers)
            for handler in handlers:
                ensure_topic(self.client, handler.settings)
            ensure_timetables(self.client, handlers, alone=bool(self.app.owner))
            if self._needs_loop():
                self._loop = self.app.host_loop or LoopThread()
            for hook in self.app.start_hooks:
                self._run_hook(hook)
            self._begin()
        except BaseException:
            self._close()
            raise

    def _begin(self) -> None:
        """Starts the workers, unless the app was stopped meanwhile: nothing would end them."""
        with self._lock:
            if self._stopper is not None:
                return
            for handler in self.app.handlers:
                self._add(handler)
            for _, _, runner in self._runners:
                runner.start()

    def _needs_loop(self) -> bool:
        hooks = [*self.app.start_hooks, *self.app.stop_hooks]
        return any(inspect.iscoroutinefunction(hook) for hook in hooks) or any(
            hook.settings.kind == "asyncio" for hook in self.app.handlers
        )

    def _run_hook(self, hook: Callable[[], Any]) -> None:
        result = hook()
        if inspect.iscoroutine(result):
            assert self._loop is not None
            self._loop.run(result)

    def _add(self, handler: AnyHandler) -> None:
        settings = handler.settings
        concurrency = self._concurrency or settings.concurrency
        limit_us = settings.time_limit_us
        consumer = self.client.consumer(
            settings.topic,
            name=self._consumer_name(settings.name),
            prefetch=settings.prefetched(concurrency),
            time_limit=None if limit_us is None else limit_us / 1_000_000,
            group=settings.group,
            on_failure=self.app.on_failure,
        )
        self._consumers.append(consumer)
        consumer.session.want(concurrency)
        feed = MessageFeed(consumer, self._failed)
        runner = self._runner(handler, feed, concurrency)
        self._runners.append((handler, consumer, runner))

    def _consumer_name(self, name: str | None) -> str | None:
        return name if name is None or self._worker is None else f"{name}-{self._worker}"

    def _runner(self, handler: AnyHandler, feed: MessageFeed, concurrency: int) -> Runner:
        settings, label = handler.settings, handler.label
        callbacks: Callbacks = {
            "ended": self._look_again,
            "stop_asked": self._stop_asked,
            "crashed": self._failed,
        }
        if settings.kind == "processes":
            executors: list[Executor] = [
                ProcessExecutor(
                    label,
                    handler.place,
                    self.app.reach_for_others,
                    settings.time_limit_us,
                    self._stopping,
                )
                for _ in range(concurrency)
            ]
            return Slots(label, feed, executors, **callbacks)
        call = call_of(handler.function, handler.shape, handler.codec, self.app.middlewares)
        if settings.kind == "threads":
            executors = [ThreadExecutor(label, call) for _ in range(concurrency)]
            return Slots(label, feed, executors, **callbacks)
        assert self._loop is not None
        return Tasks(
            label,
            feed,
            call,
            self._loop,
            concurrency,
            settings.time_limit_us,
            **callbacks,
        )

    # What workers tell

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _stop_asked(self, why: str) -> None:
        logger.info("a handler asked to stop: %s", why)
        self.begin_stop()

    def _failed(self, error: Exception) -> None:
        logger.error("the app can't go on: %s", error)
        self.error = self.error or error
        self.begin_stop()

    # Stopping

    def begin_stop(self, grace_s: float | None = None) -> None:
        """Returns at once; `ended` is set when all is over. Again: nothing happens."""
        with self._lock:
            if self._stopper is not None:
                return
            self._grace_s = self.app.grace_s if grace_s is None else grace_s
            self._stopping.set()
            self._stopper = threading.Thread(target=self._stop, name="fasti-app-stop", daemon=True)
            self._stopper.start()

    def hasten(self) -> None:
        """Running handlers get no more time."""
        with self._changed:
            self._haste = True
            self._changed.notify_all()

    def called_by_worker(self) -> bool:
        """Whether the calling thread is one that stopping waits for."""
        thread = threading.current_thread()
        return any(runner.owns(thread) for _, _, runner in self._runners)

    def called_by_task(self) -> bool:
        """Whether the current task handles a message, so that stopping would wait for itself."""
        tasks = [runner for _, _, runner in self._runners if isinstance(runner, Tasks)]
        return any(runner.has(asyncio.current_task()) for runner in tasks)

    def _stop(self) -> None:
        try:
            self._end_runners()
        except BaseException as error:
            logger.exception("stopping the app")
            self.error = self.error or error
        finally:
            self._close(with_hooks=True)
            self.ended.set()
            self._tell_ended()

    def _end_runners(self) -> None:
        runners = [runner for _, _, runner in self._runners]
        for runner in runners:
            runner.stop()
        deadline = time.monotonic() + self._grace_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._haste or all(runner.done() for runner in runners),
                max(0.0, deadline - time.monotonic()),
            )
        late = [runner for runner in runners if not runner.done()]
        for runner in late:
            runner.abandon()
        # Threads whose handlers hang don't end; processes and tasks do.
        until = time.monotonic() + (0.1 if self._haste else 1.0)
        for runner in late:
            runner.join(max(0.0, until - time.monotonic()))

    def _close(self, with_hooks: bool = False) -> None:
        for consumer in self._consumers:
            try:
                consumer.close(timeout=_ENDING_S)
            except FastiError as error:
                logger.warning("closing the consumer of %r: %s", consumer.topic, error)
        if with_hooks:
            for hook in self.app.stop_hooks:
                try:
                    self._run_hook(hook)
                except Exception as error:
                    logger.exception("a hook failed while stopping")
                    self.error = self.error or error
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def stats(self) -> dict[str, HandlerStats]:
        """Counts of each handler, by its topic."""
        return {
            handler.source: total(
                handler.source, handler.label, runner.tallies(), refused=consumer.failed
            )
            for handler, consumer, runner in self._runners
        }
