"""The broker's threads: each is started here, and none ends or stands still without a word.

A thread is a `Worker`: its function says `busy` when it takes work and `idle` before it waits for
more. What escapes from the function is logged with its traceback and counted. Then the function is
run again, after a pause that grows while it keeps failing; or, where the state that it leaves behind
can't be trusted, its owner's `failed` is called, which ends or recovers what depends on it and answers
whoever waits.

`look` is the watchdog's step: a worker that is busy and has made no progress for `stall_s` is logged
with its stack, and again each time that the wait has doubled. It counts time by its own looks, and a
gap between two of them counts as one look: a process that was stopped, or a machine that slept, has no
worker that stood still meanwhile.

`troubles` is what health and metrics tell. Any thread may call anything here; `busy` and `idle` are the
worker's own. A service that is a step has a `Poller` around it, and no loop of its own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fasti.broker.logs import fields

_log = logging.getLogger("fasti.broker.threads")

STALL_S = 30.0
_LOOKS_PER_STALL = 8
_LOOK_S_MAX = 2.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 30.0
# One that ran for so long was well: the pauses begin anew.
_WELL_S = 60.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """A thread that died and has not worked since, or that stands still in the middle of its work."""

    name: str
    # `died` or `stalled`.
    state: str
    since_us: int
    seconds: float
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """As health tells it."""
        told = {"name": self.name, "state": self.state, "since_us": self.since_us}
        return {**told, "seconds": round(self.seconds, 1), "why": self.why}


class Watched:
    """Something that makes progress while it has work. The first two are read by the watchdog."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.working = False
        self.progress = 0
        # The watchdog's: what it saw last and since when, and when it tells of it again.
        self._seen = -1
        self._since_s = 0.0
        self._since_us = 0
        self._tell_at_s = 0.0
        self.stalled_s = 0.0

    @property
    def ident(self) -> int | None:
        """The thread whose stack tells where it stands, if it is one."""
        return None

    def trouble(self) -> Trouble | None:
        """What is wrong with it now."""
        if self.stalled_s and self.working:
            return Trouble(self.name, "stalled", self._since_us, self.stalled_s)
        return None

    def look(self, elapsed_s: float, stall_s: float) -> None:
        """The watchdog's: is there progress?"""
        if not self.working or self.progress != self._seen:
            if self.stalled_s:
                told = fields(thread=self.name, seconds=round(self.stalled_s, 1))
                _log.warning("a thread that stood still goes on", extra=told)
            self._seen, self._since_s, self.stalled_s = self.progress, elapsed_s, 0.0
            self._since_us, self._tell_at_s = time.time_ns() // 1000, stall_s
            return
        age_s = elapsed_s - self._since_s
        if age_s >= stall_s:
            self.stalled_s = age_s
        if age_s >= self._tell_at_s:
            self._tell_at_s = 2 * age_s
            told = fields(thread=self.name, seconds=round(age_s, 1))
            told["stack"] = _stack(self.ident)
            _log.error("a thread makes no progress", extra=told)


class Queue(Watched):
    """Work that waits to be taken: `progress` is counted up by whoever takes some."""

    def __init__(self, name: str, waiting: Callable[[], bool]) -> None:
        self._waiting = waiting
        super().__init__(name)

    @property
    def working(self) -> bool:
        return self._waiting()

    @working.setter
    def working(self, value: bool) -> None:
        pass


