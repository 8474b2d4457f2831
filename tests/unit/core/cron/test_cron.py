"""The engine's part of schedules, command by command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron import commands as cc
from fasti.core.cron.schedule import Schedule
from fasti.core.keys import Rows
from fasti.core.replies import SchedulesChanged
from fasti.errors import InvalidArgument, NotFound, Overloaded
from fasti.model import SECOND_US, Limits, Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard

NOW = 1_800_000_000 * SECOND_US
MINUTELY = Schedule("t", every_us=60 * SECOND_US)


class Rig:
    def __init__(self, limits: Limits | None = None) -> None:
        self.files = MemoryFiles()
        self.settings = ShardSettings(
            segment_bytes=8192, memory_bytes=16 << 20, leases_max=64, limits=limits or Limits()
        )
        self.shard = LocalShard(FileStorage(self.files), self.settings)
        self.good(co.CreateTopic("t", TopicSettings(partitions=2)))
        self.good(co.CreateTopic("c", TopicSettings(kind="cron")))

    def call(self, command: Any, now_us: int = NOW) -> Any:
        return self.shard.call(command, now_us, 0)

    def good(self, command: Any, now_us: int = NOW) -> Any:
        reply = self.call(command, now_us)
        assert reply.error is None, reply.error
        return reply

    def refused(self, command: Any, kind: type[Exception]) -> str:
        reply = self.call(command)
        assert isinstance(reply.error, kind), reply
        return str(reply.error)

    def put(self, *names: str, schedule: Schedule = MINUTELY) -> None:
        self.good(cc.PutSchedules("c", [(name, schedule.to_json()) for name in names]))

    def fire(
        self,
        numbers: list[int],
        at_us: int,
        versions: list[int] | None = None,
        due_us: int | None = None,
        now_us: int = NOW,
        target: str = "t",
    ) -> Any:
        count = len(numbers)
        command = cc.Fire(
            "c",
            target,
            np.array(numbers),
            np.array(versions or [1] * count),
            np.full(count, at_us),
            np.full(count, at_us if due_us is None else due_us),
            Rows.of([b"%d" % number for number in numbers]),
        )
        return self.call(command, now_us)

    def page(self, name: str = "", now_us: int = NOW) -> cc.SchedulesPage:
        found: cc.SchedulesPage = self.good(cc.ReadSchedules("c", name), now_us).value
        return found

    def counts(self, now_us: int = NOW) -> dict[str, int]:
        states = self.good(co.Count("t"), now_us).states
        return {word: count for word, count in states.items() if count}


def outcomes(reply: Any) -> list[Outcome]:
    assert reply.error is None
    return [Outcome(code) for code in reply.status.tolist()]


def test_an_occurrence_that_was_had_is_refused() -> None:
    rig = Rig()
    rig.put("a", "b")
    assert outcomes(rig.fire([0, 1], NOW + 60)) == [Outcome.OK] * 2
    assert outcomes(rig.fire([0, 1], NOW + 60)) == [Outcome.DUPLICATE] * 2
    assert outcomes(rig.fire([0], NOW + 59)) == [Outcome.DUPLICATE]
    assert rig.counts() == {"scheduled": 2}


def test_each_row_of_a_batch_is_judged_by_itself() -> None:
    rig = Rig()
    rig.put("a", "b", "c", "d")
    rig.good(cc.PauseSchedule("c", "b", True))
    rig.good(cc.DeleteSchedule("c", "d"))
    reply = rig.fire([0, 1, 2, 3, 7, 0], NOW + 60, versions=[1, 1, 2, 1, 1, 1])
    assert outcomes(reply) == [
        Outcome.OK,
        Outcome.CONFLICT,
        Outcome.CONFLICT,
        Outcome.NOT_FOUND,
        Outcome.NOT_FOUND,
        Outcome.DUPLICATE,
    ]
    assert rig.counts() == {"scheduled": 1}
    found, rows = rig.good(co.List("t")), reply.ids.tolist()
    assert found.ids.tolist() == [rows[0]]


def test_a_number_that_serves_another_schedule_has_another_version() -> None:
    rig = Rig()
    rig.put("a")
    rig.good(cc.DeleteSchedule("c", "a"))
    rig.put("b")
    page = rig.page("b")
    assert page.numbers.tolist() == [0]
    assert outcomes(rig.fire([0], NOW + 60)) == [Outcome.CONFLICT]
    assert outcomes(rig.fire([0], NOW + 60, versions=page.versions.tolist())) == [Outcome.OK]


def test_an_occurrence_may_be_passed_over() -> None:
    rig = Rig()
    rig.put("a")
    assert outcomes(rig.fire([0], NOW + 60, due_us=-1)) == [Outcome.OK]
    assert rig.counts() == {}
    page = rig.page("a")
    assert (page.fired[0], page.skipped[0]) == (0, 1)
    assert outcomes(rig.fire([0], NOW + 60)) == [Outcome.DUPLICATE]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_all_of_it_survives_a_restart(checkpoint: bool) -> None:
    rig = Rig()
    rig.put("a", "b", "c")
    rig.good(cc.PauseSchedule("c", "b", True))
    rig.fire([0], NOW + SECOND_US)
    rig.good(cc.RunSchedule("c", "a", Rows.of([b"x"])))
    rig.good(cc.DeleteSchedule("c", "c"))
    before = [getattr(rig.page(), name) for name in cc.SchedulesPage.__slots__]
    if checkpoint:
        rig.shard.checkpoint(NOW, 0)
    rig.shard.close()
    rig.shard = LocalShard(FileStorage(rig.files), rig.settings)
    after = [getattr(rig.page(), name) for name in cc.SchedulesPage.__slots__]
    for name, was, now in zip(cc.SchedulesPage.__slots__, before, after, strict=True):
        if name != "changes":
            assert np.array_equal(was, now), name
    # What was emitted ahead is still known, and taken back.
    rig.good(cc.DeleteSchedule("c", "a"))
    assert rig.counts() == {"ready": 1, "cancelled": 1}
    rig.put("d")
    assert rig.page("d").numbers.tolist() in ([0], [2])


def test_who_changes_a_schedule_is_told_to_those_who_fire() -> None:
    rig = Rig()
    put = cc.PutSchedules("c", [("a", MINUTELY.to_json())])
    for command in (put, cc.PauseSchedule("c", "a", True), cc.DeleteSchedule("c", "a")):
        step = rig.shard.step([command], NOW, 0)
        assert any(isinstance(effect, SchedulesChanged) for effect in step.effects)
    step = rig.shard.step([co.DeleteTopic("c")], NOW, 0)
    assert any(isinstance(effect, SchedulesChanged) for effect in step.effects)


def test_reading_what_changed_since() -> None:
    rig = Rig()
    rig.put(*(f"s{n}" for n in range(5)))
    first = rig.good(cc.ReadSchedules("c", after_change=0, limit=3)).value
    assert (first.names, first.more) == (["s0", "s1", "s2"], True)
    rest = rig.good(cc.ReadSchedules("c", after_change=first.changes)).value
    assert (rest.names, rest.more) == (["s3", "s4"], False)
    rig.good(cc.DeleteSchedule("c", "s1"))
    rig.good(cc.PauseSchedule("c", "s3", True))
    changed = rig.good(cc.ReadSchedules("c", after_change=rest.changes)).value
    assert (changed.names, changed.definitions[0]) == (["s1", "s3"], None)


def test_what_is_refused_changes_nothing() -> None:
    rig = Rig(Limits(schedules_max=2))
    rig.put("a", "b")
    good, other = MINUTELY.to_json(), Schedule("nowhere", every_us=SECOND_US).to_json()
    assert "2 schedules" in rig.refused(cc.PutSchedules("c", [("c", good)]), Overloaded)
    assert "nowhere" in rig.refused(cc.PutSchedules("c", [("a", other)]), NotFound)
    loop = Schedule("c", every_us=SECOND_US).to_json()
    assert "cron" in rig.refused(cc.PutSchedules("c", [("a", loop)]), InvalidArgument)
    rig.refused(cc.PutSchedules("c", [("", good)]), InvalidArgument)
    rig.refused(cc.PutSchedules("t", [("a", good)]), InvalidArgument)
    rig.refused(cc.DeleteSchedule("c", "zzz"), NotFound)
    assert isinstance(rig.fire([0], NOW + 60, target="nowhere").error, NotFound)
    assert isinstance(rig.fire([0], NOW + 60, target="c").error, InvalidArgument)
    assert rig.page().versions.tolist() == [1, 1]
    assert outcomes(rig.fire([0], NOW + 60)) == [Outcome.OK]


def test_a_cron_topic_has_no_messages() -> None:
    rig = Rig()
    assert "cron" in rig.refused(co.Produce("c", Rows.of([b"x"])), InvalidArgument)
    assert "cron" in rig.refused(co.Lease("c", 1, "w", 1), InvalidArgument)
    assert not any(rig.good(co.Count("c")).states.values())


def test_what_was_emitted_into_a_topic_that_is_gone_is_emitted_again() -> None:
    rig = Rig()
    rig.good(co.CreateTopic("u", TopicSettings()))
    rig.put("a")
    rig.fire([0], NOW + SECOND_US)
    rig.good(co.DeleteTopic("t"))
    rig.good(cc.PutSchedules("c", [("a", Schedule("u", every_us=60 * SECOND_US).to_json())]))
    page = rig.page("a")
    assert (int(page.fired[0]), int(page.last_us[0])) == (0, NOW)
    reply = rig.fire([0], NOW + SECOND_US, versions=[2], target="u")
    assert outcomes(reply) == [Outcome.OK]


def test_what_somebody_cancelled_stays_cancelled() -> None:
    rig = Rig()
    rig.put("a")
    sent = rig.fire([0], NOW + SECOND_US)
    assert rig.good(co.Cancel("t", co.Target(ids=sent.ids))).all_ok
    rig.good(
        cc.PutSchedules("c", [("a", Schedule("t", every_us=60 * SECOND_US, priority=1).to_json())])
    )
    assert int(rig.page("a").last_us[0]) == NOW + SECOND_US
