"""Schedules beside the naive model: exactly one message per occurrence, whatever happens.

Time, changes, pauses, runs that are asked for, consumers that finish or don't, checkpoints, restarts
and downtime come in any order, with every policy. At the end everything is drained, so that a message
that is missing or there twice is found.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fasti.core.cron.schedule import Schedule
from fasti.model import SECOND_US
from tests.properties.cron_rig import START, CronRig

NAMES = ("a", "b", "c")
TIMINGS = st.sampled_from(
    [
        {"every_us": SECOND_US},
        {"every_us": 7 * SECOND_US},
        {"every_us": 90 * SECOND_US},
        {"every_us": 5 * SECOND_US, "start_us": (START + 33) * SECOND_US},
        {"every_us": 4 * SECOND_US, "end_us": (START + 200) * SECOND_US},
        {"cron": "*/15 * * * * *"},
        {"cron": "*/15 * * * * *", "timezone": "Europe/Paris"},
        {"cron": "3,4,5,40 * * * * *"},
    ]
)
SECONDS = st.sampled_from([1, 2, 5, 11, 30, 120])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    return Schedule(
        draw(st.sampled_from(["t", "two"])),
        payload=b"{{schedule}} {{occurrence}}",
        template=True,
        misfire=draw(st.sampled_from(["once", "skip", "all"])),
        misfire_max=draw(st.sampled_from([2, 100])),
        misfire_grace_us=draw(st.sampled_from([0, 3, 10])) * SECOND_US,
        overlap=draw(st.sampled_from(["allow", "allow", "skip", "cancel"])),
        **draw(TIMINGS),
    )


class CronMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = CronRig()

    def _pick(self, place: int) -> str:
        return sorted(self.rig.model.known)[place % len(self.rig.model.known)]

    def _some(self) -> bool:
        return bool(self.rig.model.known)

    @rule(name=st.sampled_from(NAMES), schedule=schedules())
    def put(self, name: str, schedule: Schedule) -> None:
        self.rig.put(name, schedule)
        self.rig.check()

    @precondition(_some)
    @rule(place=st.integers(0, 9), overlap=st.sampled_from(["allow", "skip", "cancel"]))
    def change_policy(self, place: int, overlap: str) -> None:
        name = self._pick(place)
        before = self.rig.model.known[name].schedule
        self.rig.put(name, Schedule.from_dict({**before.to_dict(), "overlap": overlap}))
        self.rig.check()

    @precondition(_some)
    @rule(place=st.integers(0, 9))
    def delete(self, place: int) -> None:
        self.rig.delete(self._pick(place))
        self.rig.check()

    @precondition(_some)
    @rule(place=st.integers(0, 9), paused=st.booleans())
    def pause(self, place: int, paused: bool) -> None:
        self.rig.pause(self._pick(place), paused)
        self.rig.check()

    @precondition(_some)
    @rule(place=st.integers(0, 9))
    def run_now(self, place: int) -> None:
        self.rig.run_now(self._pick(place))
        self.rig.check()

    @rule(seconds=SECONDS)
    def advance(self, seconds: int) -> None:
        self.rig.advance(seconds)
        self.rig.check()

    @rule(count=st.sampled_from([1, 5, 100]), finish=st.booleans())
    def lease(self, count: int, finish: bool) -> None:
        self.rig.lease(count, finish)
        self.rig.check()

    @rule()
    def finish(self) -> None:
        self.rig.finish()

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()
        self.rig.check()

    @rule(seconds=st.sampled_from([0, 0, 1, 4, 12, 60, 400]), checkpoint=st.booleans())
    def restart(self, seconds: int, checkpoint: bool) -> None:
        self.rig.restart(seconds, checkpoint)
        self.rig.check()

    def teardown(self) -> None:
        if not self.rig.broken:
            self.rig.drain()
        self.rig.shard.local.close()


def test_beside_the_model() -> None:
    run_state_machine_as_test(
        CronMachine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )
