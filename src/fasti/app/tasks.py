"""Handlers that are `async def`: tasks on one event loop, at most N of a handler at a time.

The loop runs in a thread of its own and is shared by all such handlers and hooks of the app, so that
a pool of connections made by `on_start` may be used by handlers. A thread for each handler waits for
messages and gives them to the loop, as many at a time as there is room for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fasti.app.calls import Call, attempt_async
from fasti.app.feed import MessageFeed, carry_out
from fasti.app.reports import report
from fasti.app.stats import WorkerTally
from fasti.app.verdicts import GIVE_BACK, Verdict, over_time

logger = logging.getLogger("fasti.app")


class HostLoop:
    """The event loop of a program in which an app is embedded: it goes on after the app."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine there and waits for it. Not for the loop's own thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        """The program's own affair."""


class LoopThread(HostLoop):
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name="fasti-asyncio", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self) -> None:
        """Ends what is left on it, and the thread."""
        self.run(self._finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _finish(self) -> None:
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        if others:
            # One that won't be cancelled is left behind.
            await asyncio.wait(others, timeout=1.0)
        await self.loop.shutdown_asyncgens()


class Tasks:
    """All tasks of one handler. The counts and `_tasks` belong to the loop's thread."""

    def __init__(
        self,
        label: str,
        feed: MessageFeed,
        call: Call,
        loop: HostLoop,
        concurrency: int,
        time_limit_us: int | None,
        *,
        ended: Callable[[], None],
        stop_asked: Callable[[str], None],
        crashed: Callable[[Exception], None],
    ) -> None:
        self._label = label
        self._feed = feed
        self._call = call
        self._loop = loop
        self._time_limit_us = time_limit_us
        self._ended = ended
        self._stop_asked = stop_asked
        self._crashed = crashed
        self._room = threading.Condition()
        self._free = self._concurrency = concurrency
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._tasks: dict[asyncio.Task[None], Any] = {}
        self._abandoned = False
        self._tally = WorkerTally()

    def start(self) -> None:
        """Begins to take messages."""
        name = f"fasti-{self._label}"
        self._thread = threading.Thread(target=self._take_all, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes no more messages."""
        with self._room:
            self._stopped = True
            self._room.notify_all()
        self._feed.stop()

    def done(self) -> bool:
        """Whether no task is left and none will come."""
        with self._room:
            return self._thread is None and self._free == self._concurrency

    def abandon(self) -> None:
        """Cancels what still runs, and gives its messages back."""
        self._abandoned = True
        self._loop.loop.call_soon_threadsafe(self._cancel_all)

    def join(self, timeout: float) -> None:
        """Waits for tasks that are about to end."""
        with self._room:
            self._room.wait_for(
                lambda: self._thread is None and self._free == self._concurrency, timeout
            )

    def owns(self, thread: threading.Thread) -> bool:
        """Whether the thread is the loop's."""
        return thread.name == "fasti-asyncio"

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task handles one of its messages. For the loop's thread."""
        return task in self._tasks

    def tallies(self) -> list[WorkerTally]:
        """The counts."""
        return [self._tally]

    # The thread that takes

    def _take_all(self) -> None:
        try:
            while True:
                with self._room:
                    self._room.wait_for(lambda: self._free > 0 or self._stopped)
                    most = self._free
                if self._stopped:
                    return
                messages = self._feed.take_many(most)
                if not messages:
                    return
                with self._room:
                    self._free -= len(messages)
                self._loop.loop.call_soon_threadsafe(self._begin, messages)
        except Exception as error:
            logger.exception("taking messages for %s ended", self._label)
            self._crashed(error)
        finally:
            with self._room:
                self._thread = None
                self._room.notify_all()
            self._ended()

    # The loop's thread

    def _begin(self, messages: list[Any]) -> None:
        for message in messages:
            task = self._loop.loop.create_task(self._handle(message))
            self._tasks[task] = message
            task.add_done_callback(self._finished)
        self._tally.in_flight = len(self._tasks)

    async def _handle(self, message: Any) -> None:
        verdict = await self._verdict(message)
        carry_out(message, verdict)
        self._tally.count(verdict)
        if verdict.stop:
            self._stop_asked(verdict.reason)

    async def _verdict(self, message: Any) -> Verdict:
        limit_us = self._time_limit_us
        error: BaseException | None = None
        try:
            async with asyncio.timeout(None if limit_us is None else limit_us / 1e6):
                verdict, error = await attempt_async(self._call, message)
        except TimeoutError:
            assert limit_us is not None
            verdict = over_time(limit_us)
        except asyncio.CancelledError:
            if self._abandoned:
                return Verdict("release", "the app stops")
            verdict = Verdict("nack", "CancelledError")
        if not verdict.good:
            report(self._label, message, verdict, error)
        return verdict

    def _finished(self, task: asyncio.Task[None]) -> None:
        message = self._tasks.pop(task)
        self._tally.in_flight = len(self._tasks)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s on %r", self._label, message, exc_info=task.exception())
        with self._room:
            self._free += 1
            self._room.notify_all()
            over = self._thread is None and self._free == self._concurrency
        if over:
            self._ended()

    def _cancel_all(self) -> None:
        for task, message in list(self._tasks.items()):
            if carry_out(message, GIVE_BACK):
                logger.warning("%s did not end in time: %r is given back", self._label, message)
            task.cancel()
