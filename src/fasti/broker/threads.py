"""The broker's threads: each is started here, and none ends or stands still without a word.

A thread is a `Worker`: its function says `busy` when it takes work and `idle` before it waits for
more. What escapes from the function is logged with its traceback and counted. Then the function is
run again, after a pause that grows while it keeps failing; or, where the state that it leaves behind
can't be trusted, its owner's `failed` is called, which ends or recovers what depends on it and answers
those who wait.

`look` is the watchdog's step: a worker that is busy and has made no progress for `stall_s` is logged
with its stack, and again each time that the wait has doubled. It counts time by its own looks, and a
gap between two of them counts as one look: a process that was stopped, or a machine that slept, has no
worker that stood still meanwhile.

`troubles` is what health and metrics tell. Any thread may call anything here; `busy` and `idle` are the
worker's own. A service that is a step has a `Driver` or a `Poller` around it, and no loop of its own:
where the runtime has no threads, it calls `turn` instead. With many shards the threads of services that
have nothing to do go, and come back (parking.py).
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fasti.broker.logs import fields
from fasti.broker.parking import PARK_AFTER_S, Alarms, ParkingCondition
from fasti.runtime import ENDED, Runtime, SystemRuntime, may_be_interrupted

_log = logging.getLogger("fasti.broker.threads")

STALL_S = 30.0
_LOOKS_PER_STALL = 8
_LOOK_S_MAX = 2.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 30.0
# One that ran for so long was well: the pauses begin anew.
_WELL_S = 60.0
# A thread that wakes up by itself so soon is not woken: that would take as long.
_NEAR_S = 0.0001
# For so long nobody leads after two turns, so near to each other, in which more work came: where callers
# meet, its own thread is there for the next turn at once, and has not to be woken for it.
_CROWDED_S = 0.1
_MEETING_S = 0.01


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
        return {
            "name": self.name,
            "state": self.state,
            "since_us": self.since_us,
            "seconds": round(self.seconds, 1),
            "why": self.why,
        }


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

    def look(self, elapsed_s: float, stall_s: float, now_us: int) -> None:
        """The watchdog's: is there progress?"""
        if not self.working or self.progress != self._seen:
            if self.stalled_s:
                extra = fields(thread=self.name, seconds=round(self.stalled_s, 1))
                _log.warning("a thread that stood still goes on", extra=extra)
            self._seen, self._since_s, self.stalled_s = self.progress, elapsed_s, 0.0
            self._since_us, self._tell_at_s = now_us, stall_s
            return
        age_s = elapsed_s - self._since_s
        if age_s >= stall_s:
            self.stalled_s = age_s
        if age_s >= self._tell_at_s:
            self._tell_at_s = 2 * age_s
            extra = fields(thread=self.name, seconds=round(age_s, 1))
            extra["stack"] = _stack(self.ident)
            _log.error("a thread makes no progress", extra=extra)


class Queue(Watched):
    """Work that waits to be taken: `progress` is counted up by the thread that takes some."""

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
        run: Callable[[], bool | None],
        failed: Callable[[BaseException], None] | None,
        changed: threading.Condition | None = None,
    ) -> None:
        """`run` returns True when it has only given its thread back, and goes on in another later."""
        super().__init__(name)
        self._threads, self._run, self._failed = threads, run, failed
        self._runtime = threads.runtime
        self._ending = threading.Event()
        # What escaped, and when by both clocks, until it has worked again.
        self._death: tuple[BaseException, int, float] | None = None
        self._pause_s = _PAUSE_S
        self._thread = self._runtime.thread(name, self._drive, self._drive_once, changed)

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
        """Returns when the thread has ended. The caller has told it to; it is not run again."""
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
        seconds = self._runtime.monotonic() - since_s
        return Trouble(self.name, "died", since_us, seconds, repr(error))

    def turn(self) -> float | None:
        """What there is to do now, for a runtime without threads."""
        raise NotImplementedError(f"{self.name} is no step: it needs a thread")

    def _drive(self) -> None:
        while True:
            begin = self._runtime.monotonic()
            try:
                if not self._run():
                    self._threads.remove(self)
                    self._end_thread()
                return
            except BaseException as error:
                if self._runtime.monotonic() - begin > _WELL_S:
                    self._pause_s = _PAUSE_S
                pause_s = self._note_death(error)
            if pause_s is None:
                self._end_thread()
                return
            self._ending.wait(pause_s)

    def _end_thread(self) -> None:
        """It has ended, for good."""

    def _drive_once(self) -> float | None:
        try:
            wait_s = self.turn()
        except BaseException as error:
            pause_s = self._note_death(error)
            return ENDED if pause_s is None else pause_s
        if wait_s == ENDED:
            self._threads.remove(self)
        return wait_s

    def _note_death(self, error: BaseException) -> float | None:
        """How long to wait before it is run again; None if it is not."""
        self.working = False
        now_us = self._runtime.clock.wall_ns() // 1000
        self._death = (error, now_us, self._runtime.monotonic())
        self._threads.deaths[self.name] += 1
        then = "is run again" if self._failed is None else "takes what depends on it along"
        _log.critical(
            "a thread of the broker died and %s",
            then,
            exc_info=error,
            extra=fields(thread=self.name),
        )
        if self._failed is not None:
            self._failed(error)
            return None
        if self._ending.is_set():
            return None
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _PAUSE_S_MAX)
        return pause_s


