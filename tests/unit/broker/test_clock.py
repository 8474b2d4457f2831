"""The broker's clock: what it makes of a wall clock that is set."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.broker import clock_record
from fasti.broker.clock import (
    HUNG_US,
    SLOWER,
    STALLED_US,
    STEADY_US,
    ClockState,
    EngineClock,
    LeaseTicks,
)
from fasti.broker.machine_clock import watch_settings
from fasti.broker.threads import Threads
from fasti.config import ShardSettings
from fasti.errors import ClockBehind
from fasti.model import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from fasti.runtime import SystemClock
from fasti.storage.file_storage import CLOCK_NAME, FileStorage
from fasti.storage.files import LocalFiles

SETTINGS = ShardSettings(
    clock_leap_max_us=5 * MINUTE_US, clock_leap_lasts_us=10 * MINUTE_US, clock_behind_max_us=DAY_US
)
# What a reading may be off.
CLOSE_US = 1_000


class Machine:
    """Clocks that the test moves: all together, or the wall alone. A reading may take a while."""

    boot = "first"

    def __init__(self) -> None:
        self.wall_us, self.elapsed_us, self.reading_us = 10**15, 7 * DAY_US, 0

    def wall_ns(self) -> int:
        self.wall_us += self.reading_us
        self.elapsed_us += self.reading_us
        return self.wall_us * 1000

    def elapsed_ns(self) -> int:
        return self.elapsed_us * 1000

    def tick(self) -> int:
        return self.elapsed_us

    def go_on(self, us: int, stepped_us: int = 0) -> None:
        self.elapsed_us += us
        self.wall_us += us + stepped_us


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> EngineClock:
    return EngineClock(machine, SETTINGS)


def test_it_shows_the_wall_clocks_time(machine: Machine, clock: EngineClock) -> None:
    for _ in range(3):
        machine.go_on(5 * SECOND_US)
        assert clock.now_us() == machine.wall_us
    assert clock.told() == {"now_us": machine.wall_us}
    assert clock.seconds_until(machine.wall_us + SECOND_US) == 1.0


def test_a_small_leap_ahead_is_believed_at_once(machine: Machine, clock: EngineClock) -> None:
    machine.go_on(1, SETTINGS.clock_leap_max_us)
    assert clock.now_us() == machine.wall_us
    assert clock.steps == {"forward": 1, "backward": 0}
    assert clock.last_step_us == SETTINGS.clock_leap_max_us


def test_a_leap_beyond_the_bound_is_doubted_until_it_has_lasted(
    machine: Machine, clock: EngineClock, caplog: pytest.LogCaptureFixture
) -> None:
    before_us = clock.now_us()
    machine.go_on(0, 30 * DAY_US)
    for passed in (0, SECOND_US, SETTINGS.clock_leap_lasts_us - 1):
        machine.go_on(before_us + passed - clock.now_us())
        reading = clock.read()
        assert (reading.now_us, reading.state) == (before_us + passed, ClockState.DOUBTING)
        assert reading.believed_in_us == SETTINGS.clock_leap_lasts_us - passed
        assert clock.told() == {"now_us": before_us + passed}
    assert clock.seconds_until(before_us + HOUR_US + 10 * MINUTE_US) < 1
    machine.go_on(1)
    assert clock.now_us() == machine.wall_us
    assert clock.state is ClockState.FOLLOWING
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the wall clock was set ahead",
        "the wall clock leapt ahead by more than clock_leap_max",
        "the leap of the wall clock is believed",
    ]


def test_a_glitch_changes_nothing(machine: Machine, clock: EngineClock) -> None:
    before_us = clock.now_us()
    machine.go_on(0, 30 * DAY_US)
    assert clock.now_us() == before_us
    machine.go_on(5 * SECOND_US, -30 * DAY_US)
    assert clock.now_us() == before_us + 5 * SECOND_US == machine.wall_us
    assert clock.state is ClockState.FOLLOWING
    assert clock.steps == {"forward": 1, "backward": 1}


def test_a_leap_that_leaps_again_has_not_lasted(machine: Machine, clock: EngineClock) -> None:
    machine.go_on(0, 30 * DAY_US)
    before_us = clock.now_us()
    machine.go_on(9 * MINUTE_US, DAY_US)
    clock.now_us()
    machine.go_on(9 * MINUTE_US)
    assert clock.now_us() == before_us + 18 * MINUTE_US
    machine.go_on(MINUTE_US)
    assert clock.now_us() == machine.wall_us


def test_the_operator_accepts_a_leap(machine: Machine, clock: EngineClock) -> None:
    assert not clock.accept()
    machine.go_on(0, 30 * DAY_US)
    assert clock.now_us() == machine.wall_us - 30 * DAY_US
    assert clock.accept()
    assert clock.now_us() == machine.wall_us
    assert not clock.accept()


def test_a_suspended_machine_is_no_leap(machine: Machine, clock: EngineClock) -> None:
    machine.go_on(8 * HOUR_US)
    assert clock.now_us() == machine.wall_us
    assert clock.steps == {"forward": 0, "backward": 0}


def test_a_step_back_slows_it_until_the_wall_has_caught_up(
    machine: Machine, clock: EngineClock
) -> None:
    before_us = clock.now_us()
    machine.go_on(0, -HOUR_US)
    assert clock.told() == {"now_us": before_us, "steady_us": STEADY_US}
    assert clock.seconds_until(before_us + 2 * STEADY_US) == 3 * STEADY_US / 1e6
    machine.go_on(STEADY_US)
    assert clock.told() == {"now_us": before_us + STEADY_US, "steady_us": 0}
    machine.go_on(HOUR_US)
    assert clock.now_us() == before_us + STEADY_US + HOUR_US // SLOWER
    assert clock.state is ClockState.SLOWED
    machine.go_on(HOUR_US)
    assert clock.now_us() - machine.wall_us == 0
    assert clock.state is ClockState.FOLLOWING
    assert clock.told() == {"now_us": machine.wall_us}


def test_at_the_start_it_goes_on_from_the_last_event(machine: Machine, clock: EngineClock) -> None:
    last_us = machine.wall_us + HOUR_US
    clock.begin_at(last_us)
    assert clock.told() == {"now_us": last_us, "steady_us": 0}
    machine.go_on(10 * SECOND_US)
    assert clock.now_us() == last_us + 10 * SECOND_US // SLOWER
    # The broker was off for years: that is no leap.
    clock = EngineClock(machine, SETTINGS)
    clock.begin_at(machine.wall_us - 1000 * DAY_US)
    assert (clock.now_us(), clock.state) == (machine.wall_us, ClockState.FOLLOWING)


def test_a_disk_that_is_far_ahead_is_refused(machine: Machine, clock: EngineClock) -> None:
    clock.begin_at(machine.wall_us + SETTINGS.clock_behind_max_us)
    with pytest.raises(ClockBehind, match=r"30\.0 days ahead .* reset-clock"):
        EngineClock(machine, SETTINGS).begin_at(machine.wall_us + 30 * DAY_US)


def test_a_wall_that_is_slewed_is_followed(machine: Machine, clock: EngineClock) -> None:
    for gained in (30_000, -30_000):
        for _ in range(50):
            machine.go_on(60 * SECOND_US, gained)  # 500 ppm, a minute at a time.
            assert abs(clock.now_us() - machine.wall_us) <= max(CLOSE_US, abs(gained))
    machine.go_on(100 * HOUR_US, 100 * HOUR_US // 2_000)  # And long unread.
    assert clock.now_us() == machine.wall_us
    assert clock.steps == {"forward": 0, "backward": 0}


def test_a_reader_that_was_stopped_between_the_clocks_proves_nothing(
    machine: Machine, clock: EngineClock
) -> None:
    machine.reading_us = HOUR_US
    clock.now_us()
    machine.reading_us = 0
    assert clock.now_us() == machine.wall_us
    assert clock.steps == {"forward": 0, "backward": 0}


def test_a_leap_while_no_broker_ran_is_doubted_on_the_same_boot(
    machine: Machine, clock: EngineClock, tmp_path: Path
) -> None:
    storage = FileStorage(LocalFiles(tmp_path)).open(ShardSettings(segment_bytes=4096))
    last_us = clock.now_us()
    clock_record.write(storage, machine, clock)
    machine.go_on(3 * DAY_US)
    # Off for days, and the wall is right.
    assert clock_record.expected_us(storage, machine) == machine.wall_us
    machine.go_on(SECOND_US, 30 * DAY_US)
    expected_us = clock_record.expected_us(storage, machine)
    assert expected_us == machine.wall_us - 30 * DAY_US
    begun = EngineClock(machine, SETTINGS)
    begun.begin_at(last_us, expected_us)
    assert (begun.now_us(), begun.state) == (expected_us, ClockState.DOUBTING)
    # What is doubted is not recorded; what is accepted is.
    clock_record.write(storage, machine, begun)
    assert clock_record.expected_us(storage, machine) == expected_us
    assert begun.accept()
    clock_record.write(storage, machine, begun)
    assert clock_record.expected_us(storage, machine) == machine.wall_us
    # After a reboot nobody knows.
    machine.boot = "second"
    assert clock_record.expected_us(storage, machine) is None
    (tmp_path / CLOCK_NAME).write_text("[]")
    machine.boot = "first"
    assert clock_record.expected_us(storage, machine) is None
    storage.close()


STEPS_US = st.one_of(
    st.integers(-2 * SECOND_US, 2 * SECOND_US),
    st.integers(-2 * HOUR_US, 2 * HOUR_US),
    st.integers(-60 * DAY_US, 60 * DAY_US),
)


@given(
    st.lists(
        st.tuples(st.integers(0, 30 * SECOND_US), st.one_of(st.just(0), STEPS_US), st.booleans()),
        max_size=40,
    )
)
def test_whatever_happens_to_the_wall(moves: list[tuple[int, int, bool]]) -> None:
    """It never goes back, never stands still, keeps its promises, takes no untrusted leap, over
    restarts too; and left alone it comes to show the wall's time.
    """
    machine = Machine()
    settings = replace(SETTINGS, clock_behind_max_us=1000 * DAY_US)
    clock = EngineClock(machine, settings)
    told, told_at = clock.told(), machine.elapsed_us
    for passed_us, step_us, restart in moves:
        last_us = told["now_us"]
        machine.go_on(passed_us, step_us)
        if restart:
            ahead_us = machine.wall_us - last_us
            clock = EngineClock(machine, settings)
            clock.begin_at(last_us)
            assert clock.now_us() == max(last_us, last_us + ahead_us)
        now_us = clock.now_us()
        assert now_us >= last_us
        if not restart:
            steady_us = min(told.get("steady_us", STEADY_US), passed_us)
            least_us = steady_us + (passed_us - steady_us) // SLOWER
            # Nanoseconds are cut off at both ends.
            assert now_us - last_us >= least_us - 1
            assert now_us - last_us <= passed_us + settings.clock_leap_max_us + 2 * CLOSE_US
        told, told_at = clock.told(), machine.elapsed_us
    assert told_at == machine.elapsed_us
    behind_us = max(0, clock.now_us() - machine.wall_us)
    machine.go_on(settings.clock_leap_lasts_us + STEADY_US + behind_us * SLOWER)
    clock.now_us()
    assert abs(clock.now_us() - machine.wall_us) <= CLOSE_US


def test_threads_never_see_it_go_back() -> None:
    """One steps the wall while others read."""

    class Shaken(SystemClock):
        off_ns = 0

        def wall_ns(self) -> int:  # type: ignore[override]
            return SystemClock.wall_ns() + self.off_ns

    machine = Shaken()
    clock = EngineClock(machine, SETTINGS)
    wrong: list[tuple[int, int]] = []
    newest = [0]

    def read() -> None:
        for _ in range(3_000):
            # What any thread saw before this one asked.
            seen = newest[0]
            now_us = clock.now_us()
            if now_us < seen:
                wrong.append((seen, now_us))
            newest[0] = now_us

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(1_000):
        machine.off_ns += -50_000_000 if turn % 2 else 40_000_000
        clock.now_us()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when its clock is set")
def test_the_system_can_be_asked_to_tell() -> None:
    assert watch_settings(lambda: None, Threads())


def test_what_is_logged_is_logged_outside_the_lock(
    machine: Machine, clock: EngineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that nobody reads may block its writer: then the others go on."""
    log, heard = logging.getLogger("fasti.broker.clock"), list[int]()
    monkeypatch.setattr(log, "warning", lambda *_, **__: heard.append(clock.now_us()))
    machine.go_on(0, DAY_US)
    now_us = clock.now_us()
    assert heard == [now_us, now_us]


