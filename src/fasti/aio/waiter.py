"""Calls that may wait for long, one at a time, in a thread that ends with the process.

Whoever follows something waits for as long as nothing comes: that would take one of the client's few
threads for good, and a thread that the interpreter joins would hold up the end of a process that
forgot to close it. So each reader, watch and change feed has a waiter of its own.

`ask` is for the loop's thread, one task at a time; `close` and `ends` are for any.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from fasti.aio.home import Home
from fasti.errors import Closed

_Found = TypeVar("_Found")
_Asked = tuple[Callable[[], Any], "Future[Any]"]


class Waiter:
    """The thread of one that follows; begun by the first call. `what` it is, errors say."""

    def __init__(self, home: Home, what: str) -> None:
        self.closed = False
        self._home, self._what = home, what
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: Future[Any] | None = None
        self._ends: list[Callable[[], None]] = []

    async def ask(self, call: Callable[[], _Found]) -> _Found:
        """What comes of the call.

        If the task is cancelled the wait goes on, and what comes of it is for the next one that
        asks, whatever it asks for. Raises `closed`.
        """
        self._home.check()
        if self.closed:
            raise Closed(f"{self._what} closed")
        if self._waiting is None:
            self._waiting = self._begin(call)
        waiting: Future[_Found] = self._waiting
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

    def _begin(self, call: Callable[[], _Found]) -> Future[_Found]:
        answer: Future[_Found] = Future()
        # It can't be taken back.
        answer.set_running_or_notify_cancel()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_carry_out, args=(self._asked,), name="fasti-aio-wait", daemon=True
            )
            self._thread.start()
        self._asked.put((call, answer))
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
        self._asked.put(None)

    def _end(self) -> None:
        # No lock: a finaliser may come here in the middle of anything.
        with suppress(IndexError):
            while True:
                self._ends.pop()()


def _carry_out(asked: queue.SimpleQueue[_Asked | None]) -> None:
    while (given := asked.get()) is not None:
        call, answer = given
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        # While it waits for the next one it keeps nothing alive.
        del given, call, answer