class Driver(Worker):
    """A thread around a service that is a step, and nothing else of the service knows of a thread.

    `take` is called with `changed` held: it takes what there is to do and returns 0, or returns in how
    many seconds there will be something; None: when `changed` is notified. It may be called again before
    what it took is done, and then returns 0 too. `step` does what was taken, and returns False when the
    service has ended.

    Another thread may *lead*: do a turn itself, when it brings work while none is under way. So no
    thread has to be woken for a lone caller. Its own thread does what then is left.
    """

    def __init__(
        self,
        threads: Threads,
        name: str,
        changed: threading.Condition,
        take: Callable[[], float | None],
        step: Callable[[], bool],
        failed: Callable[[BaseException], None] | None = None,
        parks: bool = True,
    ) -> None:
        super().__init__(threads, name, self._take_and_step, failed, changed)
        self._changed, self._take, self._step = changed, take, step
        # Where it is parked when it has nothing to do, if it is.
        self._parks_at = changed if parks and isinstance(changed, ParkingCondition) else None
        self._for_good = threading.Event()
        # A turn is under way. Whoever has it looks for more work after it, with the lock.
        self.in_turn = False
        # When its own thread, which waits, wakes up by itself; when callers may lead again; and which
        # thread leads.
        self._wakes_at = math.inf
        self._led_from = 0.0
        # When more work last came during a leader's turn.
        self._met_at = -math.inf
        self._leader: int | None = None
        # What a leader's turn ended with, for its own thread to end with.
        self._ended = False
        self._raised: BaseException | None = None

    @property
    def ident(self) -> int | None:
        return self._leader or super().ident

    # A leader's thread

    @property
    def may_be_led(self) -> bool:
        """Whether no turn is under way, and callers don't meet there."""
        idle = not (self.in_turn or self._ended) and self._runtime.leads
        return idle and self._runtime.monotonic() >= self._led_from

    def begin_to_lead(self) -> bool:
        """With `changed` held: takes what there is to do, if it may be led. Then `lead` follows."""
        if not self.may_be_led or may_be_interrupted():
            return False
        wait_s = self._look_for_work()
        if wait_s is None or wait_s > 0 or self._ended:
            self._wake_within(wait_s)
            return False
        self.in_turn = True
        return True

    def lead(self) -> None:
        """Does what was taken. Raises nothing: what escapes from a turn is its own thread's death."""
        self._leader = threading.get_ident()
        self.busy()
        ended = False
        raised: BaseException | None = None
        try:
            ended = not self._step()
        except BaseException as error:
            ended, raised = True, error
        with self._changed:
            self._leader = None
            self.working = self.in_turn = False
            # With the lock: its own thread, if it is awake, sees why it has ended as well.
            self._ended, self._raised = ended, raised
            wait_s = 0.0 if ended else self._look_for_work()
            if wait_s is not None and wait_s <= 0:
                now = self._runtime.monotonic()
                if now - self._met_at < _MEETING_S:
                    self._led_from = now + _CROWDED_S
                self._met_at = now
            self._wake_within(wait_s)

    def _look_for_work(self) -> float | None:
        """With the lock: what `take` says. One that raises is its own thread's death too."""
        try:
            return self._take()
        except BaseException as error:
            self._ended, self._raised = True, error
            return 0.0

    def _wake_within(self, wait_s: float | None) -> None:
        """With the lock: its own thread is woken if it would sleep for longer."""
        if wait_s is not None and self._runtime.monotonic() + wait_s < self._wakes_at - _NEAR_S:
            self._changed.notify_all()

    # Its thread when there is something to do

    def resume_thread(self) -> None:
        """For `ParkingCondition`, with the lock: there may be something to do."""
        thread = self._runtime.thread(self.name, self._drive, self._drive_once, self._changed)
        thread.start()
        self._thread = thread

    def _park(self, wait_s: float | None) -> bool:
        """With the lock, when it has waited for a while: whether its thread may go."""
        place = self._parks_at
        if place is None or self.in_turn or (wait_s is not None and wait_s <= PARK_AFTER_S):
            return False
        place.park(self)
        if wait_s is not None:
            self._threads.alarms.set(place, self._wakes_at)
        return True

    def _end_thread(self) -> None:
        self._for_good.set()

    def wait(self) -> None:
        if self._parks_at is None or self._thread.ident is None:
            super().wait()
        else:
            self._for_good.wait()

    # Its own thread

    def _take_and_step(self) -> bool:
        changed, step = self._changed, self._step
        # What can't be trusted any more is not led either.
        for_good = self._failed is not None
        while True:
            with changed:
                # A leader may have begun since the last turn: then the service is busy.
                if not self.in_turn:
                    self.idle()
                if self._wait_for_turn():
                    return True
                if self._ended:
                    break
                self.in_turn = True
            self.busy()
            ended = for_good
            try:
                ended = not step()
            finally:
                # In this order: who finds that no turn is under way leads one.
                self._ended = ended
                self.in_turn = False
            if ended:
                return False
        if self._raised is not None:
            error, self._raised = self._raised, None
            self._ended = for_good
            raise error
        return False

    def _wait_for_turn(self) -> bool:
        """Returns when there is something to do, or True when its thread is to go."""
        rested = False
        while not self._ended:
            wait_s = None
            if not self.in_turn:
                wait_s = self._take()
                if wait_s is not None and wait_s <= 0:
                    return False
            self._wakes_at = math.inf if wait_s is None else self._runtime.monotonic() + wait_s
            if rested and self._park(wait_s):
                return True
            if self._parks_at is None:
                self._changed.wait(wait_s)
            else:
                patience_s = PARK_AFTER_S if wait_s is None else min(wait_s, PARK_AFTER_S)
                rested = not self._changed.wait(patience_s)
        return False

    def turn(self) -> float | None:
        self.idle()
        with self._changed:
            wait_s = self._take()
        if wait_s is None or wait_s > 0:
            return wait_s
        self.busy()
        return 0.0 if self._step() else ENDED


