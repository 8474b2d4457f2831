"""In what order messages that have arrived are handed over, and of what their takers are told."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from fasti.client.machines.holding import Custody, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.run import Run
from fasti.errors import Fenced
from fasti.model import TopicSettings
from tests.unit.client.fakes import FakeClock


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock(now_us=1_000)
        self.ran_out = 0
        self.lapsed: list[int] = []
        self.woken = 0
        self.held = Holding(self._run_out, self._lapse)
        self._names = iter("abcdefghij")
        self._after_us = 0

    def _run_out(self) -> None:
        self.ran_out += 1

    def _lapse(self, run: Run, rows: Any) -> None:
        self.lapsed += run.ids[rows].tolist()

    def _wake(self) -> None:
        self.woken += 1

    @property
    def now(self) -> Now:
        return Now(0.0, self.clock.at_us, 0, self.clock.seconds_until)

    def changed(self) -> bool:
        """Whether takers are to be woken, once."""
        changed, self.held.changed = self.held.changed, False
        return changed

    def arrive(self, *due_us: int, ranked: bool = False, ends: list[int] | None = None) -> Run:
        """Messages, each with the next letter as its payload."""
        session: Any = SimpleNamespace(topic="t")
        payloads = [next(self._names).encode() for _ in due_us]
        columns: dict[str, Any] = {"id": range(len(due_us)), "due_us": due_us, "payload": payloads}
        if ends is not None:
            columns["expires_us"] = ends
        run = Run(session, 1, pa.record_batch(columns), ranked, self._after_us if ranked else 0)
        run.came_us = self.clock.now_us()
        self._after_us = max(self._after_us, run.last_due_us())
        self.held.add(run)
        return run

    def take(self, count: int = 100) -> str:
        """What is handed over now, run by run as a consumer does."""
        taken = ""
        while len(taken) < count:
            run = self.held.due_run(self.now)
            if run is None:
                return taken
            begin, end = self.held.take_due(run, count - len(taken), self.now)
            taken += b"".join(run.payload(row) for row in range(begin, end)).decode()
            self.held.put_back(run)
        return taken

    def take_each(self, run: Run) -> list[int]:
        return list(self.held.take_each(run, nullcontext(), self.clock, self._wake))

    def take_now(self) -> bytes | None:
        taken = self.held.take_now(nullcontext(), self.clock, self._wake)
        return None if taken is None else taken[0].payload(taken[1])


def test_by_due_time() -> None:
    rig = Rig()
    rig.arrive(900, 700)
    rig.arrive(800, 2_000)
    assert rig.take() == "bca"
    rig.clock.at_us = 2_000
    assert rig.take() == "d"


def test_ranked_ones_as_they_came_whatever_their_due_times() -> None:
    rig = Rig()
    rig.arrive(900, 700, 800, ranked=True)
    assert rig.take(1) == "a"
    rig.arrive(100, 50, ranked=True)
    assert rig.take(1) == "b"
    rig.arrive(950, ranked=True)
    assert rig.take() == "cdef"


def test_ranked_ones_are_not_early_and_hold_nothing_up() -> None:
    rig = Rig()
    rig.arrive(900, 700, 3_000, ranked=True)
    rig.arrive(400, ranked=True)
    assert rig.take() == "abd"
    rig.clock.at_us = 2_999
    assert rig.take() == ""
    rig.clock.at_us = 3_000
    assert rig.take() == "c"


def test_a_ranked_message_says_when_it_was_due() -> None:
    rig = Rig()
    rig.arrive(900, 700, ranked=True)
    run = rig.held.due_run(rig.now)
    assert run is not None
    assert run.due_list() == [900, 700]
    assert run.turn_list() == [900, 900]


def test_what_went_back_unopened_holds_nothing_up() -> None:
    """Its run stood in front for the due time of what had gone, and hid those behind it."""
    rig = Rig()
    run = rig.arrive(500, 3_000)
    rig.arrive(900)
    run.next = 1  # As `Custody.overdue` does.
    assert rig.take_now() == b"c"
    assert rig.take_now() is None
    rig.clock.at_us = 3_000
    assert rig.take_now() == b"b"


def test_a_run_that_take_now_finds_put_back_wakes_those_who_watch() -> None:
    """Another thread put it back while the lock was held, so that it could not wake them itself."""
    rig = Rig()
    rig.arrive(500, 600)
    run = rig.held.due_run(rig.now)
    assert run is not None
    assert rig.held.watch(rig.now) > 0
    rig.held.put_back(run)
    assert rig.take_now() == b"a"
    assert rig.changed()
    assert rig.woken == 1
    assert rig.take_now() == b"b"
    assert rig.woken == 1


def test_what_arrives_wakes_only_who_watches_and_only_if_it_is_earlier() -> None:
    rig = Rig()
    rig.arrive(5_000)
    assert not rig.changed()
    assert rig.held.watch(rig.now) > 0
    rig.arrive(6_000)
    assert not rig.changed()
    rig.arrive(4_000)
    rig.arrive(3_000)
    assert rig.changed()
    assert not rig.changed()
    rig.held.watch(rig.now, everything=True)
    rig.arrive(9_000)
    assert rig.changed()


def test_nothing_is_taken_before_it_is_due() -> None:
    rig = Rig()
    run = rig.arrive(2_000, 3_000)
    assert rig.held.due_run(rig.now) is None
    assert rig.held.watch(rig.now) > 0
    rig.clock.at_us = 2_000
    assert rig.held.watch(rig.now) <= 0
    assert rig.held.due_run(rig.now) is run
    assert rig.take_each(run) == [0]


def test_so_many_are_due_at_a_time() -> None:
    rig = Rig()
    rig.arrive(50, 2_000)
    rig.arrive(90, 3_000)
    assert rig.held.seconds_until_due(2, rig.now) <= 0
    assert rig.held.seconds_until_due(3, rig.now) == float("inf")
    rig.clock.at_us = 2_000
    assert rig.held.seconds_until_due(3, rig.now) <= 0
    assert rig.held.seconds_until_due(5, rig.now) == float("inf")


def test_when_a_lease_ended_unseen_nothing_is_taken_until_all_has_come_anew() -> None:
    rig = Rig()
    run = rig.arrive(50, 60)
    run.until_us = 1_000
    assert rig.held.due_run(rig.now) is run
    assert rig.take_each(run) == []
    rig.held.put_back(run)
    assert (rig.ran_out, rig.woken) == (1, 1)
    assert rig.held.due_run(rig.now) is None
    assert rig.held.watch(rig.now) > 0
    assert rig.held.seconds_until_due(1, rig.now) == float("inf")
    rig.held.drop_all()
    assert rig.changed()
    again = rig.arrive(50)
    assert rig.held.due_run(rig.now) is again


def test_what_was_put_back_is_watched() -> None:
    """A task that waited for what another put back at that moment slept on."""
    rig = Rig()
    run = rig.arrive(50, 60)
    assert rig.held.due_run(rig.now) is run
    rig.held.put_back(run)
    assert rig.held.watch(rig.now) <= 0


def test_the_end_and_trouble_wake() -> None:
    rig = Rig()
    rig.held.watch(rig.now)
    rig.held.fail(Fenced("another took the name"))
    assert (rig.changed(), rig.held.over, rig.held.ended) == (True, True, False)
    with pytest.raises(Fenced):
        rig.held.due_run(rig.now)
    other = Rig()
    other.held.watch(other.now)
    other.held.end()
    assert (other.changed(), other.held.over, other.held.ended) == (True, True, True)
    assert other.held.due_run(other.now) is None
    assert other.held.watch(other.now) <= 0


@pytest.mark.parametrize("way", ["each", "due", "now"])
def test_what_expired_is_passed_over_and_goes_back(way: str) -> None:
    rig = Rig()
    run = rig.arrive(100, 200, 300, ends=[0, 900, 0])
    if way == "due":
        assert rig.take() == "ac"
    elif way == "now":
        assert [rig.take_now(), rig.take_now(), rig.take_now()] == [b"a", b"c", None]
    else:
        assert rig.held.due_run(rig.now) is run
        assert rig.take_each(run) == [0, 2]
    assert rig.lapsed == [1]
    assert way == "due" or rig.woken
    assert np.flatnonzero(run.started).tolist() == [0, 2]


SETTINGS = TopicSettings(lease_us=300, hold_us=500)


def run_of(due_us: list[int], leased_us: int = 1_000) -> Run:
    columns: dict[str, Any] = {"id": np.arange(1, len(due_us) + 1), "due_us": np.array(due_us)}
    session = cast("Any", SimpleNamespace(topic="emails"))
    run = Run(session, 7, pa.RecordBatch.from_pydict(columns))
    run.leased_us = run.came_us = leased_us
    run.until_us = leased_us + SETTINGS.lease_us
    return run


@pytest.mark.parametrize(
    ("due_us", "taken", "beats", "until_us"),
    [
        ([900, 900], 0, [1_200], 1_500),  # Held at most since 1000, when it was leased.
        ([900, 900], 0, [1_150, 1_300, 1_450], 1_500),
        ([1_100, 1_400], 0, [1_250, 1_500], 1_600),  # What is sent ahead is held from its due time.
        ([1_100, 1_400], 1, [1_250, 1_500], 1_800),  # Those in user code's hands don't matter.
        ([900, 900], 0, [1_050], 1_350),
        ([900, 900], 0, [1_250, 1_600], 1_500),  # It had ended before the second.
    ],
)
def test_heartbeats_renew_until_the_longest_hold(
    due_us: list[int], taken: int, beats: list[int], until_us: int
) -> None:
    custody = Custody()
    run = custody.add(run_of(due_us))
    run.next = taken
    for sent_us in beats:
        custody.renew(sent_us, sent_us, SETTINGS)
    assert run.until_us == until_us


def test_rows_leave_once() -> None:
    custody = Custody()
    first, second = custody.add(run_of([1, 2, 3])), custody.add(run_of([4]))
    custody.leave(first, np.array([0, 0]))
    custody.leave(first, [0])
    assert (first.left, custody.unfinished) == (2, 3)
    first.next = first.rows
    custody.leave(second, [0])
    custody.leave(second, [0])
    assert (list(custody), custody.unfinished) == ([first], 2)
    # What user code has not got is gone with the connection.
    first.next = 2
    custody.take_back([])
    assert (first.left, custody.unfinished) == (1, 1)
    assert set(custody._in_hand) == {1, 2}
    custody.leave(first, slice(None))
    assert (list(custody), custody.unfinished) == ([], 0)


@pytest.mark.parametrize("came_again", [False, True])
def test_what_was_to_come_again_is_given_back_at_the_end(came_again: bool) -> None:
    """A consumer that is closed before its connection is back: nobody else would have it for long."""
    custody = Custody()
    run = custody.add(run_of([1, 2, 3, 4]))
    run.next = 1
    custody.take_back([])
    if came_again:
        custody.end_resuming()
    released = [
        (returned.op, segment_run, rows.tolist())
        for returned in custody.release_unstarted()
        for segment_run, rows in returned.segments
    ]
    assert released == ([] if came_again else [("release", run, [1, 2, 3])])
