"""The committer: one sync for many steps, answers in order, and none that is not durable."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fasti.broker import committer
from fasti.broker.committer import Commit, Committer, Work
from fasti.config import Durability, ShardSettings
from fasti.core import events as ev
from fasti.core.replies import Frame, Step
from fasti.errors import FastiError
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.journal_end import read_end
from fasti.storage.store import ShardStore
from tests.integration.shard_rig import SharedFiles


class Bench:
    """A committer and what it told."""

    def __init__(self, **settings: Any) -> None:
        self.files = SharedFiles()
        self.store = ShardStore(
            FileStorage(self.files), ShardSettings(segment_bytes=1 << 16, **settings)
        )
        self.answered: list[int] = []
        self.synced_when_answered: list[int] = []
        self.failed: list[tuple[FastiError, list[int]]] = []
        self.changed = threading.Condition()
        self.may_sync = threading.Event()
        self.may_sync.set()
        # Syncs that were begun, and those that may go on.
        self.begun = self.syncs = 0
        journal_sync = self.store.journal.sync

        def sync() -> int:
            with self.changed:
                self.begun += 1
                self.changed.notify_all()
            assert self.may_sync.wait(60)
            self.syncs += 1
            return journal_sync()

        self.store.journal.sync = sync  # type: ignore[method-assign]
        # What was shown, by its frame, and the sync that it waits for.
        self.shown: dict[int, Commit] = {}
        self.caught_up = 0
        self.committer = Committer(
            self.store,
            self._show,
            self._answer,
            self._fail,
            lambda: None,
            caught_up=self._catch_up,
        )
        self._next = 1

    def begin(self) -> None:
        """The first frame: a segment that begins is synced before it is written to."""
        self.committer.take_over(self.work())
        self.wait_for(lambda: self.answered)

    def work(self) -> Work:
        frame = Frame(self._next, [ev.TopicDeleted(5, self._next)], None)
        self._next += 1
        return Work(Step(frames=[frame]), frames=self.store.encode([frame]))

    def _show(self, work: Work, commit: Commit) -> None:
        with self.changed:
            self.shown[work.step.frames[0].sequence] = commit
            self.changed.notify_all()

    def _answer(self, work: Work) -> None:
        with self.changed:
            self.answered.append(work.step.frames[0].sequence)
            self.synced_when_answered.append(self.store.journal.synced_sequence)
            self.changed.notify_all()

    def _fail(self, error: FastiError, undone: list[Work]) -> None:
        with self.changed:
            self.failed.append((error, [w.step.frames[0].sequence for w in undone]))
            self.changed.notify_all()

    def _catch_up(self) -> None:
        with self.changed:
            self.caught_up += 1
            self.changed.notify_all()

    def wait_for(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.may_sync.set()
    made.committer.stop()
    made.store.close()


def test_what_is_shown_before_the_sync_is_durable_only_after_it(bench: Bench) -> None:
    bench.begin()
    bench.may_sync.clear()
    bench.committer.take_over(bench.work())
    bench.wait_for(lambda: 2 in bench.shown)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(bench.shown[2].wait()))
    waiting.start()
    assert bench.answered == [1]
    assert not found
    bench.may_sync.set()
    waiting.join(60)
    assert found == [True]
    assert bench.shown[2].wait()


def test_what_is_shown_and_never_synced_is_told_so(bench: Bench) -> None:
    bench.begin()
    bench.may_sync.clear()
    begun = bench.begun
    bench.committer.take_over(bench.work())
    # The second one is inside its sync: what fails is the sync of the third.
    bench.wait_for(lambda: 2 in bench.shown and bench.begun > begun)
    bench.store.journal.sync = _fails  # type: ignore[method-assign]
    bench.committer.take_over(bench.work())
    bench.may_sync.set()
    bench.wait_for(lambda: bench.failed)
    assert bench.shown[2].wait()
    assert not bench.shown[3].wait()
    assert bench.answered == [1, 2]


def _fails() -> int:
    raise FastiError("the disk is gone")


def test_answers_leave_in_order_and_when_they_are_durable(bench: Bench) -> None:
    for _ in range(30):
        bench.committer.take_over(bench.work())
    bench.wait_for(lambda: len(bench.answered) == 30)
    assert bench.answered == list(range(1, 31))
    pairs = zip(bench.answered, bench.synced_when_answered, strict=True)
    assert all(synced >= sequence for sequence, synced in pairs)
    assert bench.committer.waiting_bytes == 0
    assert bench.committer.written_bytes > 0


def test_steps_that_gather_during_a_sync_share_the_next(bench: Bench) -> None:
    bench.may_sync.clear()
    for _ in range(8):
        bench.committer.take_over(bench.work())
    assert bench.answered == []
    bench.may_sync.set()
    bench.wait_for(lambda: len(bench.answered) == 8)
    assert bench.syncs <= 3


def test_it_says_when_the_disk_is_behind_and_when_it_has_caught_up(bench: Bench) -> None:
    bench.begin()
    bench.may_sync.clear()
    taken = 0
    while not bench.committer.is_behind:
        bench.committer.take_over(bench.work())
        taken += 1
    assert taken >= committer._STEPS_WAITING_MAX == bench.committer.waiting_steps
    assert bench.caught_up == 0
    bench.may_sync.set()
    bench.wait_for(lambda: len(bench.answered) == 1 + taken)
    assert bench.caught_up == 1
    assert not bench.committer.is_behind


def test_bytes_that_wait_count_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.begin()
    bench.may_sync.clear()
    monkeypatch.setattr(committer, "_WAITING_BYTES_MAX", 100)
    while not bench.committer.is_behind:
        bench.committer.take_over(bench.work())
    assert bench.committer.waiting_steps < committer._STEPS_WAITING_MAX
    bench.may_sync.set()
    bench.wait_for(lambda: bench.caught_up)


def test_after_a_failure_nothing_is_answered_and_nobody_blocks(bench: Bench) -> None:
    bench.committer.take_over(bench.work())
    bench.wait_for(lambda: bench.answered == [1])
    bench.files.faulty = ".segment"
    bench.files.fail("sync", 1)
    for _ in range(12):
        bench.committer.take_over(bench.work())
    bench.wait_for(lambda: sum(len(undone) for _, undone in bench.failed) == 12)
    assert bench.answered == [1]
    with pytest.raises(FastiError):
        bench.committer.wait_durable(5)
    bench.committer.wait_durable(1)


def test_a_bug_in_the_journal_is_a_failure_too(bench: Bench) -> None:
    bench.store.journal.append = lambda *_, **__: 1 / 0  # type: ignore[method-assign,assignment]
    bench.committer.take_over(bench.work())
    bench.wait_for(lambda: len(bench.failed) == 1)
    assert "ZeroDivisionError" in str(bench.failed[0][0])


def test_wait_durable_returns_when_it_is(bench: Bench) -> None:
    bench.may_sync.clear()
    done = threading.Event()

    def wait() -> None:
        bench.committer.wait_durable(1)
        done.set()

    bench.committer.take_over(bench.work())
    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not done.is_set()
    bench.may_sync.set()
    assert done.wait(60)
    waiter.join(60)


def test_stopping_writes_what_is_waiting_and_syncs_it() -> None:
    bench = Bench(durability=Durability.INTERVAL, sync_interval_ms=600_000)
    bench.committer.take_over(bench.work())  # It begins a segment, and is synced with it.
    bench.wait_for(lambda: len(bench.answered) == 1)
    for _ in range(5):
        bench.committer.take_over(bench.work())
    bench.wait_for(lambda: len(bench.answered) == 6)
    assert bench.store.journal.synced_sequence == 1
    bench.committer.stop()
    assert bench.store.journal.synced_sequence == 6
    bench.store.close()


def test_the_end_is_recorded_under_load_after_answers_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fasti.broker.committer._END_EVERY_S", 0.0)
    bench = Bench()
    recorded: list[tuple[int, int]] = []
    sync_end = bench.store.journal.sync_end

    def spy() -> bool:
        done = sync_end()
        end = read_end(bench.files.crash(random.Random(0)), "journal")
        assert end is not None
        with bench.changed:
            recorded.append((end.last_sequence, len(bench.answered)))
            bench.changed.notify_all()
        return done

    bench.store.journal.sync_end = spy  # type: ignore[method-assign]
    bench.begin()
    for count in range(2, 6):
        bench.committer.take_over(bench.work())
        bench.wait_for(lambda count=count: recorded and recorded[-1] == (count, count))
    bench.committer.stop()
    bench.store.close()
