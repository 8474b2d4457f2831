"""The broker's clock and a client's estimate of it, while somebody sets the wall clock.

The machine, the broker and the network are simulated together: time passes, the wall steps, answers
take any time. Never early means: whatever the client takes the time to be, the broker's clock is
there already.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fasti.broker.clock import EngineClock
from fasti.client.clock import ClockEstimate
from fasti.config import ShardSettings
from fasti.model import DAY_US, HOUR_US, MINUTE_US, SECOND_US

SETTINGS = ShardSettings(clock_leap_max_us=MINUTE_US, clock_leap_lasts_us=20 * SECOND_US)


class Machine:
    boot = ""

    def __init__(self) -> None:
        self.elapsed_us, self.off_us = DAY_US, 10**15

    def wall_ns(self) -> int:
        return (self.elapsed_us + self.off_us) * 1000

    def elapsed_ns(self) -> int:
        return self.elapsed_us * 1000

    def tick(self) -> int:
        return self.elapsed_us


PASSING_US = st.sampled_from([1, 45_000, SECOND_US, 4 * SECOND_US, 11 * SECOND_US, MINUTE_US])
STEP_US = st.sampled_from([45_000, SECOND_US, 50 * SECOND_US, HOUR_US, 30 * DAY_US]).flatmap(
    lambda us: st.sampled_from([us, -us])
)
TRIP_US = st.sampled_from([0, 300, 45_000, SECOND_US])
MOVES = st.one_of(
    st.tuples(st.just("pass"), PASSING_US, st.just(0)),
    st.tuples(st.just("set"), STEP_US, st.just(0)),
    st.tuples(st.just("ask"), TRIP_US, TRIP_US),
    # What the broker wrote, and how long it was under way.
    st.tuples(st.just("hear"), PASSING_US, st.just(0)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
)


@given(st.lists(MOVES, max_size=60))
def test_a_client_is_never_ahead_of_the_brokers_clock(moves: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    broker = EngineClock(machine, SETTINGS)
    client = ClockEstimate(machine.tick)
    client.sample(machine.tick(), machine.tick(), **broker.told())
    for what, by_us, back_us in moves:
        if what == "set":
            machine.off_us += by_us
            continue  # Nobody has looked yet.
        if what == "hear":
            word = broker.now_us()
            machine.elapsed_us += by_us
            client.heard(word)
        elif what == "ask":
            asked_us = machine.tick()
            machine.elapsed_us += by_us
            answer = broker.told()
            machine.elapsed_us += back_us
            client.sample(asked_us, machine.tick(), **answer)
        elif what == "pass":
            machine.elapsed_us += by_us
        # The client looks first: the broker may not have noticed yet what its wall did.
        assert client.now_us() <= broker.now_us()
