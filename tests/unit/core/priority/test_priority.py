"""What priority topics promise, case by case; the property tests mix them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.priority.kind import PriorityPartition
from fasti.core.replies import Deliver, LoadSlice, Step
from fasti.core.rows import arena
from fasti.model import DAY_US, MINUTE_US, SECOND_US, Outcome, TopicSettings

NOW_US = 1_700_000_000_000_000
YEAR_US = 365 * DAY_US
# Leases don't run out here.
TICK = 1


class Bench:
    """An engine with one priority topic, and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine(memory_bytes=64 << 20, leases_max=10_000)
        self.now_us = NOW_US
        self.journal: list[tuple[int, list[Any]]] = []
        self._sessions = 0
        self.do(co.CreateTopic("t", TopicSettings(kind="priority", lookahead_us=0, **settings)))

    def do(self, *inputs: Any) -> list[Any]:
        """Carries out commands, and whatever there is to do then; their answers."""
        self.effects: list[Any] = []
        step = self._step(list(inputs))
        replies = step.replies
        while step.more:
            step = self._step([])
        self.wake_at_us = step.wake_at_us
        return replies

    def _step(self, inputs: list[Any]) -> Step:
        step = self.engine.step(inputs, self.now_us, TICK)
        self.journal += [(frame.sequence, frame.events) for frame in step.frames]
        self.effects += step.effects
        return step

    def put(self, priorities: list[int], due_us: list[int] | int | None = None) -> list[int]:
        rows = Rows.of([b"%d" % priority for priority in priorities])
        due = np.array(due_us) if isinstance(due_us, list) else due_us
        when, ranks = co.When(due_us=due), uint16s(priorities)
        (reply,) = self.do(co.Produce("t", rows, when, priorities=ranks))
        assert reply.error is None
        return reply.ids.tolist()

    def take(self, count: int = 100) -> list[int]:
        """Ids in the order in which they are handed out now."""
        self._sessions += 1
        self.do(co.Lease("t", self._sessions, f"w{self._sessions}", count, wait=False))
        return [i for e in self.effects if isinstance(e, Deliver) for i in e.ids.tolist()]

    @property
    def partition(self) -> PriorityPartition:
        partition = self.engine.state.by_name["t"].partitions[0]
        assert isinstance(partition, PriorityPartition)
        return partition


def uint16s(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.uint16)


def target(*ids: int) -> co.Target:
    return co.Target(ids=np.array(ids, dtype=np.int64))


def test_by_priority_then_due_then_sequence() -> None:
    bench = Bench()
    due = [NOW_US, NOW_US - 5, NOW_US, NOW_US - 9, NOW_US]
    a, b, c, d, e = bench.put([1, 1, 0, 2, 1], due)
    assert bench.take(2) == [c, b]
    assert bench.take() == [a, e, d]


def test_a_batch_for_now_is_ready_at_once_and_the_most_urgent_comes_last() -> None:
    bench = Bench()
    first = bench.put([7] * 3)
    urgent = bench.put([0])
    assert bench.take() == urgent + first


def test_nobody_is_early_however_urgent() -> None:
    bench = Bench()
    (later,) = bench.put([0], NOW_US + SECOND_US)
    (now,) = bench.put([65_535])
    assert bench.take() == [now]
    bench.now_us += SECOND_US
    assert bench.take() == [later]


def test_what_is_only_near_follows_by_due_time() -> None:
    bench = Bench()
    settings = TopicSettings(kind="priority", lookahead_us=MINUTE_US)
    bench.do(co.ChangeTopic("t", settings))
    due = [NOW_US + 30 * SECOND_US, NOW_US + 10 * SECOND_US, NOW_US - 1]
    later, sooner, ready = bench.put([0, 9, 9], due)
    assert bench.take() == [ready, sooner, later]


@pytest.mark.parametrize("age_step_us", [0, MINUTE_US])
def test_reprioritised_while_it_waits(age_step_us: int) -> None:
    bench = Bench(age_step_us=age_step_us)
    a, b, c = bench.put([5, 6, 7])
    assert bench.take(1) == [a]
    (reply,) = bench.do(co.Reprioritise("t", target(c, a, 999), uint16s([0, 0, 0])))
    assert reply.status.tolist() == [Outcome.OK, Outcome.LEASED, Outcome.NOT_FOUND]
    assert reply.versions.tolist()[:1] == [2]
    assert bench.take() == [c, b]


def test_an_update_changes_payload_and_priority_in_one_version() -> None:
    bench = Bench()
    a, b = bench.put([1, 2])
    rows = Rows.of([b"new"])
    bench.do(co.Update("t", target(b), rows, priorities=uint16s([0])))
    (reply,) = bench.do(co.Get("t", target(b)))
    found = reply.columns
    assert (found["version"].tolist(), found["priority"].tolist()) == ([2], [0])
    assert bench.take() == [b, a]


