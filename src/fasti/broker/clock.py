"""The broker's clock: the one time by which the engine decides, and that clients are told.

It shows the machine's wall time as long as that is plausible, and never goes back. Between two
looks at the wall it goes on by elapsed time, which can't be set. What it makes of a wall that was
set:

* **ahead, by at most `leap_max`:** believed at once. What was due meanwhile is due now.
* **ahead by more:** *doubted*. The clock goes on by elapsed time, so no event takes the new time and
  nothing expires by it, until the leap has lasted for `leap_lasts`, or the operator accepts it. A
  wall that comes back before then has changed nothing. A machine that was suspended is no leap:
  elapsed time went on too.
* **back:** the clock is *slowed*. It goes on at full speed for `STEADY_US` and then at half speed,
  until the wall has caught up. So delivery goes on, and a step back of an hour is made up for in two.

**A promise to clients.** They hold messages that were sent ahead until this clock shows the due
time, and know of it only what they were told some seconds ago. So every reading that they are told
is a promise: for `STEADY_US` from then on (or the shorter `steady_us` that was told with it) the clock
goes on at full speed at least, and at half speed at least after. A clock that is to be slowed keeps
full speed for that long, so no client can be ahead of it, whatever happens to the wall.

**Reading** must be cheap, for it happens with every step and every answer: two system clocks and a
comparison, without a lock, while the wall is where it is expected. Only what goes beyond is decided
under the lock. `_line` is how elapsed time becomes time while nothing is to be decided. Who decides
takes it away *before* reading the clocks; so a reader that finds it unchanged *after* reading them has
read an earlier moment, and no time that was ever shown is later than one that is shown after it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from fasti.broker.logs import fields
from fasti.config import ShardSettings
from fasti.errors import ClockBehind
from fasti.model import DAY_US
from fasti.runtime import MachineClock, SystemClock, Ticking

_log = logging.getLogger("fasti.broker.clock")

# So long after it was told, the clock goes on at full speed at least.
STEADY_US = 10_000_000
# A slowed clock goes so many times slower.
SLOWER = 2
# Beyond this a change of the wall is a step: logged and counted; no disciplined clock drifts by more
# than that share.
STEP_US = 1_000_000
_DRIFT = 0.001
# The clock is content to be as close to the wall: half of what is seen of it is the reading itself.
_CLOSE_NS = 500_000
# Two readings that lie further apart than this say nothing about a difference.
_READING_NS = 10_000_000
_READINGS = 5
_NEVER_NS = 1 << 80

_AHEAD = "the wall clock was set ahead"
_BACK = "the wall clock was set back: the broker's clock goes on, slowed until it has caught up"
_RETURNED = "the wall clock was set back after a leap that was not believed"
_BEHIND = (
    "the wall clock is behind the last event: the broker's clock goes on from there, slowed until "
    "the wall has caught up"
)
_DOUBTED = (
    "the wall clock leapt ahead by more than clock_leap_max: it is not believed until it has lasted, "
    "or `fasti clock accept` says so"
)


class ClockState(StrEnum):
    """How the broker's clock goes."""

    FOLLOWING = "following"
    SLOWED = "slowed"
    DOUBTING = "doubting"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The broker's clock at one moment, and what it makes of the wall."""

    now_us: int
    wall_us: int
    state: ClockState
    # For how long it goes on at full speed for certain.
    steady_us: int
    # How long until a leap is believed that lasts; None if there is none.
    believed_in_us: int | None


