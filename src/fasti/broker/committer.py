"""The committer: writes and syncs what steps decided, then lets their answers go.

One thread. While it syncs, the next steps gather; it takes all of them at once, up to a limit of
bytes, so that one sync serves many callers (group commit). Answers leave in the order of steps.
Sessions are shown what they will deliver before the sync, so that they can join payloads while it
runs; they wait for its `Commit` before anything leaves.

With durability `interval` answers leave after the write, and syncs follow at intervals.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fasti.broker.metrics.counts import Distribution
from fasti.broker.threads import Threads
from fasti.config import Durability
from fasti.core.replies import Step
from fasti.errors import FastiError, StorageFailed
from fasti.storage.frames import Frame
from fasti.storage.store import ShardStore

if TYPE_CHECKING:
    from fasti.broker.request import Request

_log = logging.getLogger("fasti.broker.committer")

_BYTES_PER_SYNC = 1 << 20
# What may wait for its turn: enough that the disk never waits, and no more, because a delivery
# that is decided next waits behind all of it.
_STEPS_WAITING_MAX = 64
_WAITING_BYTES_MAX = 2 << 20
_SYNCS_KEPT = 65_536
_SYNC_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
# After so long without anything to write the journal gets a mark that its last frame is synced.
_MARK_AFTER_S = 1.0
# Under load the journal's end is recorded this often, after answers have left.
_END_EVERY_S = 1.0


@dataclass(slots=True)
class Work:
    """A step and those who wait for it."""

    step: Step
    requests: list[Request] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    size_bytes: int = 0


class Commit:
    """One sync, and whether it came about. Any number of threads may wait for it."""

    __slots__ = ("_durable", "_settled")

    def __init__(self) -> None:
        self._durable = False
        # A bare lock that is let go once: a tenth of an event's price.
        self._settled = threading.Lock()
        self._settled.acquire()

    def settle(self, durable: bool) -> None:
        """Called once, by the committer."""
        self._durable = durable
        self._settled.release()

    def wait(self) -> bool:
        """Whether it is durable, as soon as that is known."""
        with self._settled:
            return self._durable


class Committer:
    """Takes steps from the sequencer, in order; calls `show` for each that is about to be durable,
    and `answer` when it is.
    """

    def __init__(
        self,
        store: ShardStore,
        show: Callable[[Work, Commit], None],
        answer: Callable[[Work], None],
        fail: Callable[[FastiError, list[Work]], None],
        wrote: Callable[[], None],
        synced: Callable[[], None] = lambda: None,
        threads: Threads | None = None,
    ) -> None:
        self._store = store
        self._show, self._answer, self._fail = show, answer, fail
        self._wrote, self._synced = wrote, synced
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failed = False
        self._marked = True
        self._warned_of_end = False
        self._at_once = store.settings.durability is Durability.ALWAYS
        self._interval_s = store.settings.sync_interval_ms / 1000
        self.waiting_bytes = 0
        # Batches with something in them that were written, and synced if that goes with it.
        self.committed = 0
        # Bytes in the journal since the last checkpoint began, also by processes before this one;
        # and how long the last syncs took.
        self.written_bytes = store.tail_bytes
        self.sync_seconds: deque[float] = deque(maxlen=_SYNCS_KEPT)
        self.sync_times = Distribution(_SYNC_BOUNDS_S)
        # What it is about to make durable, and the sync that sessions wait for.
        self._batch: list[Work] = []
        self._commit: Commit | None = None
        threads = threads or Threads()
        self._worker = threads.worker("fasti-committer", self._run, self._died)
        self._worker.start()

    def take(self, work: Work) -> None:
        """The sequencer hands a step over; waits when the disk is too far behind."""
        work.frames = self._store.encode(work.step.frames)
        work.size_bytes = self._store.size(work.frames)
        with self._changed:
            while self._is_behind() and not self._failed:
                self._changed.wait()
            failed = self._failed
            if not failed:
                self._waiting.append(work)
                self.waiting_bytes += work.size_bytes
                self._changed.notify_all()
        if failed:
            self._fail(FastiError("the journal failed before"), [work])

    @property
    def waiting_steps(self) -> int:
        """How many steps wait to be written."""
        return len(self._waiting)

    def _is_behind(self) -> bool:
        too_much = sum(work.size_bytes for work in self._waiting) >= _WAITING_BYTES_MAX
        return too_much or len(self._waiting) >= _STEPS_WAITING_MAX

    def wait_durable(self, sequence: int) -> None:
        """Returns when the journal is synced up to there; raises if it failed instead."""
        with self._changed:
            while self._store.journal.synced_sequence < sequence:
                if self._failed or self._stopping:
                    raise FastiError("the journal failed")
                self._changed.wait(1.0)

    def stop(self) -> None:
        """Writes what is waiting, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._worker.join()

    def _run(self) -> None:
        synced_at = recorded_at = time.monotonic()
        while True:
            self._worker.idle()
            batch = self._next(synced_at)
            self._worker.busy()
            commit = self._commit = Commit()
            self._batch = batch or []
            try:
                if not batch and not self._unsynced:
                    # Idle, or the end: it is recorded that the last frame was synced.
                    self._marked = True
                    self._store.journal.mark()
                    self._watch_end()
                if batch is None:
                    return
                self._write(batch)
                for work in batch:
                    self._show(work, commit)
                if self._at_once or not batch or time.monotonic() - synced_at >= self._interval_s:
                    self._sync()
                    synced_at = time.monotonic()
            except FastiError as error:
                self._give_up(error)
                return
            self._settle(True)
            self.committed += any(work.frames for work in batch)
            for work in batch:
                self._answer(work)
            self._batch = []
            if synced_at - recorded_at >= _END_EVERY_S:
                self._store.journal.sync_end()
                self._watch_end()
                recorded_at = time.monotonic()

    def _died(self, error: BaseException) -> None:
        """By a fault of the program. What was made durable before it, and not yet answered, is told
        that nobody can say so.
        """
        self._give_up(StorageFailed(f"the committer failed: {error!r}"))

    def _settle(self, durable: bool) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            commit.settle(durable)

    def _watch_end(self) -> None:
        """Says once that the journal's end isn't recorded: nothing is lost by that alone."""
        problem = self._store.journal.end_problem
        if problem is not None and not self._warned_of_end:
            self._warned_of_end = True
            _log.warning(
                "the journal's end can't be recorded until the next segment: if the newest segment "
                "becomes shorter meanwhile, that may go unnoticed: %s",
                problem,
            )

    def _next(self, synced_at: float) -> list[Work] | None:
        """What to write now: [] when it is only time to sync or mark, None at the end."""
        with self._changed:
            while not self._waiting:
                if self._unsynced:
                    left = synced_at + self._interval_s - time.monotonic()
                    if left <= 0 or self._stopping:
                        return []
                    self._changed.wait(left)
                elif self._stopping:
                    return None
                elif self._marked:
                    self._changed.wait()
                elif not self._changed.wait(_MARK_AFTER_S):
                    return []
            batch: list[Work] = []
            size = 0
            while self._waiting and (not batch or size < _BYTES_PER_SYNC):
                batch.append(self._waiting.popleft())
                size += batch[-1].size_bytes
            self._changed.notify_all()
            return batch

    @property
    def _unsynced(self) -> bool:
        journal = self._store.journal
        return journal.synced_sequence < journal.last_sequence

    def _write(self, batch: list[Work]) -> None:
        frames = [frame for work in batch for frame in work.frames]
        if frames:
            # Payloads were admitted by the sequencer only where they leave the reserve alone.
            self._store.journal.append(frames, use_reserve=True)
            self._marked = False
        written = sum(work.size_bytes for work in batch)
        with self._changed:
            self.waiting_bytes -= written
            self.written_bytes += written
        self._wrote()

    def count_written(self, size_bytes: int) -> None:
        """A checkpoint was given up that was to take so much of the journal; below 0: one has begun."""
        with self._changed:
            self.written_bytes += size_bytes

    def _sync(self) -> None:
        # A segment is synced when it begins or ends: then there is nothing left to do here.
        if self._unsynced:
            begin = time.perf_counter()
            self._store.journal.sync()
            seconds = time.perf_counter() - begin
            self.sync_seconds.append(seconds)
            self.sync_times.add(seconds)
        with self._changed:
            self._changed.notify_all()
        if not self._at_once:
            # Answers have left before; who follows what is durable is told now.
            self._synced()

    def _give_up(self, error: FastiError) -> None:
        self._settle(False)
        with self._changed:
            self._failed = True
            undone = [*self._batch, *self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        self._fail(error, undone)
