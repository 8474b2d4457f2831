"""A shard without threads: every call decides, writes, syncs and answers before it returns.

For tests, tools and simulations, where time is passed in and nothing may happen by itself. The
threaded shard (broker/shard.py) is made of the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasti.config import ShardSettings
from fasti.core.checkpoint import Plan
from fasti.core.commands import DropSnapshot
from fasti.core.engine import Engine
from fasti.core.layout import ALONE, ShardPlace
from fasti.core.replies import Asked, Step
from fasti.storage.storage_engine import StorageEngine
from fasti.storage.store import ShardStore


class LocalShard:
    """One shard, one thread, no clock."""

    def __init__(
        self,
        storage: StorageEngine,
        settings: ShardSettings | None = None,
        tick: int = 0,
        place: ShardPlace = ALONE,
    ) -> None:
        self.settings = settings or ShardSettings()
        self.store = ShardStore(storage, self.settings)
        own = self.settings
        try:
            self.engine = self.store.load(
                lambda: Engine(own.memory_bytes, own.leases_max, own.limits, place)
            )
        except BaseException:
            self.store.close()
            raise
        self.replayed = self.store.replayed
        self.engine.start(tick)

    def step(self, inputs: Sequence[Any], now_us: int, tick: int) -> Step:
        """One step, durable when it returns, and everything that runs were asked for is loaded."""
        step = self._step(inputs, now_us, tick)
        while requests := [effect for effect in step.effects if isinstance(effect, Asked)]:
            step.effects = [effect for effect in step.effects if not isinstance(effect, Asked)]
            loaded = [self.store.answer(request) for request in requests]
            more = self._step(loaded, now_us, tick)
            step.effects += more.effects
            step.frames += more.frames
            step.more = more.more
            step.wake_at_us, step.wake_at_tick = more.wake_at_us, more.wake_at_tick
        return step

    def _step(self, inputs: Sequence[Any], now_us: int, tick: int) -> Step:
        step = self.engine.step(inputs, now_us, tick)
        if step.frames:
            self.store.journal.append(self.store.encode(step.frames))
            self.store.journal.sync()
        return step

    def call(self, command: Any, now_us: int, tick: int) -> Any:
        """One command's reply. Deliveries of the same step are lost: use `step` for leases."""
        return self.step([command], now_us, tick).replies[0]

    def checkpoint(self, now_us: int, tick: int) -> None:
        """A whole checkpoint, at once."""
        plan = self.begin_checkpoint(now_us, tick)
        try:
            written, finished = self.store.write_checkpoint(plan, lambda _: None, lambda _: None)
            inputs = [*written.inputs(), finished, *written.losses(self.engine)]
            self.step(inputs, now_us, tick)
        finally:
            snapshots = self.call(DropSnapshot(plan.snapshot.number), now_us, tick).value
        self.store.clean_up(snapshots, now_us)

    def begin_checkpoint(self, now_us: int, tick: int) -> Plan:
        """The first part of a checkpoint, for a caller who writes and installs it by hand."""
        return self.store.begin_checkpoint(lambda command: self.call(command, now_us, tick).value)

    def close(self) -> None:
        """Everything is durable already."""
        self.store.close()