class Poller(Driver):
    """A driver for a service that has one function, which says when it wants to be called again.

    `poll` does what there is to do now and returns in how many seconds it wants to be called again;
    None: when it is woken.
    """

    def __init__(
        self,
        threads: Threads,
        name: str,
        poll: Callable[[], float | None],
        parks: bool = True,
    ) -> None:
        self._poll = poll
        self._woken = False
        # When to poll next; one that died in the middle of something begins with a poll.
        self._next_at: float | None = 0.0
        self.stopping = False
        changed = threads.condition() if parks else threads.runtime.condition()
        super().__init__(threads, name, changed, self._is_due, self._poll_once)

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
        self.join()

    def _is_due(self) -> float | None:
        if self._woken or self.stopping:
            self._woken = False
            return 0.0
        return None if self._next_at is None else self._next_at - self._runtime.monotonic()

    def _poll_once(self) -> bool:
        if self.stopping:
            return False
        self._next_at = 0.0
        wait_s = self._poll()
        self._next_at = None if wait_s is None else self._runtime.monotonic() + wait_s
        return True


class Threads:
    """All threads of one broker, and their watchdog once `start` is called."""

    def __init__(
        self, stall_s: float = STALL_S, runtime: Runtime | None = None, parks: bool = False
    ) -> None:
        """`parks`: services that have nothing to do let their threads go, where there are threads."""
        self.runtime: Runtime = runtime or SystemRuntime()
        self._parks = parks and self.runtime.leads
        self.alarms = Alarms(self)
        self._stall_s = stall_s
        self._every_s = min(stall_s / _LOOKS_PER_STALL, _LOOK_S_MAX)
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._looked_at: float | None = None
        self._elapsed_s = 0.0
        # How often each died, by name.
        self.deaths: Counter[str] = Counter()
        self._watchdog = Poller(self, "fasti-watchdog", self._poll, parks=False)

    def condition(self) -> threading.Condition:
        """For a service that is driven here: what it waits for."""
        return ParkingCondition() if self._parks else self.runtime.condition()

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
        return [trouble for item in watched if (trouble := item.trouble()) is not None]

    def stalls(self) -> dict[str, float]:
        """For how long each has made no progress while it had work: 0 for those that are well."""
        with self._lock:
            return {watched.name: watched.stalled_s for watched in self._watched}

    def look(self, now_s: float) -> None:
        """One look at all; `now_s` is monotonic."""
        if self._looked_at is not None:
            self._elapsed_s += min(now_s - self._looked_at, 2 * self._every_s)
        self._looked_at = now_s
        now_us = self.runtime.clock.wall_ns() // 1000
        with self._lock:
            everything = list(self._watched)
        for watched in everything:
            watched.look(self._elapsed_s, self._stall_s, now_us)

    def start(self) -> None:
        """The watchdog begins."""
        self._watchdog.start()
        if self._parks:
            self.alarms.start()

    def stop(self) -> None:
        """The watchdog ends. Workers are ended by their owners."""
        if self._parks:
            self.alarms.stop()
        self._watchdog.stop()

    def _poll(self) -> float:
        self.look(self.runtime.monotonic())
        return self._every_s


def _stack(ident: int | None) -> str:
    frame = sys._current_frames().get(ident) if ident is not None else None
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame)).rstrip()