class EngineClock:
    """One for each shard. Any thread may read it, and is then the one that notices a step."""

    def __init__(
        self, machine: MachineClock | None = None, settings: ShardSettings | None = None
    ) -> None:
        machine, settings = machine or SystemClock(), settings or ShardSettings()
        self._wall_ns, self._elapsed_ns = machine.wall_ns, machine.elapsed_ns
        self.tick = machine.tick
        self._leap_max_ns = settings.clock_leap_max_us * 1000
        self._lasts_ns = settings.clock_leap_lasts_us * 1000
        self._behind_max_ns = settings.clock_behind_max_us * 1000
        self._lock = threading.Lock()
        # Wall less elapsed time as last seen, and when that was: what a step is told by.
        self._seen_ns, self._seen_at = 0, 0
        self.steps = {"forward": 0, "backward": 0}
        self.last_step_us = 0
        # Elapsed time at which the clock showed a time; from when on it goes slower.
        self._begin, self._begin_ns, self._slow_from = 0, 0, _NEVER_NS
        self._state = ClockState.FOLLOWING
        # Since when, in elapsed time, a leap is doubted.
        self._since = 0
        self._line: tuple[int] | None = None
        # What is to be logged, once the lock is free.
        self._notes: deque[tuple[str, float]] = deque()
        # How far apart the last readings of both clocks were.
        self._reading_ns = 0
        elapsed, wall = self._read_both()
        self._seen_ns, self._seen_at = wall - elapsed, elapsed
        self._begin, self._begin_ns = elapsed, wall
        self._line = (wall - elapsed,)

    # Any thread

    def now_us(self) -> int:
        """The time, UTC."""
        line = self._line
        elapsed = self._elapsed_ns()
        if line is not None:
            now = elapsed + line[0]
            gap = self._wall_ns() - now
            if -_CLOSE_NS <= gap <= _CLOSE_NS and self._line is line:
                return now // 1000
        with self._lock:
            now = self._look()[0]
        self._log()
        return now // 1000

    def read(self) -> ClockReading:
        """The time, and how the clock goes."""
        with self._lock:
            now, elapsed, wall = self._look()
            steady, believed_in = STEADY_US * 1000, None
            if self._state is ClockState.SLOWED:
                steady = max(0, self._slow_from - elapsed)
            elif self._state is ClockState.DOUBTING:
                believed_in = max(0, self._since + self._lasts_ns - elapsed) // 1000
            state = self._state
        self._log()
        return ClockReading(now // 1000, wall // 1000, state, steady // 1000, believed_in)

    def told(self) -> dict[str, int]:
        """What clients are told: the time, and for how long it is steady if not for `STEADY_US`."""
        now_us = self.now_us()
        if self._state is not ClockState.SLOWED:
            return {"now_us": now_us}
        reading = self.read()
        return {"now_us": reading.now_us, "steady_us": reading.steady_us}

    @property
    def state(self) -> ClockState:
        """As of the last reading."""
        return self._state

    def seconds_until(self, at_us: int) -> float:
        """How long to sleep until it may show that time; 0 or less if it does."""
        left_us = at_us - self.now_us()
        if self._state is ClockState.FOLLOWING or left_us <= 0:
            return left_us / 1e6
        reading = self.read()
        if reading.believed_in_us is not None:
            return min(left_us, reading.believed_in_us) / 1e6
        slowed_us = max(left_us, reading.steady_us + (left_us - reading.steady_us) * SLOWER)
        # Once the wall has caught up, the clock goes with it.
        return min(slowed_us, max(left_us, at_us - reading.wall_us)) / 1e6

    # For the shard and the operator

    def begin_at(self, last_us: int, expected_us: int | None = None) -> None:
        """At the start: the clock goes on from the last event that is on disk, if that is ahead.

        `expected_us` is what it would show if it had gone on, where that is known: a wall that is
        beyond it by more than `leap_max` leapt while no broker ran.

        Raises `clock_behind` if the wall is so far behind it that one of them must be wrong.
        """
        with self._lock:
            now, elapsed, wall = self._look()
            ahead = last_us * 1000 - wall
            if ahead > self._behind_max_ns:
                raise _behind(last_us, wall // 1000)
            if last_us * 1000 > now:
                self._line = None
                # No client was promised anything yet.
                self._begin, self._begin_ns, self._slow_from = elapsed, last_us * 1000, elapsed
                self._state = ClockState.SLOWED
                self._note(_BEHIND, ahead)
            elif expected_us is not None:
                self._doubt_from(elapsed, wall, max(expected_us, last_us) * 1000)
        self._log()

    def check(self, last_us: int) -> None:
        """Raises `clock_behind` if the wall is too far behind the last event of a shard that comes."""
        wall = self.read().wall_us
        if (last_us - wall) * 1000 > self._behind_max_ns:
            raise _behind(last_us, wall)

    def accept(self) -> bool:
        """The operator says that the wall is right; False if it isn't doubted."""
        with self._lock:
            _, elapsed, wall = self._look()
            doubted = self._state is ClockState.DOUBTING
            if doubted:
                self._believe(elapsed, wall, "the operator accepted it")
        self._log()
        return doubted

    # Decisions, under the lock

    def _read_both(self) -> tuple[int, int]:
        """Elapsed time and a wall time that is not later. The closest of a few readings."""
        best, reading = _NEVER_NS, (0, 0)
        for _ in range(_READINGS):
            before = self._elapsed_ns()
            wall = self._wall_ns()
            after = self._elapsed_ns()
            if after - before < best:
                best, reading = after - before, (after, wall)
            if best < _CLOSE_NS // 2:
                break
        self._reading_ns = best
        return reading

    def _look(self) -> tuple[int, int, int]:
        """Looks at the wall and decides how to go on: the time, elapsed time, the wall."""
        self._line = None
        elapsed, wall = self._read_both()
        now = self._at(elapsed)
        if self._reading_ns < _READING_NS:
            self._note_step(elapsed, wall)
            gap = wall - now
            # While it was slowed and not read, the wall caught up: that is no leap.
            lost = elapsed - self._begin - (now - self._begin_ns)
            if gap < -_CLOSE_NS:
                self._slow(elapsed, now)
            elif gap <= self._leap_max_ns + lost:
                now = self._follow(elapsed, max(now, wall))
            else:
                now = self._doubt(elapsed, wall, now)
        if self._state is ClockState.FOLLOWING:
            self._line = (now - elapsed,)
        return now, elapsed, wall

    def _at(self, elapsed: int) -> int:
        """The time at a moment, as it was decided last."""
        slow = max(0, elapsed - self._slow_from)
        # Rounded up, for it happens at every look.
        return self._begin_ns + elapsed - self._begin - slow + -(-slow // SLOWER)

    def _follow(self, elapsed: int, now: int) -> int:
        self._begin, self._begin_ns, self._slow_from = elapsed, now, _NEVER_NS
        if self._state is not ClockState.FOLLOWING:
            self._state = ClockState.FOLLOWING
            self._note("the broker's clock goes with the wall clock again", 0)
        return now

    def _slow(self, elapsed: int, now: int) -> None:
        self._begin, self._begin_ns = elapsed, now
        if self._state is ClockState.SLOWED:
            self._slow_from = max(self._slow_from, elapsed)
        else:
            self._slow_from = elapsed + STEADY_US * 1000
            self._state = ClockState.SLOWED

    def _doubt(self, elapsed: int, wall: int, now: int) -> int:
        if self._state is not ClockState.DOUBTING:
            self._begin, self._begin_ns, self._slow_from = elapsed, now, _NEVER_NS
            self._since = elapsed
            self._state = ClockState.DOUBTING
            self._note(_DOUBTED, wall - now)
        if elapsed - self._since < self._lasts_ns:
            return now
        return self._believe(elapsed, wall, "it has lasted")

    def _doubt_from(self, elapsed: int, wall: int, expected: int) -> None:
        if wall - expected > self._leap_max_ns:
            self._line = None
            self._begin, self._begin_ns = elapsed, expected
            self._doubt(elapsed, wall, expected)

    def _believe(self, elapsed: int, wall: int, why: str) -> int:
        note = f"the leap of the wall clock is believed: {why}"
        self._note(note, wall - self._at(elapsed))
        self._begin, self._begin_ns, self._slow_from = elapsed, wall, _NEVER_NS
        self._state, self._line = ClockState.FOLLOWING, (wall - elapsed,)
        return wall

    def _note_step(self, elapsed: int, wall: int) -> None:
        """Logs and counts a step. Taken over now and then, so that drift never adds up to one."""
        by, age = wall - elapsed - self._seen_ns, elapsed - self._seen_at
        stepped = abs(by) > STEP_US * 1000 + age * _DRIFT
        if stepped or age > STEP_US * 1000:
            self._seen_ns, self._seen_at = wall - elapsed, elapsed
        if not stepped:
            return
        # A leap that leapt again has not lasted.
        self._since = elapsed
        self.last_step_us = by // 1000
        self.steps["forward" if by > 0 else "backward"] += 1
        back = _RETURNED if self._state is ClockState.DOUBTING else _BACK
        self._note(_AHEAD if by > 0 else back, by)

    def _note(self, text: str, ns: int) -> None:
        self._notes.append((text, round(ns / 1e9, 3)))

    def _log(self) -> None:
        """Without the lock: the handlers of the log may take as long as they like."""
        # Another thread may be at it too.
        with suppress(IndexError):
            while self._notes:
                text, seconds = self._notes.popleft()
                _log.warning(text, extra=fields(seconds=seconds))


def _behind(last_us: int, wall_us: int) -> ClockBehind:
    days = (last_us - wall_us) / DAY_US
    return ClockBehind(
        f"the last event is {days:.1f} days ahead of this machine's clock, which is more than "
        "clock_behind_max: mend the clock; or, if it is right, and was wrong when the event was "
        "written, run `fasti storage reset-clock` on the data directory: nothing is lost by it",
        details={"last_us": last_us, "wall_us": wall_us},
    )


# A look that comes so much later than planned is no delay of the scheduler's.
HUNG_US = 250_000
# An append that takes longer than this is a quorum that stalls.
STALLED_US = 250_000


class LeaseTicks:
    """The ticks by which leases end: time in which the broker did not look at them doesn't count.

    A process can hang as a whole: a machine that is out of memory or frozen, a disk that answers after
    seconds, SIGSTOP. Consumers lived on meanwhile and their heartbeats wait at the door, so it would be
    wrong to let every lease end at the first look afterwards, before the heartbeats are heard. The
    sequencer plans when to look next; when it comes much later than that, these ticks go on from its
    last look. That is at most a third of a lease before the trouble began wherever consumers live,
    because each of their heartbeats makes the sequencer look. The price: leases of consumers that are
    really gone last longer by as much.

    Servers that keep a replicated journal can be away while the broker lives. Then no heartbeat and no ack
    can be answered, so from `STALLED_US` on, after an append began that is not answered, the ticks stand
    until it is.

    A virtual clock leaps on purpose: that is never taken for a hang. `look` is for the sequencer's thread,
    `append_began` and `append_ended` for the committer's, the rest for any.
    """

    def __init__(self, clock: Ticking) -> None:
        self._clock = clock
        self._may_hang = isinstance(clock, SystemClock)
        self._looked = clock.tick()
        # Around changes. Readers take the pair as a whole: the time that doesn't count, and when the append
        # began, by the machine's ticks, that is not answered.
        self._lock = threading.Lock()
        self._pair: tuple[int, int | None] = (0, None)

    def now(self) -> int:
        """The tick now."""
        lost_us, began = self._pair
        tick = self._clock.tick()
        return (tick if began is None else min(tick, began + STALLED_US)) - lost_us

    @property
    def stand(self) -> bool:
        """Whether an append has not been answered for too long: waiting brings no tick."""
        began = self._pair[1]
        return began is not None and self._clock.tick() > began + STALLED_US

    def look(self, planned: int | None) -> int:
        """The tick to judge by. `planned` is when the next lease might have ended, if any."""
        with self._lock:
            tick = self.now()
            if self._may_hang and planned is not None and tick - planned > HUNG_US:
                _log.warning(
                    "the broker hung for about %.1f s: leases go on from where they were",
                    (tick - planned) / 1e6,
                )
                lost_us, began = self._pair
                self._pair = (lost_us + tick - self._looked, began)
                tick = self._looked
            self._looked = tick
            return tick

    def append_began(self) -> None:
        """An append is on its way, or still is."""
        with self._lock:
            lost_us, began = self._pair
            if began is None:
                self._pair = (lost_us, self._clock.tick())

    def append_ended(self) -> bool:
        """It is answered, or given up. True if the ticks stood, and go on."""
        with self._lock:
            lost_us, began = self._pair
            stood_us = 0 if began is None else self._clock.tick() - began - STALLED_US
            self._pair = (lost_us + max(0, stood_us), None)
            return stood_us > 0
