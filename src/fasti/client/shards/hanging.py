"""Calls to a process that hangs: it was stopped, or is behind a network that swallows everything.

Nothing tells a caller that its process will not answer. So while a call has waited for `LOOK_S` the other processes
are asked, every so often, who has its shard. If that is another place under a higher epoch, the old one has lost
the shard: the call is given up there and made again at the new place, under its number. If not, it goes on
waiting: nothing is asked twice of a process that is only slow.

One thread looks while there are calls, and a while longer: a call costs no wake-up. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fasti.client import forking
from fasti.client.shards.shard_map import Place
from fasti.client.waiting_calls import WaitingCall
from fasti.errors import FastiError
from fasti.runtime import Runtime

LOOK_S = 2.0
# The thread ends when there was no call for so long: it keeps a client alive that nobody has any more.
_IDLE_S = 2.0


class HangingCalls:
    """Of one client. `ask` asks for the place of a shard at all processes but its own, until a moment."""

    def __init__(
        self,
        runtime: Runtime,
        place: Callable[[int], Place],
        ask: Callable[[int, float], None],
        wait: Callable[[float], None],
    ) -> None:
        """`wait` is a pause that ends with the client, by raising."""
        self._runtime, self._place, self._ask, self._wait = runtime, place, ask, wait
        self._lock = threading.Lock()
        self._calls: dict[WaitingCall, tuple[int, Place]] = {}
        self._is_watched = False
        self._used_at = 0.0
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        return [self._lock]

    def _forked(self) -> None:
        """In a child process: the calls and the thread are the parent's."""
        self._calls, self._is_watched = {}, False

    @contextmanager
    def watch(self, shard: int, asked: Place) -> Iterator[WaitingCall]:
        """Around one attempt of a call that may be made again, at this place."""
        call = WaitingCall(time.monotonic())
        with self._lock:
            self._calls[call] = shard, asked
            begins, self._is_watched = not self._is_watched, True
        try:
            if begins:
                self._begin()
            yield call
        finally:
            with self._lock:
                del self._calls[call]
                self._used_at = call.since

    def _begin(self) -> None:
        try:
            self._runtime.thread("fasti-hanging", self._run).start()
        except BaseException:
            # The next call tries it again.
            self._is_watched = False
            raise

    def _run(self) -> None:
        try:
            while not self._is_idle():
                self._wait(LOOK_S / 2)
                self.look()
        except FastiError:
            # The client is closed.
            with self._lock:
                self._is_watched = False
        except BaseException:
            # The next call begins another.
            self._is_watched = False
            raise

    def _is_idle(self) -> bool:
        with self._lock:
            idle = not self._calls and time.monotonic() - self._used_at > _IDLE_S
            if idle:
                self._is_watched = False
            return idle

    def look(self) -> None:
        """Gives up the calls whose shards are elsewhere by now."""
        now = time.monotonic()
        with self._lock:
            calls = {call: at for call, at in self._calls.items() if now - call.since >= LOOK_S}
        doubted = {shard for shard, asked in calls.values() if self._place(shard) == asked}
        for shard in doubted:
            self._ask(shard, time.monotonic() + LOOK_S)
        for call, (shard, asked) in calls.items():
            if self._place(shard).epoch > asked.epoch:
                call.give_up()
