"""A disk that is photographed before each of its operations, and stories that are told on it.

A photograph is what a crash at that moment would leave. Every one is opened and must show what was
acknowledged, or that and the whole step that was under way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fasti.config import ShardSettings
from fasti.core.commands import DropSnapshot, RunsInstalled
from fasti.model import SECOND_US
from fasti.storage import checkpoint
from fasti.storage.checkpoint import Plan, Written
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles

START_US = 1_700_000_000 * SECOND_US
Op = tuple[str, dict[str, Any]]
# What a shard shows at one moment, before an operation and after it.
Sight = tuple[dict[str, Any], dict[str, Any]]


def moment(step: int) -> int:
    """Steps are a second apart."""
    return START_US + step * SECOND_US


class PhotographedFiles(SimulatedFiles):
    """A disk that calls `photograph` before each of its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.photograph: Callable[[int], None] = lambda operation: None

    def step(self, kind: str, name: str) -> bool:
        if kind not in ("read", "open"):
            self.photograph(self.operations)
        return super().step(kind, name)


class PhasedShard:
    """A shard that can be restarted, and whose checkpoints let others work in between."""

    def __init__(self, files: Files, settings: ShardSettings) -> None:
        self.files, self.settings = files, settings
        self.shard = LocalShard(FileStorage(files), settings)
        # A checkpoint beside the traffic: its plan, and what was written of it.
        self._plan: Plan | None = None
        self._written: tuple[Written, RunsInstalled] | None = None

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), self.settings)
        self._plan = self._written = None

    def phase(self, now_us: int) -> None:
        """The next part of a checkpoint."""
        shard, store = self.shard, self.shard.store
        if self._plan is None:
            self._plan = shard.begin_checkpoint(now_us, 0)
        elif self._written is None:
            self._written = store.write_checkpoint(self._plan, lambda _: None, lambda _: None)
        else:
            written, finished = self._written
            for each in [*written.inputs(), finished]:
                shard.step([each], now_us, 0)
            shard.step([DropSnapshot(self._plan.snapshot.number)], now_us, 0)
            store.clean_up(shard.engine.snapshots)
            self._plan = self._written = None

    @property
    def in_phase(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._plan is not None


class ToldShard(PhasedShard):
    """One that a story is told to, operation by operation; of a kind of topic."""

    def command(self, name: str, given: dict[str, Any]) -> Any:
        """What an operation asks of the engine."""
        raise NotImplementedError

    def dump(self, now_us: int) -> dict[str, Any]:
        """All that can be seen."""
        raise NotImplementedError

    def do(self, op: Op, now_us: int) -> None:
        """When it returns, it is acknowledged."""
        name, given = op
        if name == "restart":
            self.restart()
        elif name == "phase":
            self.phase(now_us)
        elif name == "tick":
            self.shard.step([], now_us, 0)
        else:
            reply = self.shard.call(self.command(name, given), now_us, 0)
            assert reply.error is None, reply.error


def crash_everywhere(
    made: Callable[[Files], ToldShard], ops: list[Op], seed: int, every: int, going_on: float
) -> int:
    """Stops a story before every k-th operation; returns how many crashes were tried.

    A share `going_on` of the photographs hears the rest of the story too.
    """
    rng = random.Random(seed)
    files = PhotographedFiles()
    taken: list[tuple[int, int, SimulatedFiles]] = []
    current = 0

    def photograph(operation: int) -> None:
        if operation % every == seed % every:
            taken.append((operation, current, files.crash(rng)))

    files.photograph = photograph
    told = made(files)
    sights: list[Sight] = []
    for current, op in enumerate(ops):
        # What was there when it began, as of its own time: something may have expired since.
        before = told.dump(moment(current))
        told.do(op, moment(current))
        sights.append((before, told.dump(moment(current))))
    told.shard.close()
    for operation, step, image in taken:
        try:
            _check(made(image), ops, sights, step, rng.random() < going_on)
        except BaseException as error:
            error.add_note(f"seed {seed}, crashed before operation {operation}, in {step}: ")
            error.add_note(repr(ops[step])[:500])
            raise
    return len(taken)


def _check(opened: ToldShard, ops: list[Op], sights: list[Sight], step: int, goes_on: bool) -> None:
    landed = check_sight(opened.dump(moment(step)), sights[step])
    if goes_on:
        # The shard lives on as if nothing had been: the rest of the story ends as it did. Looked
        # at as before, because looking at a later time lets go what is too old by then.
        for later in range(step + landed, len(ops)):
            opened.dump(moment(later))
            opened.do(ops[later], moment(later))
            opened.dump(moment(later))
        assert not differences(sights[-1][1], opened.dump(moment(len(ops) - 1)))
    opened.shard.close()


def check_sight(seen: dict[str, Any], sight: Sight) -> bool:
    """It is as before the step that was under way, or as after it; whether as after."""
    unlike = [differences(each, seen) for each in sight]
    assert not all(unlike), "\n".join(["", *unlike[0][:6], "or", *unlike[1][:6]])
    return not unlike[1]


def differences(was: Any, now: Any, path: str = "") -> list[str]:
    """Where two dumps differ, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for name in sorted({*was, *now}, key=str):
            if name not in was or name not in now:
                found.append(f"{path}/{name}: only {'now' if name in now else 'before'}")
            else:
                found += differences(was[name], now[name], f"{path}/{name}")
        return found
    return [] if was == now else [f"{path}: {was!r:.300} became {now!r:.300}"]


def compact_as_if_after_years(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was time to gather runs and deltas."""
    monkeypatch.setattr(checkpoint, "_RUNS_MAX", 2)
    monkeypatch.setattr(checkpoint, "_DELTA_ROWS_MIN", 3)
    monkeypatch.setattr(checkpoint, "BLOCK_ROWS_MAX", 8)