SECOND_US = 1_000_000


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at_us = 50 * SECOND_US

    def tick(self) -> int:
        return self.at_us


class MachineHands(Hands, SystemClock):
    """As if they were the machine's own."""


def test_ticks_are_the_clocks_while_looks_come_in_time() -> None:
    hands = MachineHands()
    ticks = LeaseTicks(hands)
    for planned in (None, 51 * SECOND_US, 52 * SECOND_US):
        hands.at_us = (planned or hands.at_us) + HUNG_US
        assert ticks.look(planned) == ticks.now() == hands.at_us


def test_time_in_which_nobody_looked_is_left_out_for_good() -> None:
    hands = MachineHands()
    ticks = LeaseTicks(hands)
    looked = ticks.look(None)
    hands.at_us += 100 * SECOND_US
    assert ticks.look(looked + SECOND_US) == looked
    hands.at_us += 2 * SECOND_US
    assert ticks.now() == looked + 2 * SECOND_US
    # Somebody looked in time: the lease that ends here ends.
    assert ticks.look(looked + 2 * SECOND_US) == looked + 2 * SECOND_US


def test_nothing_is_left_out_when_no_lease_could_have_ended() -> None:
    hands = MachineHands()
    ticks = LeaseTicks(hands)
    hands.at_us += 100 * SECOND_US
    assert ticks.look(None) == hands.at_us
    hands.at_us += 100 * SECOND_US
    assert ticks.look(hands.at_us + 1) == hands.at_us