class Worker(Watched):
    """A thread of the broker, which runs `run` again when it raises, or calls `failed` once."""

    def __init__(
        self,
        threads: Threads,
        name: str,
        run: Callable[[], None],
        failed: Callable[[BaseException], None] | None,
    ) -> None:
        super().__init__(name)
        self._threads, self._run, self._failed = threads, run, failed
        self._ending = threading.Event()
        # What escaped, and when by both clocks, until it has worked again.
        self._death: tuple[BaseException, int, float] | None = None
        self._thread = threading.Thread(target=self._drive, name=name, daemon=True)

    # Its own thread

    def busy(self) -> None:
        """It has taken work, or is a piece further."""
        self.progress += 1
        self.working = True

    def idle(self) -> None:
        """All is done that was taken; it waits."""
        self.working = False
        self._death = None

    # Any thread

    def start(self) -> None:
        """Begins."""
        self._threads.add(self)
        try:
            self._thread.start()
        except BaseException:
            self._threads.remove(self)
            raise

    def join(self) -> None:
        """Returns when the thread has ended. Whoever calls has told it to; it is not run again."""
        self._ending.set()
        self.wait()
        self._threads.remove(self)

    def wait(self) -> None:
        """Returns when the thread has ended, by itself or because another told it to."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def trouble(self) -> Trouble | None:
        if (death := self._death) is None:
            return super().trouble()
        error, since_us, since_s = death
        return Trouble(self.name, "died", since_us, time.monotonic() - since_s, repr(error))

    def _drive(self) -> None:
        pause_s = _PAUSE_S
        while True:
            begin = time.monotonic()
            try:
                self._run()
                self._threads.remove(self)
                return
            except BaseException as error:
                self._note_death(error)
                if self._failed is not None:
                    self._failed(error)
                    return
            if self._ending.is_set():
                return
            if time.monotonic() - begin > _WELL_S:
                pause_s = _PAUSE_S
            self._ending.wait(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _note_death(self, error: BaseException) -> None:
        self.working = False
        self._death = (error, time.time_ns() // 1000, time.monotonic())
        self._threads.deaths[self.name] += 1
        then = "is run again" if self._failed is None else "takes what depends on it along"
        told = fields(thread=self.name)
        _log.critical("a thread of the broker died and %s", then, exc_info=error, extra=told)


class Poller:
    """A thread around a service that is a step.

    `poll` does what there is to do now and returns in how many seconds it wants to be called again;
    None: when it is woken. Without the thread, in virtual time, a test calls it instead.
    """

    def __init__(self, threads: Threads, name: str, poll: Callable[[], float | None]) -> None:
        self._poll = poll
        self._changed = threading.Condition()
        self._woken = False
        self.stopping = False
        self.worker = threads.worker(name, self._run)

    def start(self) -> None:
        """Polls from now on."""
        self.worker.start()

    def wake(self) -> None:
        """There is something to do, however long the service wanted to wait. Any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def stop(self) -> None:
        """Polls no more; returns when the thread has ended. Any thread but its own."""
        with self._changed:
            self.stopping = True
            self._changed.notify()
        self.worker.join()

    def _run(self) -> None:
        # One that died may have been in the middle of something: it begins with a poll.
        wait_s: float | None = 0.0
        while True:
            self.worker.idle()
            with self._changed:
                if not (self._woken or self.stopping):
                    self._changed.wait(wait_s)
                if self.stopping:
                    return
                self._woken = False
            self.worker.busy()
            wait_s = self._poll()


class Threads:
    """All threads of one broker, and their watchdog once `start` is called."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._every_s = min(stall_s / _LOOKS_PER_STALL, _LOOK_S_MAX)
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._looked_at: float | None = None
        self._elapsed_s = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fasti-watchdog", daemon=True)
        # How often each died, by name.
        self.deaths: Counter[str] = Counter()

    def worker(
        self,
        name: str,
        run: Callable[[], None],
        failed: Callable[[BaseException], None] | None = None,
    ) -> Worker:
        """A thread to be started. With `failed` it is not run again when it raises."""
        return Worker(self, name, run, failed)

    def add(self, watched: Watched) -> None:
        """It is looked at from now on."""
        with self._lock:
            self._watched.append(watched)
            # Known from the beginning, so that a rate can be told of the first death.
            self.deaths[watched.name] += 0

    def remove(self, watched: Watched) -> None:
        """It has ended as it should."""
        with self._lock:
            if watched in self._watched:
                self._watched.remove(watched)

    def troubles(self) -> list[Trouble]:
        """Those that died or stand still."""
        with self._lock:
            watched = list(self._watched)
        found = [each.trouble() for each in watched]
        return [each for each in found if each is not None]

    def stalls(self) -> dict[str, float]:
        """For how long each has made no progress while it had work: 0 for those that are well."""
        with self._lock:
            return {each.name: each.stalled_s for each in self._watched}

    def look(self, now_s: float) -> None:
        """One look at all; `now_s` is monotonic."""
        if self._looked_at is not None:
            self._elapsed_s += min(now_s - self._looked_at, 2 * self._every_s)
        self._looked_at = now_s
        with self._lock:
            watched = list(self._watched)
        for each in watched:
            each.look(self._elapsed_s, self._stall_s)

    def start(self) -> None:
        """The watchdog begins."""
        self._thread.start()

    def stop(self) -> None:
        """The watchdog ends. Workers are ended by their owners."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                self.look(time.monotonic())
            except Exception:
                _log.exception("the watchdog failed on a look")


def _stack(ident: int | None) -> str:
    frame = sys._current_frames().get(ident) if ident is not None else None
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame)).rstrip()
