"""The estimate of the broker's clock is never ahead of it, whatever the network does."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.client.clock import STEADY_US, ClockEstimate

HOUR_US = 3_600_000_000


class Ours:
    """Our monotonic clock, moved by the test."""

    def __init__(self) -> None:
        self.at_us = 5_000

    def __call__(self) -> int:
        return self.at_us


def asked(clock: ClockEstimate, ours: Ours, out_us: int, back_us: int, offset_us: int) -> None:
    """A question that takes `out_us` there and `back_us` home, to a broker that is `offset_us` ahead."""
    begin = ours.at_us
    now_us = begin + out_us + offset_us
    ours.at_us += out_us + back_us
    clock.sample(begin, ours.at_us, now_us)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5_000_000),
            st.integers(0, 5_000_000),
            st.integers(0, 60_000_000),
            st.booleans(),
        ),
        min_size=1,
    ),
    st.integers(-HOUR_US, HOUR_US),
)
def test_never_ahead_whatever_the_network_does(
    trips: list[tuple[int, int, int, bool]], offset_us: int
) -> None:
    ours = Ours()
    clock = ClockEstimate(ours)
    for out_us, back_us, pause_us, is_question in trips:
        if is_question or not clock.known:
            asked(clock, ours, out_us, back_us, offset_us)
        else:
            written = ours.at_us + offset_us
            ours.at_us += back_us
            clock.heard(written)
        assert clock.now_us() <= ours.at_us + offset_us
        ours.at_us += pause_us
        assert clock.now_us() <= ours.at_us + offset_us


@given(st.integers(-80, 80), st.lists(st.integers(0, 3_000_000), min_size=1))
def test_never_ahead_of_a_broker_whose_clock_runs_slower(ppm: int, pauses: list[int]) -> None:
    ours = Ours()
    clock = ClockEstimate(ours)

    def broker_us() -> int:
        return HOUR_US + ours.at_us + ours.at_us * ppm // 1_000_000

    for pause_us in pauses:
        begin = ours.at_us
        ours.at_us += 100
        now_us = broker_us()
        ours.at_us += 100
        clock.sample(begin, ours.at_us, now_us)
        ours.at_us += pause_us
        assert clock.now_us() <= broker_us() + 1


def test_a_fast_answer_is_kept_over_slow_ones() -> None:
    ours = Ours()
    clock = ClockEstimate(ours)
    asked(clock, ours, 10, 10, HOUR_US)
    for _ in range(3):
        asked(clock, ours, 1_000, 400_000, HOUR_US)
        assert ours.at_us + HOUR_US - clock.now_us() < 200


def test_any_word_of_the_broker_raises_the_lower_end() -> None:
    ours = Ours()
    clock = ClockEstimate(ours)
    asked(clock, ours, 10, 9_000, HOUR_US)
    clock.heard(ours.at_us + HOUR_US - 30)
    assert clock.now_us() == ours.at_us + HOUR_US - 30
    clock.heard(ours.at_us)
    assert clock.now_us() == ours.at_us + HOUR_US - 30


def test_a_clock_that_was_set_back_is_believed_and_told(caplog: pytest.LogCaptureFixture) -> None:
    ours = Ours()
    clock = ClockEstimate(ours)
    told: list[int] = []
    stop = clock.listen(lambda: told.append(clock.now_us()))
    asked(clock, ours, 10, 10, HOUR_US)
    with caplog.at_level(logging.WARNING, "fasti.client"):
        asked(clock, ours, 10, 10, HOUR_US - 2_000_000)
    assert clock.now_us() <= ours.at_us + HOUR_US - 2_000_000
    assert clock.jumps == 1
    assert "leapt by -2.0" in caplog.text
    assert len(told) == 2
    stop()
    asked(clock, ours, 10, 10, HOUR_US + 9_000_000)
    assert (clock.jumps, len(told)) == (2, 2)


def test_an_answer_that_tells_more_is_no_leap(caplog: pytest.LogCaptureFixture) -> None:
    """The first one was slow, as on a busy machine: whoever waits is told, and nobody is alarmed."""
    ours = Ours()
    clock = ClockEstimate(ours)
    told: list[int] = []
    clock.listen(lambda: told.append(clock.now_us()))
    asked(clock, ours, 10, 900_000, HOUR_US)
    with caplog.at_level(logging.WARNING, "fasti.client"):
        asked(clock, ours, 10, 10, HOUR_US)
        asked(clock, ours, 900_000, 10, HOUR_US)
        asked(clock, ours, 10, 900_000, HOUR_US)
    assert ours.at_us + HOUR_US - clock.now_us() < 1_000
    assert (clock.jumps, len(told), caplog.text) == (0, 2, "")
    # One that really leaps is noticed however slow its answer is.
    asked(clock, ours, 400_000, 400_000, 2 * HOUR_US)
    asked(clock, ours, 400_000, 400_000, HOUR_US)
    assert clock.jumps == 2


def test_after_a_long_silence_the_broker_may_have_slowed_down() -> None:
    ours = Ours()
    clock = ClockEstimate(ours)
    asked(clock, ours, 0, 0, HOUR_US)
    ours.at_us += STEADY_US
    sure_us = clock.now_us()
    assert (ours.at_us + HOUR_US - sure_us, clock.unsure_us) == (1_000, 0)
    ours.at_us += 2 * STEADY_US
    # What waits for the broker's clock waits for longer; a lease may be over all the same.
    assert clock.now_us() == sure_us + STEADY_US - 2_000
    assert clock.now_us() + clock.unsure_us == sure_us + 2 * STEADY_US - 2_000
    asked(clock, ours, 0, 0, HOUR_US)
    assert (clock.now_us(), clock.unsure_us) == (ours.at_us + HOUR_US, 0)
    # One that says that it goes slower is counted so at once.
    clock.sample(ours.at_us, ours.at_us, ours.at_us + HOUR_US, 1_000_000)
    clock.sample(ours.at_us, ours.at_us, ours.at_us + HOUR_US - 1, 0)
    ours.at_us += 2_000_000
    assert clock.now_us() == ours.at_us + HOUR_US - 1 - 1_000_000 - 200


def test_nothing_is_due_while_nothing_is_known() -> None:
    clock = ClockEstimate(Ours())
    assert not clock.known
    assert clock.now_us() == 0
    clock.heard(HOUR_US)
    assert clock.now_us() == 0
    clock.sample(0, 10, HOUR_US)
    clock.forget()
    assert clock.seconds_until(HOUR_US) > 3_000
