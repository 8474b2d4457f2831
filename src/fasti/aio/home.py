"""The event loop that a client lives in: how its threads reach it, and how calls that wait leave it.

The SDK's own threads bring answers and messages. They reach the loop by `post`, which wakes it once
for everything that came until it looks: never once per message. What waits for a broker runs in a
few threads of the client's own, so that it neither blocks the loop nor fills its default executor.

`post` is for any thread; everything else is for the loop's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from fasti.client.bulk import Progress
from fasti.client.durations import Duration, seconds
from fasti.errors import Closed, FastiError, IllegalTransition

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# A task that never has to wait gives the others a turn this often.
_BREATH_S = 0.001
# So many calls are under way at once; more wait for their turn.
_THREADS_MAX = 8


class Home:
    """Made where a loop runs, and bound to it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._process_id = os.getpid()
        self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="fasti-aio")
        self._posted: deque[Callable[[], None]] = deque()
        self._rung = False
        # When those who find everything ready should let others have a turn.
        self.breathe_at = 0.0
        self._closed: asyncio.Future[None] | None = None

    # From any thread

    def post(self, call: Callable[[], None]) -> None:
        """Has the loop call it soon. After the loop's end it does nothing."""
        self._posted.append(call)
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._call_posted)

    def in_loop(self, progress: Progress | None) -> Progress | None:
        """The same, called in the loop."""
        if progress is None:
            return None
        return lambda done, total: self.post(partial(progress, done, total))

    def _call_posted(self) -> None:
        # Before looking: a `post` from now on wakes the loop again.
        self._rung = False
        posted = self._posted
        while posted:
            posted.popleft()()

    @property
    def is_here(self) -> bool:
        """Whether the loop's own thread asks."""
        return threading.get_ident() == self._thread_id

    # From the loop

    def check(self) -> None:
        """Raises when another loop runs: its tasks could never be woken from here."""
        self._check_process()
        if asyncio.get_running_loop() is not self.loop:
            raise IllegalTransition(
                "the client belongs to another event loop: make one in each, by connect()"
            )

    def _check_process(self) -> None:
        # Its threads are not here, and the loop is one of another process.
        if os.getpid() != self._process_id:
            raise IllegalTransition(
                "the client was made before this process was forked: make one here, by connect()"
            )

    async def breathe(self) -> None:
        """Lets others have a turn, if the last one was a while ago."""
        now = time.monotonic()
        if now >= self.breathe_at:
            # Before they run, so that not each of them does the same.
            self.breathe_at = now + _BREATH_S
            await asyncio.sleep(0)
            self.rested()

    def rested(self) -> None:
        """Others just had their turn."""
        self.breathe_at = time.monotonic() + _BREATH_S

    async def run(
        self, call: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        """Runs a call that waits in one of our threads.

        If the task is cancelled, a call that has not begun does not; one that has goes on, and
        its result is dropped.
        """
        self.check()
        return await self.hear(self.submit(partial(call, *given, **named)))

    async def hear(self, call: Future[_Result]) -> _Result:
        """What becomes of a call that was submitted."""
        result = await asyncio.wrap_future(call)
        self.rested()
        return result

    async def run_through(self, call: Callable[[], _Result]) -> _Result:
        """The same for a call that is to be made even if the task is cancelled."""
        self.check()
        return await asyncio.shield(asyncio.wrap_future(self.submit(call)))

    async def iterate(
        self, call: Callable[_Given, Iterator[_Result]], *given: _Given.args, **named: _Given.kwargs
    ) -> AsyncGenerator[_Result, None]:
        """Goes through what a call gives one by one, which is read in our threads.

        Each turn of a thread brings what it can read within a millisecond, and at least one item.
        """
        self.check()
        items = _Items(partial(call, *given, **named))
        reading: Future[list[_Result]] | None = None
        try:
            while True:
                reading = self.submit(items.read)
                batch = await asyncio.shield(asyncio.wrap_future(reading))
                if not batch:
                    return
                for item in batch:
                    yield item
        finally:
            if reading is not None:
                # A read that is under way ends first: a generator runs in one thread at a time.
                reading.add_done_callback(lambda _: self._close_items(items))

    def _close_items(self, items: _Items[_Result]) -> None:
        with suppress(Closed):
            self.submit(items.close)

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """The same without waiting for it. Raises `closed`."""
        self._check_process()
        try:
            return self._executor.submit(call)
        except RuntimeError as error:
            raise Closed("the client is closed") from error

    # The end

    @property
    def closing(self) -> bool:
        """Whether nothing new is begun any more."""
        return self._closed is not None

    async def close(self, last: Callable[[], None]) -> None:
        """Runs `last` in a thread, waits for all calls and ends our threads, once.

        It goes on whatever becomes of the task. A later caller waits for its end as well, but only
        the first gets what it raised.
        """
        self.check()
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        problems: list[BaseException] = []
        self._closed = closed = self.loop.create_future()

        def close() -> None:
            try:
                last()
            except BaseException as problem:
                problems.append(problem)
            self._executor.shutdown(wait=True)
            self.post(partial(settle, closed))

        thread = threading.Thread(target=close, name="fasti-aio-close")
        thread.start()
        await asyncio.shield(closed)
        # It has nothing left to do but end.
        thread.join()
        if problems:
            raise problems[0]

    def abandon(self) -> None:
        """Ends our threads when they have done what they are at."""
        self._executor.shutdown(wait=False)


class _Items(Generic[_Result]):
    """An iterator that is opened and read in threads, one at a time."""

    def __init__(self, call: Callable[[], Iterator[_Result]]) -> None:
        self._call = call
        self._items: Iterator[_Result] | None = None
        self._error: Exception | None = None

    def read(self) -> list[_Result]:
        """The next items; none at the end. Raises what the iterator raised behind the last ones."""
        if self._error is not None:
            raise self._error
        until = time.monotonic() + _BREATH_S
        batch: list[_Result] = []
        try:
            if self._items is None:
                self._items = self._call()
            for item in self._items:
                batch.append(item)
                if time.monotonic() >= until:
                    break
        except Exception as error:
            if not batch:
                raise
            self._error = error
        return batch

    def close(self) -> None:
        """Ends what is open, unless it has ended."""
        if isinstance(self._items, Generator):
            self._items.close()


def settle(future: asyncio.Future[None]) -> None:
    """Wakes the task that awaits it, unless it is done."""
    if not future.done():
        future.set_result(None)


async def within(
    timeout: Duration | None,
    waiting: Coroutine[Any, Any, _Result],
    refusal: Callable[[], FastiError],
) -> _Result:
    """Awaits for `timeout` at most, then raises what `refusal` makes."""
    if timeout is None:
        return await waiting
    try:
        limit = seconds(timeout)
    except FastiError:
        waiting.close()
        raise
    try:
        async with asyncio.timeout(limit):
            return await waiting
    except TimeoutError as late:
        raise refusal() from late
