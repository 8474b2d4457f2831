"""Leases don't end because the broker hung."""

from __future__ import annotations

from fasti.broker.machine_clock import SystemClock
from fasti.broker.ticks import HUNG_US, LeaseTicks

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