def test_a_virtual_clock_that_leaps_is_taken_at_its_word() -> None:
    hands = Hands()
    ticks = LeaseTicks(hands)
    looked = ticks.look(None)
    hands.at_us += 1000 * SECOND_US
    assert ticks.look(looked + 1) == hands.at_us


def test_ticks_stand_while_an_append_is_not_answered_and_go_on_from_there() -> None:
    hands = Hands()
    ticks = LeaseTicks(hands)
    ticks.append_began()
    hands.at_us += STALLED_US
    assert ticks.now() == hands.at_us
    assert not ticks.stand
    stood = ticks.now()
    hands.at_us += 60 * SECOND_US
    # It is synced again and again: that is one append.
    ticks.append_began()
    assert ticks.stand
    assert ticks.now() == ticks.look(stood - SECOND_US) == stood
    assert ticks.append_ended()
    assert ticks.now() == stood
    hands.at_us += SECOND_US
    assert not ticks.stand
    assert ticks.look(None) == stood + SECOND_US


def test_appends_that_are_answered_in_time_take_nothing_from_leases() -> None:
    hands = Hands()
    ticks = LeaseTicks(hands)
    for _ in range(100):
        ticks.append_began()
        hands.at_us += STALLED_US
        assert not ticks.append_ended()
    assert ticks.now() == hands.at_us
    assert not ticks.append_ended()


def test_a_hang_during_a_stalled_append_counts_once() -> None:
    hands = MachineHands()
    ticks = LeaseTicks(hands)
    looked = ticks.look(None)
    ticks.append_began()
    hands.at_us += 100 * SECOND_US
    ticks.append_ended()
    assert ticks.look(looked + SECOND_US) == looked + STALLED_US


@given(st.lists(st.tuples(st.sampled_from("abe"), st.integers(0, 2 * SECOND_US)), max_size=60))
def test_ticks_never_go_back_and_never_faster_than_the_clock(
    steps: list[tuple[str, int]],
) -> None:
    hands = MachineHands()
    ticks = LeaseTicks(hands)
    before, at_us = ticks.now(), hands.at_us
    for what, us in steps:
        hands.at_us += us
        if what == "b":
            ticks.append_began()
        elif what == "e":
            ticks.append_ended()
        now = ticks.look(before + SECOND_US)
        assert 0 <= now - before <= hands.at_us - at_us
        before, at_us = now, hands.at_us
