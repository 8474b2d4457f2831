"""Calls that may wait for long, one at a time, in a thread that ends with the process.

A reader that follows waits for as long as nothing comes: that would take one of the client's few
threads for good, and a thread that the interpreter joins would hold up the end of a process that
forgot to close it. So each reader, watch and change feed has a waiter of its own.

`ask` is for the loop's thread, one task at a time; `close` and `ends` are for any.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from fasti.aio.home import Home
from fasti.errors import Closed

_Result = TypeVar("_Result")
_Request = tuple[Callable[[], Any], "Future[Any]"]


class Waiter:
    """The thread of one that follows; begun by the first call. `what` it is, errors say."""

    def __init__(self, home: Home, what: str) -> None:
        self.closed = False
        self._home, self._what = home, what
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: Future[Any] | None = None
        self._ends: list[Callable[[], None]] = []

    async def ask(self, call: Callable[[], _Result]) -> _Result:
        """What comes of the call.

        If the task is cancelled the wait goes on, and what comes of it is for the next one that
        asks, whatever it asks for. Raises `closed`.
        """
        self._home.check()
        if self.closed:
            raise Closed(f"{self._what} closed")
        if self._waiting is None:
            self._waiting = self._begin(call)
        waiting: Future[_Result] = self._waiting
        cancelled = False
        try:
            return await asyncio.shield(asyncio.wrap_future(waiting))
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            if not cancelled and self._waiting is waiting:
                self._waiting = None
            self._home.rested()

    def _begin(self, call: Callable[[], _Result]) -> Future[_Result]:
        answer: Future[_Result] = Future()
        # It can't be taken back.
        answer.set_running_or_notify_cancel()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_carry_out, args=(self._requests,), name="fasti-aio-wait", daemon=True
            )
            self._thread.start()
        self._requests.put((call, answer))
        return answer

    def ends(self, end: Callable[[], None]) -> None:
        """Has `close` call it too: what ends a call that waits. At once if it is closed by now."""
        self._ends.append(end)
        if self.closed:
            self._end()

    def close(self) -> None:
        """Ends what waits, and the thread. Again: nothing happens."""
        self.closed = True
        self._end()
        self._requests.put(None)

    def _end(self) -> None:
        # No lock: a finaliser may come here in the middle of anything.
        with suppress(IndexError):
            while True:
                self._ends.pop()()


class Follower:
    """A reader, a watch or a change feed: an asynchronous context manager with a waiter.

    One that is thrown away ends its thread.
    """

    def __init__(self, home: Home, what: str) -> None:
        self._home = home
        self._waiter = Waiter(home, what)
        self._finalizer = weakref.finalize(self, self._waiter.close)
        self._finalizer.atexit = False

    async def _begin(self) -> None:
        """What entering the context waits for."""

    async def close(self) -> None:
        """Ends the iteration. Again: nothing happens."""
        self._waiter.close()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _carry_out(requests: queue.SimpleQueue[_Request | None]) -> None:
    while (given := requests.get()) is not None:
        call, answer = given
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        # While it waits for the next one it keeps nothing alive.
        del given, call, answer
