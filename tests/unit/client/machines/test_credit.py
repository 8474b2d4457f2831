"""The window follows the handlers: wide for quick ones, as narrow as their hands for slow ones."""

from __future__ import annotations

import pytest

from fasti.client.machines.credit import (
    AMPLE_SIZE,
    BRISK_US,
    BYTES_MAX,
    HANDS_MAX,
    LEAP,
    LONG_US,
    QUICK_US,
    SIZE_MAX,
    SLOW_US,
    Window,
)

SMALL = 100


def grown(window: Window, worked_us: int = 10) -> Window:
    """Handlers that are quick, and want more than comes."""
    for _ in range(20):
        window.starve()
        window.finish(0, worked_us, SMALL, worked_us)
    return window


def test_it_begins_with_the_hands_that_are_free() -> None:
    assert Window().size == 1
    app = Window()
    app.want(8)
    assert app.size == app.slots == 8


def sizes(pace_us: float, worked_us: int = 10, times: int = 14) -> list[int]:
    """Of a new window, whose messages are finished at that pace and then waited for."""
    window = Window()
    seen = []
    for _ in range(times):
        window.starve()
        window.finish(0, worked_us, SMALL, pace_us)
        seen.append(window.size)
    return seen


def test_it_leaps_to_what_quick_handlers_do_in_a_few_round_trips() -> None:
    assert sizes(pace_us=1)[:4] == [LEAP, LEAP**2, LEAP**3, 15_000]
    # By a few of which each seemed to take longer than it will among many.
    assert sizes(pace_us=100)[:2] == [LEAP, 150]
    assert sizes(pace_us=0)[-1] == SIZE_MAX


def test_beyond_that_it_doubles_while_handlers_wait() -> None:
    assert sizes(pace_us=100)[1:5] == [150, 300, 600, 1_200]
    assert sizes(pace_us=10_000, worked_us=10_000)[:4] == [2, 4, 8, 16]
    assert sizes(pace_us=10_000)[-1] == SIZE_MAX


def test_it_does_not_grow_for_those_who_never_wait() -> None:
    window = Window()
    for _ in range(20):
        window.finish(0, BRISK_US + 1, SMALL, BRISK_US + 1)
    assert window.size == 1


def test_it_grows_until_acks_of_brisk_handlers_travel_together_and_no_further() -> None:
    window = Window()
    for _ in range(20):
        window.finish(0, BRISK_US, SMALL, 1)
    assert window.size == AMPLE_SIZE


def test_it_does_not_grow_for_slow_handlers() -> None:
    window = grown(Window(), worked_us=QUICK_US + 1)
    assert window.size == 1
    window.starve()
    window.finish(QUICK_US, 1, SMALL, 1)
    assert window.size == 1


def test_what_waits_for_long_narrows_it_in_proportion() -> None:
    window = grown(Window())
    assert not window.finish(2 * LONG_US, 10, SMALL, 10)
    assert window.size == SIZE_MAX * QUICK_US // (2 * LONG_US)
    window.finish(10**9, 10, SMALL, 10)
    assert window.size == 1


def test_one_slow_message_brings_it_back_and_asks_for_the_credit() -> None:
    window = grown(Window())
    assert window.finish(0, SLOW_US + 1, SMALL, SLOW_US)
    assert window.size == 1
    assert not window.finish(0, SLOW_US + 1, SMALL, SLOW_US)
    app = Window()
    app.want(4)
    assert grown(app).finish(0, SLOW_US + 1, SMALL, SLOW_US)
    assert app.size == 4


def test_large_messages_are_fewer() -> None:
    window = grown(Window())
    window.finish(0, 10, 1 << 20, 10)
    assert window.size == BYTES_MAX >> 20
    window.finish(0, 10, 2 * BYTES_MAX, 10)
    assert window.size == 1


def test_hands_are_learnt_one_by_one_up_to_a_bound() -> None:
    window = Window()
    for in_hand in range(1, 100):
        window.reach(in_hand)
    assert window.size == window.slots == HANDS_MAX
    # Whoever waits while places are free needs no more of them.
    roomy = Window()
    roomy.want(10)
    roomy.reach(5)
    assert roomy.size == 10


def test_a_stall_leaves_what_is_being_worked_on() -> None:
    window = grown(Window())
    window.stall(0)
    assert window.size == 1
    window = grown(Window())
    window.stall(5)
    assert window.size == window.slots == 5
    app = Window()
    app.want(8)
    grown(app).stall(3)
    assert app.size == 8


def test_batches_may_come_while_one_is_worked_on() -> None:
    window = Window()
    window.want_batches(10_000)
    assert (window.slots, window.size) == (10_000, 20_000)
    assert grown(window).size == 40_000
    window.stall(10_000)
    assert window.size == 10_000


@pytest.mark.parametrize("fixed", [1, 32, 20_000])
def test_a_number_that_was_given_is_kept(fixed: int) -> None:
    window = grown(Window(fixed))
    window.finish(10**9, 10**9, 1 << 30, 1)
    window.reach(fixed)
    assert window.size == fixed
    assert not window.adapts
    window.want_batches(10_000)
    assert window.size == max(fixed, 40_000)
