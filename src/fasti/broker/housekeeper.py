"""The housekeeper: checkpoints, slices of runs, and spare journal segments, in the background.

Three services, each a step with a thread around it: one for checkpoints, because they are long, and one
each for what must not wait for them. What fails is tried again, and one that dies all the same is run
again, with what it had in hand. A checkpoint keeps to a byte rate, so that its writes don't stand in the
way of the journal's syncs; when the journal has grown far beyond what a checkpoint was to begin at, it
goes faster. One that would mostly write what is about to be consumed waits a little: what is gone need
not be written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fasti.broker.memory import give_memory_back
from fasti.broker.metrics.counts import Distribution
from fasti.broker.threads import Driver
from fasti.core.checkpoint import Plan, ReadUnwritten
from fasti.core.commands import DropSnapshot, RunsInstalled, Tidy
from fasti.core.engine import Engine
from fasti.core.replies import Asked
from fasti.errors import Closed, Moved, StorageFailed, StorageFull
from fasti.storage.checkpoint import Written
from fasti.storage.store import ShardStore

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.housekeeper")

_RETRY_S = 1.0
# Servers that have no room for a checkpoint: what it has written goes again, and each try writes it anew.
_FULL_RETRY_S = 10.0
# A checkpoint that would mostly write what is about to be consumed waits for that, up to so much
# of the journal and so long, if there is as much of it that this is worth while.
_PATIENCE_SIZES = 4
_PATIENCE_S = 10.0
_LOOK_AGAIN_S = 0.25
_SHORT_LIVED_MIN = 65_536
_TIDY_PIECES_MAX = 10_000
_CHECKPOINT_BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Housekeeper:
    """Background work of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._turns = shard.shared.checkpoints
        self._monotonic = shard.runtime.monotonic
        self._changed = shard.threads.condition()
        self._stopping = False
        self._paused = False
        self._working_now = 0
        # Checkpoints: who waits for the next one, those for which one is being written, and the moment
        # before which none begins by itself.
        self._next_callers: list[Future[None]] = []
        self._callers: list[Future[None]] = []
        self._retry_at = 0.0
        # Since when the next one could have begun, while it waits for what is about to be consumed.
        self._waiting_since: float | None = None
        self.checkpoints = 0
        self.last_error: BaseException | None = None
        # For metrics: what checkpoints took and wrote, and which old blocks they made needless.
        self.failures = 0
        self.checkpoint_times = Distribution(_CHECKPOINT_BOUNDS_S)
        # When the last one was complete; a directory that was just opened counts as one.
        self._checkpointed_at = self._monotonic()
        self.written_bytes = 0
        self.compacted_blocks = 0
        self.compacted_bytes = 0
        # Slices that the engine waits for, the first of which is being read; and, if that could not be
        # read, when the engine is told.
        self._slices: deque[tuple[Asked, Engine]] = deque()
        self._slices_changed = shard.threads.condition()
        self._give_up_slice_at: float | None = None
        # Spare segments: whether the sequencer waits for one, whether they are being made, and when to
        # look whether some are missing.
        self._spare_wanted = self._making = False
        self._spares_at: float | None = 0.0
        self._checkpointer = Driver(
            *(shard.threads, shard.label("fasti-checkpoint"), self._changed),
            *(self._take_checkpoint, self._step_checkpoint),
        )
        self._slicer = Driver(
            *(shard.threads, shard.label("fasti-slices"), self._slices_changed),
            *(self._take_slice, self._step_slice),
        )
        self._preparer = Driver(
            *(shard.threads, shard.label("fasti-spares"), self._changed),
            *(self._take_spares, self._step_spares),
        )
        self._drivers = [self._checkpointer, self._slicer, self._preparer]

    def start(self) -> None:
        """Begins."""
        for driver in self._drivers:
            driver.start()

    def stop(self) -> None:
        """Ends when what is under way is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        with self._slices_changed:
            self._slices_changed.notify()
        for driver in self._drivers:
            driver.join()
        with self._changed:
            callers, self._next_callers = self._next_callers, []
        for future in callers:
            future.set_exception(Closed("the shard is closed"))

    def look(self) -> None:
        """The committer wrote something: is there a checkpoint or a segment to prepare?"""
        shard = self._shard
        if shard.store.capacity.room_bytes() < shard.settings.segment_bytes:
            # Less than a whole segment: no spare is ready behind the one in use.
            self.wake(spares=True)
            return
        due = shard.shared.journals.due_for_checkpoint()
        if due is not None and due is not shard:
            due.housekeeper.wake()
        # Its own may be due as well, whatever becomes of the other one's.
        if self._checkpoint_is_due():
            self.wake()

    def wake(self, spares: bool = False) -> None:
        """A checkpoint is due, or with `spares` a segment may be wanted. Any thread."""
        if spares or self._monotonic() >= self._retry_at:
            with self._changed:
                self._spares_at = 0.0 if spares else self._spares_at
                self._changed.notify_all()

    def ask_for_spare(self) -> None:
        """The sequencer is short of room: it is woken when a segment was made, or could not be."""
        with self._changed:
            self._spare_wanted = True
            self._changed.notify_all()

    @property
    def making_room(self) -> bool:
        """Whether the segment that the sequencer waits for is still to be made."""
        return self._spare_wanted or self._making

    @property
    def checkpoint_age_s(self) -> float:
        """How long ago the last checkpoint was complete, or the directory opened."""
        return self._monotonic() - self._checkpointed_at

    def load(self, wanted: Asked, engine: Engine) -> None:
        """The sequencer wants a slice of runs in its engine's memory."""
        with self._slices_changed:
            self._slices.append((wanted, engine))
            self._slices_changed.notify()

    def checkpoint_now(self) -> Future[None]:
        """A checkpoint that begins after this call."""
        complete: Future[None] = self._shard.runtime.future()
        with self._changed:
            if self._stopping:
                raise Closed("the shard is closed")
            self._next_callers.append(complete)
            self._changed.notify_all()
        return complete

    # Slices and spares

    def _take_slice(self) -> float | None:
        if self._stopping:
            return 0.0
        if not self._slices:
            return None
        at = self._give_up_slice_at
        return 0.0 if at is None else at - self._monotonic()

    def _step_slice(self) -> bool:
        # One that was under way when this thread died comes first: the engine waits for it.
        if not self._slices:
            return False
        wanted, engine = self._slices[0]
        try:
            failed = self._give_up_slice_at is not None
            loaded = wanted.failed() if failed else self._shard.store.answer(wanted)
        except Exception as error:
            # An answer that counts for nothing makes the engine ask again, a little later.
            self.last_error = error
            self._give_up_slice_at = self._monotonic() + _RETRY_S
            return True
        with suppress(Closed, Moved):
            self._shard.submit([loaded], engine)
        self._slices.popleft()
        self._give_up_slice_at = None
        return True

    def _take_spares(self) -> float | None:
        if self._stopping or self._spare_wanted:
            return 0.0
        return None if self._spares_at is None else self._spares_at - self._monotonic()

    def _step_spares(self) -> bool:
        if self._stopping:
            return False
        self._prepare()
        return True

    def _prepare(self) -> None:
        """Makes the segments that are wanted, and plans when to look again unless all are there.

        However it ends, the sequencer is told: it may wait for room, also if it asked for none just now.
        """
        with self._changed:
            self._spare_wanted = False
            self._spares_at = None
            self._making = True
        try:
            wait_s = self._make_spares()
        finally:
            self._making = False
            self._shard.wake()
        if wait_s is None:
            # What a disk says to have free is not what it gives: a segment had to be got first.
            self._shard.room.look()
            wait_s = _RETRY_S if self._shard.room.full else None
        with self._changed:
            # Unless a look is wanted sooner.
            if wait_s is not None and self._spares_at is None:
                self._spares_at = self._monotonic() + wait_s

    def _make_spares(self) -> float | None:
        try:
            with self._working():
                while self._shard.store.capacity.prepare_spare():
                    self._preparer.busy()
        except StorageFull as error:
            self.last_error = error
            # Messages go before backups: what these hold is deleted by the next checkpoint.
            self._shard.holds.drop_all()
            return 0.0 if self._give_up_feed() else _RETRY_S
        except Exception as error:
            self.last_error = error
            return _RETRY_S
        return None

    def _give_up_feed(self) -> bool:
        """On a full disk. While the shard recovers nothing is deleted beside it."""
        try:
            with self._working():
                return self._shard.store.give_up_feed()
        except StorageFailed:
            return False

    # Checkpoints

    def _take_checkpoint(self) -> float | None:
        if self._stopping and not self._next_callers:
            return 0.0
        wait_s = self._retry_at - self._monotonic()
        if not self._next_callers and (wait_s > 0 or not self._checkpoint_is_due()):
            # What becomes due before it may begin is not told (`look`): it is looked at then.
            return wait_s if wait_s > 0 else None
        if not self._turns.begin(self, self._changed):
            # Another shard of the process is at it. One that ends doesn't wait.
            return 0.0 if self._stopping else None
        self._callers, self._next_callers = [*self._callers, *self._next_callers], []
        return 0.0

    def _step_checkpoint(self) -> bool:
        if self._stopping and not self._callers:
            self._turns.end(self)
            return False
        callers, self._callers = self._callers, []
        try:
            if not callers and self._can_wait():
                self._retry_at = self._monotonic() + _LOOK_AGAIN_S
                return True
            self._waiting_since = None
            self._checkpoint()
        except BaseException as error:
            self.last_error = error
            self.failures += 1
            self._shard.recovery.checkpoint_failed(error)
            _log.warning("a checkpoint was given up and will be tried again: %s", error)
            self._retry_at = self._monotonic() + _pause_after(error, self._shard)
            for future in callers:
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if self._shard.room.full:
                # It may need more than one, and none at once.
                self._retry_at = self._monotonic() + _FULL_RETRY_S
            for future in callers:
                future.set_result(None)
        finally:
            self._turns.end(self)
            # It may have taken spares, or made room for them.
            self.wake(spares=True)
        return True

    def _checkpoint_is_due(self) -> bool:
        """Whether the journal has grown, or retention of logs has dropped, by enough."""
        shard = self._shard
        if shard.shared.journals.due_for_checkpoint() is shard:
            return True
        if shard.store.journal.is_replicated and shard.room.full and shard.committer.written_bytes:
            # Acks alone may take long to fill a journal, and only a checkpoint frees what they let go.
            return True
        dropped, grown = shard.engine.memory.trimmed_bytes, shard.committer.written_bytes
        return max(dropped, grown) >= shard.settings.checkpoint_bytes

    def _can_wait(self) -> bool:
        """Whether most of what a checkpoint would write is about to be consumed."""
        shard = self._shard
        grown = shard.shared.journals.grown
        if self._waiting_since is None:
            self._waiting_since = self._monotonic()
        waited_s = self._monotonic() - self._waiting_since
        # If retention of logs dropped enough, or the disk is full, it begins for the room that it makes.
        if not 1 <= grown < _PATIENCE_SIZES or waited_s >= _PATIENCE_S or shard.room.full:
            return False
        unwritten = shard.ask(ReadUnwritten()).result()
        many = unwritten.short_lived >= _SHORT_LIVED_MIN
        return many and unwritten.short_lived * 4 >= unwritten.rows * 3

    def _checkpoint(self) -> None:
        """One checkpoint, of the engine as it is when it begins."""
        shard = self._shard
        if shard.committer.no_quorum is not None:
            # Other shards of the process have their turn meanwhile.
            raise shard.committer.no_quorum
        begin = self._monotonic()
        # The engine first: inputs for one that a recovery has replaced are refused, so that what they
        # bring never meets another engine's store.
        engine, committer = shard.engine, shard.committer
        store, grown = shard.store, committer.written_bytes
        plan = store.begin_checkpoint(lambda command: shard.ask(command, engine).result())
        committer.count_written(-grown)
        try:
            written, finished = self._write(store, plan)
            for command in (*written.inputs(), finished):
                shard.submit([command], engine).result()
            self._give_up_lost(engine, written)
        except BaseException:
            # It is to be tried again soon, not when the journal has grown as much once more.
            committer.count_written(grown)
            with suppress(Closed, Moved):
                shard.ask(DropSnapshot(plan.snapshot.number), engine).result()
            raise
        snapshots = shard.ask(DropSnapshot(plan.snapshot.number), engine).result()
        with self._working():
            if shard.store is store:
                store.clean_up(snapshots, shard.clock.now_us(), bool(len(shard.holds)))
        self._tidy_up(engine)
        give_memory_back()
        self.checkpoints += 1
        self._checkpointed_at = self._monotonic()
        self.checkpoint_times.add(self._checkpointed_at - begin)

    def _give_up_lost(self, engine: Engine, written: Written) -> None:
        """Messages whose payloads could not be read when they were moved."""
        for command in written.losses(engine):
            self._shard.damage.give_up(command)

    def _tidy_up(self, engine: Engine) -> None:
        """Lets the engine give back what traffic left behind, a piece in any step."""
        for _ in range(_TIDY_PIECES_MAX):
            self._checkpointer.busy()
            if not self._shard.ask(Tidy(), engine).result():
                return

    def _write(self, store: ShardStore, plan: Plan) -> tuple[Written, RunsInstalled]:
        shard = self._shard
        pacer = _Pacer(shard, self._check_not_paused, self._checkpointer)
        with self._working():
            if shard.store is not store:
                # It has recovered since the plan was made: this is no longer the directory's.
                raise StorageFailed("the shard has recovered: this checkpoint is void")
            before = store.manifest.blocks
            written = store.write_checkpoint(plan, pacer.wait, shard.committer.wait_durable)
        numbers = {block.number for block in written[0].manifest.blocks}
        gone = [block for block in before if block.number not in numbers]
        self.written_bytes += written[0].written_bytes
        self.compacted_blocks += len(gone)
        self.compacted_bytes += sum(block.size_bytes for block in gone)
        return written

    # While the shard recovers nothing else may write into its directory

    @property
    def is_finishing(self) -> bool:
        """Whether it was paused, and something is still being written: the shard is woken after it."""
        return self._paused and self._working_now > 0

    def pause(self) -> bool:
        """Makes a checkpoint give up; False while something is still being written."""
        with self._changed:
            self._paused = True
            return not self._working_now

    def resume(self) -> None:
        """Checkpoints may be written again."""
        with self._changed:
            self._paused = False
            self._spares_at = 0.0
            self._changed.notify_all()

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._changed:
            self._check_not_paused()
            self._working_now += 1
        try:
            yield
        finally:
            with self._changed:
                self._working_now -= 1
            if self._paused:
                self._shard.wake()

    def _check_not_paused(self) -> None:
        if self._paused:
            raise StorageFailed("the shard is recovering: nothing may be written beside it")


def _pause_after(error: BaseException, shard: Shard) -> float:
    replicated = shard.store.journal.is_replicated
    return _FULL_RETRY_S if replicated and isinstance(error, StorageFull) else _RETRY_S


class _Pacer:
    """Spreads a checkpoint's writes over time."""

    def __init__(self, shard: Shard, check: Callable[[], None], driver: Driver) -> None:
        self._shard, self._check, self._driver = shard, check, driver
        self._monotonic = shard.runtime.monotonic
        self._free_at = self._monotonic()

    def wait(self, size_bytes: int) -> None:
        self._check()
        settings = self._shard.settings
        behind = self._shard.committer.written_bytes / settings.checkpoint_bytes
        rate = settings.checkpoint_bytes_per_s * max(1.0, behind)
        self._free_at = max(self._free_at, self._monotonic()) + size_bytes / rate
        # However slow it is told to be, that is no standstill.
        self._driver.idle()
        self._shard.runtime.sleep(max(0.0, self._free_at - self._monotonic()))
        self._driver.busy()
