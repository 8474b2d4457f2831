"""The committer: writes and syncs what steps decided, then lets their answers go.

A service that is a step: it writes a batch and syncs it. While it syncs, the next steps gather; it takes
all of them at once, up to a limit of bytes, so that one sync serves many callers (group commit). Answers
leave in the order of steps. Sessions are shown what they will deliver before the sync, so that they can
join payloads while it runs; they wait for its `Commit` before anything leaves.

With durability `interval` answers leave after the write, and syncs follow at intervals.

**A replicated journal** (`Journal.is_replicated`) may not answer for a while. `NoQuorum` is no failure: the
batch stays as it is, held back, and is synced again until the servers are back, or say that another process
leads the shard. From the first `NoQuorum` on, until then, `no_quorum` is set, and nothing new is admitted
(sequencer.py). Leases stand meanwhile (`LeaseTicks`). And it may have been taken over by another process
unnoticed: what was decided about single messages, and wrote nothing, is answered when the journal has
proved that it wasn't, for all such steps of a batch at once.

`take_over`, `is_behind` and `stop` are for the sequencer, `lead` and `wait_durable` for any thread; the
rest is done in the committer's turn, by its own thread or by a caller that leads.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fasti.broker.clock import LeaseTicks
from fasti.broker.logs import fields
from fasti.broker.metrics.counts import Distribution
from fasti.broker.stalls import Stalls
from fasti.broker.threads import Driver, Threads
from fasti.config import Durability
from fasti.core.replies import Step
from fasti.errors import FastiError, Fenced, NoQuorum, StorageFailed
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
    """A step, those who wait for it, and its frames as the journal takes them."""

    step: Step
    requests: list[Request] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def needs_proof(self) -> bool:
        """Whether one of its answers does."""
        return any(request.needs_proof for request in self.requests)


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
        caught_up: Callable[[], None] = lambda: None,
        threads: Threads | None = None,
        stalls: Stalls | None = None,
        ticks: LeaseTicks | None = None,
        name: str = "fasti-committer",
    ) -> None:
        threads = threads or Threads()
        self._store = store
        self._ticks = ticks or LeaseTicks(threads.runtime.clock)
        # Why nothing becomes durable for now, and how often that began.
        self.no_quorum: NoQuorum | None = None
        self.outages = 0
        self._no_quorum_since = 0.0
        # When what is not answered yet was appended.
        self._began_at = 0.0
        self._show, self._answer, self._fail = show, answer, fail
        self._wrote, self._synced, self._caught_up = wrote, synced, caught_up
        self._monotonic = threads.runtime.monotonic
        self._stalls = stalls or Stalls(self._monotonic)
        self._changed = threads.condition()
        # How many wait until something is durable: its own thread need not be woken by every sync.
        self._awaiting = 0
        self._waiting: deque[Work] = deque()
        # Bytes of what waits; and those and what is being written.
        self._queued_bytes = self.waiting_bytes = 0
        # Whether the sequencer may have waited when the batch was taken.
        self._was_behind = False
        self._stopping = False
        self._failed = False
        # What is handed over later fails for the same reason.
        self._failure = FastiError("the journal failed before")
        self._marked = True
        self._warned_of_end = False
        self._at_once = store.settings.durability is Durability.ALWAYS
        self._interval_s = store.settings.sync_interval_ms / 1000
        # When it last synced, and last recorded the journal's end.
        self._synced_at = self._recorded_at = self._monotonic()
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
        self._driver = Driver(threads, name, self._changed, self._take, self._step, self._died)
        self._driver.start()

    def take_over(self, work: Work, wake: bool = True) -> None:
        """The sequencer hands a step over, which it decides only while `is_behind` is False.

        Without `wake`, the caller goes on to `lead`.
        """
        work.size_bytes = self._store.size(work.frames)
        with self._changed:
            failed = self._failed
            if not failed:
                self._waiting.append(work)
                self._queued_bytes += work.size_bytes
                self.waiting_bytes += work.size_bytes
                if wake:
                    self._changed.notify_all()
        if failed:
            self._fail(self._failure, [work])

    @property
    def may_be_led(self) -> bool:
        """Whether a caller may do its turn."""
        return self._driver.may_be_led

    def lead(self) -> None:
        """Writes what waits, in the caller's thread, unless another one is at it."""
        with self._changed:
            leads = self._driver.begin_to_lead()
        if leads:
            self._driver.lead()

    @property
    def waiting_steps(self) -> int:
        """How many steps wait to be written."""
        return len(self._waiting)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that no step should be decided until `caught_up` is called."""
        return self._queued_bytes >= _WAITING_BYTES_MAX or len(self._waiting) >= _STEPS_WAITING_MAX

    @property
    def unanswered_s(self) -> float:
        """For how long nothing has become durable by now; 0 unless `no_quorum` is set."""
        return 0.0 if self.no_quorum is None else self._monotonic() - self._began_at

    def wait_durable(self, sequence: int) -> None:
        """Returns when the journal is synced up to there; raises if it failed instead, or `no_quorum`."""
        with self._changed:
            self._awaiting += 1
            try:
                while self._store.journal.synced_sequence < sequence:
                    if self._failed or self._stopping:
                        raise FastiError("the journal failed")
                    if self.no_quorum is not None:
                        raise self.no_quorum
                    self._changed.wait(1.0)
            finally:
                self._awaiting -= 1

    def stop(self) -> None:
        """Writes what is waiting, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._driver.join()

    # The step

    def _take(self) -> float | None:
        """With the lock: takes a batch, which is empty when it is only time to sync, mark or end."""
        if self._batch:
            return 0.0
        if not self._waiting and not self._stopping:
            if self._unsynced:
                wait_s = self._interval_s
            elif self._marked:
                return None
            else:
                wait_s = _MARK_AFTER_S
            wait_s += self._synced_at - self._monotonic()
            if wait_s > 0:
                return wait_s
        self._was_behind = self.is_behind
        size = 0
        while self._waiting and (not self._batch or size < _BYTES_PER_SYNC):
            self._batch.append(self._waiting.popleft())
            size += self._batch[-1].size_bytes
        self._queued_bytes -= size
        return 0.0

    def _step(self) -> bool:
        batch = self._batch
        if self._was_behind:
            self._caught_up()
        try:
            if not batch and not self._unsynced:
                # Idle, or the end: it is recorded that the last frame was synced.
                self._marked = True
                self._store.journal.mark()
                self._watch_end()
                return not self._stopping
            if self._commit is None:
                self._begin(batch)
            self._make_durable(batch)
        except NoQuorum as error:
            if not self._stopping:
                self._wait_out(error)
                return True
            self._give_up(error)
            return False
        except FastiError as error:
            self._give_up(error)
            return False
        self._settle(True)
        self.committed += any(work.frames for work in batch)
        for work in batch:
            self._answer(work)
        self._batch = []
        if self._synced_at - self._recorded_at >= _END_EVERY_S:
            self._store.journal.sync_end()
            self._watch_end()
            self._recorded_at = self._monotonic()
        return True

    def _begin(self, batch: list[Work]) -> None:
        """Once for each batch, however often it is synced."""
        self._write(batch)
        commit = self._commit = Commit()
        for work in batch:
            self._show(work, commit)

    def _make_durable(self, batch: list[Work]) -> None:
        replicated = self._store.journal.is_replicated
        if replicated:
            self._ticks.append_began()
            if self.no_quorum is None:
                self._began_at = self._monotonic()
        proven = False
        if self._at_once or not batch or self._sync_is_due():
            proven = self._unsynced
            self._sync()
            self._synced_at = self._monotonic()
        if replicated:
            if not proven and any(work.needs_proof for work in batch):
                self.count_written(self._store.journal.prove())
                self._wrote()
            self._end_append()

    def _wait_out(self, error: NoQuorum) -> None:
        """The servers are away: what was written is on its way, and nobody is told anything."""
        if not self._batch:
            # Only a sync was due: the next step may take a batch.
            self._settle(False)
        began, self.no_quorum = self.no_quorum is None, error
        if began:
            self._no_quorum_since = self._monotonic()
            self.outages += 1
            extra = fields(name=self._driver.name, why=error)
            _log.warning("the shard waits for the servers that keep its journal", extra=extra)
            # A sequencer that is to end may wait until there is room for more steps.
            self._caught_up()

    def _end_append(self) -> None:
        """It is durable, or will never be."""
        stood = self._ticks.append_ended()
        if self.no_quorum is not None:
            self.no_quorum = None
            seconds = round(self._monotonic() - self._no_quorum_since, 1)
            extra = fields(name=self._driver.name, seconds=seconds)
            _log.warning("the shard waits no longer for the servers of its journal", extra=extra)
            stood = True
        if stood:
            # The sequencer waits for no moment while leases stand.
            self._caught_up()

    def _sync_is_due(self) -> bool:
        return self._monotonic() - self._synced_at >= self._interval_s

    def _died(self, error: BaseException) -> None:
        """By a fault of the program. What was made durable before it and not yet answered has an
        unknown outcome.
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

    @property
    def _unsynced(self) -> bool:
        journal = self._store.journal
        return journal.synced_sequence < journal.last_sequence

    def _write(self, batch: list[Work]) -> None:
        frames = [frame for work in batch for frame in work.frames]
        if frames:
            # Payloads were admitted by the sequencer only where they leave the reserve alone.
            begin = self._monotonic()
            self._store.journal.append(frames, use_reserve=True)
            self._stalls.since("write", begin)
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
            begin = self._monotonic()
            self._store.journal.sync()
            seconds = self._monotonic() - begin
            self.sync_seconds.append(seconds)
            self.sync_times.add(seconds)
            self._stalls.note("sync", seconds)
        if self._awaiting:
            with self._changed:
                self._changed.notify_all()
        if not self._at_once:
            # Answers have left before; who follows what is durable is told now.
            self._synced()

    def _give_up(self, error: FastiError) -> None:
        self._end_append()
        self._settle(False)
        with self._changed:
            self._failed = True
            if isinstance(error, Fenced):
                self._failure = error
            undone = [*self._batch, *self._waiting]
            self._waiting.clear()
            self._queued_bytes = 0
            self._changed.notify_all()
        self._fail(error, undone)
