"""How many round trips and requests a loop needs, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

from fasti.client.machines.credit import LEAP, QUICK_US, SIZE_MAX, STALL_S
from tests.unit.client.machines.consumer_rig import Rig

TRIP_US = 1_000


@dataclass
class Loop:
    """`for message in consumer: message.ack()`, each of which takes `work_us`."""

    rig: Rig
    work_us: int
    taken: int = 0
    trips: int = 0
    requests: int = 0
    written_us: int = 0
    # How many might be here unfinished, whenever it had waited.
    windows: list[int] = field(default_factory=list)

    def run(self, until_taken: int) -> None:
        """Works until so many are taken. `trips` counts how often it had to wait for the broker."""
        while self.taken < until_taken:
            if self.rig.inbox and self.rig.clock.at_us >= self.written_us + TRIP_US:
                self.rig._exchange()
                self.poll()
            if self.rig.take():
                self.taken += 1
                self.rig.clock.at_us += self.work_us
                self.rig.finish("ack")
                if self.rig.machine.work:
                    self.poll()
            else:
                self.poll()
                self.wait()

    def poll(self) -> None:
        while self.rig.poll() == "write":
            self.requests += 1
            self.written_us = self.rig.clock.at_us

    def wait(self) -> None:
        assert self.rig.inbox, "it waits, and has asked for nothing"
        self.rig.clock.at_us = max(self.rig.clock.at_us, self.written_us + TRIP_US)
        self.rig._exchange()
        self.trips += 1
        self.windows.append(self.rig.machine.credit.window.size)


def loop(count: int, work_us: int, prefetch: int | None = None) -> Loop:
    """All messages are due, and the consumer is connected."""
    rig = Rig(prefetch, count=count, rows_max=SIZE_MAX)
    for message in rig.broker.messages:
        message.due_us = rig.clock.at_us
    assert rig.poll() == "connect"
    rig._exchange()
    return Loop(rig, work_us)


def test_a_new_consumer_of_quick_messages_has_its_full_window_after_a_few_round_trips() -> None:
    quick = loop(12_000, work_us=2)
    quick.run(until_taken=1 + LEAP + LEAP**2 + 1)
    # The first asks for one message, which is all that is known to be wanted.
    assert quick.windows[0] == 1
    assert quick.trips <= 4
    assert quick.rig.machine.credit.window.size >= LEAP**3
    quick.rig.settle()


def test_a_burst_needs_few_round_trips_and_few_requests() -> None:
    """With a window that only doubled there were fourteen round trips for as many."""
    quick = loop(12_000, work_us=2)
    quick.run(until_taken=12_000)
    assert quick.trips <= 6
    # Acks travel by quarters of the window, with the credit that they free.
    assert quick.requests <= 40


def test_no_more_is_here_than_a_short_time_of_work() -> None:
    for work_us in (20, 200, 2_000):
        steady = loop(1_000, work_us)
        steady.run(until_taken=1_000)
        # Doubled once more by a taker that waits, as long as what comes is finished in time.
        assert max(steady.windows) <= max(2, 2 * QUICK_US // work_us)


def test_a_slow_message_behind_a_quick_one_keeps_few_from_others() -> None:
    """What one message showed is not taken for all: at most so many wait behind the next one."""
    rig = loop(1_000, work_us=10).rig
    mixed = Loop(rig, 10)
    mixed.run(until_taken=1)
    mixed.poll()
    mixed.wait()
    assert rig.take()  # The slow one.
    leased = [message for message in rig.broker.messages if message.state == "leased"]
    assert len(leased) <= LEAP
    rig.pump()
    rig.advance(int(STALL_S * 1e6) + 1)
    rig.pump()
    leased = [message for message in rig.broker.messages if message.state == "leased"]
    assert [message.id for message in leased] == [2]
    assert all(message.attempts <= 1 for message in rig.broker.messages)
    assert not any(message.attempts for message in rig.broker.messages[2:])