def test_an_aborted_transaction_leaves_the_order_as_it_was() -> None:
    bench = Bench()
    a, b = bench.put([1, 2])
    assert bench.take(1) == [a]
    (c,) = bench.put([3])
    commands = [
        co.Reprioritise("t", target(c), uint16s([0])),
        co.Cancel("t", target(12345)),
    ]
    (reply,) = bench.do(co.Transaction(commands))
    assert not reply.committed
    assert bench.take() == [b, c]


def test_with_a_guard_age_counts() -> None:
    bench = Bench(age_step_us=MINUTE_US)
    old, young = bench.put([10, 0], [NOW_US - 11 * MINUTE_US, NOW_US])
    (patient,) = bench.put([10], NOW_US - 9 * MINUTE_US)
    assert bench.take() == [old, young, patient]


def test_a_stale_rank_that_still_fits_makes_nobody_early() -> None:
    """Moved by one step and one priority up: the sum is the same, but it is not due."""
    bench = Bench(age_step_us=MINUTE_US)
    ids = bench.put([1] * 3)
    assert bench.take(1) == ids[:1]
    assert bench.partition.times.ranked.entries == 2
    bench.do(
        co.Move("t", target(ids[1]), co.When(due_us=NOW_US + MINUTE_US)),
        co.Reprioritise("t", target(ids[1]), uint16s([0])),
    )
    assert bench.take() == ids[2:]
    bench.now_us += MINUTE_US
    assert bench.take() == ids[1:2]


def test_years_later_ranks_count_from_a_later_moment() -> None:
    bench = Bench()
    first, second = bench.put([3, 1])
    assert bench.take(1) == [second]
    base_us = bench.partition.times.base_us
    assert NOW_US - 4 * YEAR_US < base_us < NOW_US - 2 * YEAR_US
    bench.now_us += 3 * YEAR_US
    (late,) = bench.put([3])
    assert bench.take() == [first, late]
    assert bench.partition.times.base_us > base_us


def test_ancient_times_tie_and_then_the_sequence_decides() -> None:
    bench = Bench()
    ids = bench.put([1, 1, 0, 1], [50, 3, 9, NOW_US])
    assert bench.take() == [ids[2], ids[0], ids[1], ids[3]]


def test_nothing_goes_until_all_that_is_due_is_in_memory() -> None:
    bench = Bench()
    (mild,) = bench.put([5], NOW_US + SECOND_US)
    partition = bench.partition
    partition.times.loaded_until_us = NOW_US + 2 * SECOND_US
    bench.engine.slices.version = 1
    bench.engine.slices.start()
    bench.now_us += 3 * SECOND_US
    assert bench.take() == []
    assert bench.wake_at_us is None or bench.wake_at_us > bench.now_us, "it doesn't spin"
    (wish,) = [e for e in bench.effects if isinstance(e, LoadSlice)]
    bench.do(co.SliceLoaded(wish.topic, 0, 1, bench.now_us + MINUTE_US, *empty()))
    assert bench.take() == [mild]


def empty() -> tuple[Any, Any]:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def test_replayed_and_packed_rows_keep_their_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_THIN_PAGES_KEPT", 0)
    bench = Bench()
    count = 20_000
    ids = bench.put([n % 100 for n in range(count)], NOW_US + MINUTE_US)
    kept = ids[::1_000][::-1]
    gone = [i for i in ids if i not in set(kept)]
    bench.do(co.Reprioritise("t", target(*kept), uint16s(list(range(len(kept))))))
    bench.do(co.Cancel("t", target(*gone)))
    for _ in range(20):
        bench.do()
    assert bench.partition.ledger.view().packed_frames, "few rows are left of each page"
    again = Engine(memory_bytes=64 << 20, leases_max=10_000)
    for sequence, events in bench.journal:
        again.replay(sequence, events)
    again.start(TICK)
    bench.now_us += MINUTE_US
    assert bench.take() == kept
    bench.engine = again
    assert bench.take() == kept


def test_many_stale_entries_are_swept() -> None:
    bench = Bench()
    ids = bench.put([9] * 1_000)
    assert bench.take(1) == ids[:1]
    for turn in range(120):
        bench.do(co.Reprioritise("t", target(*ids[1:]), uint16s([turn % 9] * 999)))
    assert bench.partition.times.ranked.entries < 70_000
    assert bench.take(2_000) == ids[1:]


@pytest.mark.parametrize("command", ["produce", "update", "reprioritise"])
def test_a_timeline_has_no_priorities(command: str) -> None:
    bench = Bench()
    bench.do(co.CreateTopic("plain", TopicSettings()))
    bench.do(co.Produce("plain", Rows.of([b"x"])))
    priorities = uint16s([1])
    asked = {
        "produce": co.Produce("plain", Rows.of([b"x"]), priorities=priorities),
        "update": co.Update("plain", target(1), Rows.of([b"x"]), priorities=priorities),
        "reprioritise": co.Reprioritise("plain", target(1), priorities),
    }[command]
    step = bench.engine.step([asked], bench.now_us, TICK)
    assert step.replies[0].error is not None
    assert step.replies[0].error.code == "invalid_argument"
    assert not step.frames
