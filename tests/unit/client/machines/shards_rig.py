"""Several machines of one consumer, each beside a broker of its own, in virtual time and in any order.

The clocks of the brokers differ. What user code takes is checked against what all brokers know.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from fasti.client.machines.holdings import PATIENCE_US, Holdings
from fasti.client.machines.places import Places, SharedCredit
from fasti.client.machines.run import Run
from fasti.model import Limits
from tests.unit.client.machines.consumer_rig import Clock, Rig

START_US = 1_000_000
# Due times that are no further apart are not told apart.
APART_US = 1_000


class ShardsRig:
    """One consumer of a topic. `dues_us` has the due times of each shard's messages, as its broker knows them,
    counted from the start; `ahead_us` how far its clock is before ours.
    """

    def __init__(
        self,
        prefetch: int | None,
        dues_us: list[list[int]],
        ahead_us: list[int] | None = None,
    ) -> None:
        self.prefetch = prefetch
        self.places = Places(prefetch)
        self.holdings = Holdings(self.places)
        self.sides: list[Rig] = []
        for number, dues in enumerate(dues_us):
            clock = Clock(0 if ahead_us is None else ahead_us[number])
            credit = SharedCredit(self.places, Limits().credit_max)
            side = Rig(
                None,
                rows_max=1000,
                clock=clock,
                dues_us=[clock.at_us + due_us for due_us in dues],
                credit=credit,
            )
            credit.join(side.machine, lambda: None, clock.now_us)
            self.sides.append(side)
            self.holdings.add(side.session)

    def side_of(self, run: Run) -> Rig:
        return next(side for side in self.sides if side.session is run.session)

    # What happens

    def pump(self) -> None:
        """All sides say what they have to say, until all of them wait."""
        for _ in range(10_000):
            actions = []
            for side in self.sides:
                side._exchange()
                actions.append(side.poll())
                self.check()
            quiet = not any(
                side.connected and (side.inbox or side.broker.out) for side in self.sides
            )
            if quiet and all(action == "wait" for action in actions):
                return
        raise AssertionError("they never wait")

    def advance(self, us: int) -> None:
        for side in self.sides:
            side.advance(us)

    def run_for(self, us: int, step_us: int = 1_000) -> None:
        """Nothing but time passes, and what it brings."""
        for _ in range(0, us, step_us):
            self.advance(step_us)
            self.pump()

    # User code

    def take(self) -> tuple[Run, int] | None:
        """Takes a message if one is due here; checks that it is its turn."""
        held = {
            number: (first[0], side.clock.at_us)
            for number, side in enumerate(self.sides)
            if (first := side.machine.holding.first()) is not None
            # One whose lease has ended is not handed out.
            and side.clock.at_us < first[1].until_us
        }
        clock: Any = self.sides[0].clock
        taken = self.holdings.take_now(nullcontext(), clock, lambda: None)
        if taken is None:
            assert not [turn_us for turn_us, now_us in held.values() if turn_us <= now_us]
            return None
        run, row = taken
        side = self.side_of(run)
        side.check_taken(run, row)
        turn_us = run.turn_list()[row]
        patient = side.clock.at_us - max(turn_us, run.came_us) >= PATIENCE_US
        earlier = [
            other_us
            for number, (other_us, now_us) in held.items()
            if other_us <= now_us and other_us < turn_us and self.sides[number] is not side
        ]
        assert patient or not earlier, (turn_us, earlier)
        return taken

    def take_all(self) -> list[tuple[Run, int]]:
        """Everything that is due and here."""
        found = []
        while (taken := self.take()) is not None:
            found.append(taken)
        return found

    @property
    def in_hand(self) -> list[int]:
        """How many messages of each shard user code has."""
        return [len(side.in_hand) for side in self.sides]

    def finish(self, op: str, shard: int, place: int = 0) -> None:
        self.sides[shard].finish(op, place)

    def finish_all(self) -> None:
        for side in self.sides:
            while side.in_hand:
                side.finish("ack")

    # Checks

    def check(self) -> None:
        """There are never more messages here than were asked for."""
        if self.prefetch is not None:
            here = sum(side.machine.custody.unfinished for side in self.sides)
            assert here <= self.prefetch
            # What stands at idle shards is bounded, too.
            for side in self.sides:
                assert side.machine.credit.count <= self.prefetch

    def done(self, shard: int) -> int:
        return sum(message.state == "done" for message in self.sides[shard].broker.messages)

    @property
    def all_done(self) -> bool:
        return all(
            message.state == "done" for side in self.sides for message in side.broker.messages
        )

    def settle(self) -> None:
        """Lets everything go its way: each message is finished, whatever happened before."""
        for _ in range(3_000):
            self.pump()
            self.take_all()
            self.finish_all()
            answered = all(side.machine.is_answered(None) for side in self.sides)
            if self.all_done and answered:
                break
            self.advance(20_000)
        else:
            raise AssertionError("it never settled")
        self.pump()
        assert not any(side.machine.custody.unfinished for side in self.sides)
