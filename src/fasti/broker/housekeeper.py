"""The housekeeper: checkpoints, slices of runs, and spare journal segments, in the background.

One thread for checkpoints, because they are long, and one for what must not wait for them. A
checkpoint keeps to a byte rate, so that its writes don't stand in the way of the journal's syncs;
when the journal has grown far beyond what a checkpoint was to begin at, it goes faster.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from fasti.broker.memory import give_memory_back
from fasti.core.replies import LoadSlice
from fasti.errors import Closed, FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_RETRY_S = 1.0


class Housekeeper:
    """Background work of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._slices: queue.SimpleQueue[LoadSlice | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._asked: list[Future[None]] = []
        self._stopping = False
        self.checkpoints = 0
        self.last_error: FastiError | None = None
        self._threads = [
            threading.Thread(target=self._run_checkpoints, name="fasti-checkpoint", daemon=True),
            threading.Thread(target=self._run_slices, name="fasti-slices", daemon=True),
            threading.Thread(target=self._run_spares, name="fasti-spares", daemon=True),
        ]

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends when what is under way is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._slices.put(None)
        for thread in self._threads:
            thread.join()

    def look(self) -> None:
        """The committer wrote something: is there a checkpoint or a segment to prepare?"""
        shard = self._shard
        if (
            shard.committer.written_bytes >= shard.settings.checkpoint_bytes
            or shard.store.journal.room_bytes() < 2 * shard.settings.segment_bytes
        ):
            with self._changed:
                self._changed.notify_all()

    def load(self, wanted: LoadSlice) -> None:
        """The sequencer wants a slice of runs in memory."""
        self._slices.put(wanted)

    def checkpoint_now(self) -> Future[None]:
        """A checkpoint that begins after this call."""
        asked: Future[None] = Future()
        with self._changed:
            if self._stopping:
                raise Closed("the shard is closed")
            self._asked.append(asked)
            self._changed.notify_all()
        return asked

    # Slices and spares

    def _run_slices(self) -> None:
        while (wanted := self._slices.get()) is not None:
            try:
                loaded = self._shard.store.load_slice(wanted)
                self._shard.submit([loaded])
            except FastiError as error:
                # Blocks changed under our hands, or the shard is recovering: it asks again.
                self.last_error = error

    def _run_spares(self) -> None:
        while True:
            wait: float | None = None
            try:
                if self._shard.store.journal.prepare_spare():
                    continue
            except FastiError as error:
                self.last_error = error
                wait = _RETRY_S
            with self._changed:
                if self._stopping:
                    return
                self._changed.wait(wait)

    # Checkpoints

    def _run_checkpoints(self) -> None:
        while True:
            asked = self._next_checkpoint()
            if asked is None:
                return
            try:
                self._checkpoint()
            except FastiError as error:
                self.last_error = error
                for future in asked:
                    future.set_exception(error)
                with self._changed:
                    self._changed.wait(_RETRY_S)
            else:
                for future in asked:
                    future.set_result(None)

    def _next_checkpoint(self) -> list[Future[None]] | None:
        with self._changed:
            while True:
                if self._asked:
                    asked, self._asked = self._asked, []
                    return asked
                if self._stopping:
                    return None
                if self._shard.committer.written_bytes >= self._shard.settings.checkpoint_bytes:
                    return []
                self._changed.wait()

    def _checkpoint(self) -> None:
        shard = self._shard
        store, committer = shard.store, shard.committer

        def begin():  # type: ignore[no-untyped-def]
            committer.written_bytes = 0
            return store.begin_checkpoint(shard.engine, shard.clock.now_us())

        plan = shard.run(begin).result()
        engine = shard.engine
        try:
            pacer = _Pacer(shard)
            written, finished = store.write_checkpoint(plan, pacer.wait, committer.wait_durable)
            inputs = shard.run(lambda: store.install(engine, written)).result()
            for rows in inputs:
                shard.submit([rows]).result()
            shard.submit([finished]).result()
        finally:
            shard.run(lambda: engine.release_snapshot(plan.snapshot.number)).result()
        if shard.run(lambda: not engine.snapshots).result():
            store.clean_up()
        give_memory_back()
        self.checkpoints += 1


class _Pacer:
    """Spreads a checkpoint's writes over time."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._free_at = time.monotonic()

    def wait(self, size_bytes: int) -> None:
        settings = self._shard.settings
        behind = self._shard.committer.written_bytes / settings.checkpoint_bytes
        rate = settings.checkpoint_bytes_per_s * max(1.0, behind)
        self._free_at = max(self._free_at, time.monotonic()) + size_bytes / rate
        time.sleep(max(0.0, self._free_at - time.monotonic()))
