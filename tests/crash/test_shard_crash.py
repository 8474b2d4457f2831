"""A whole shard on a disk that loses everything that it may lose, stopped before every operation.

A story (tests/crash/shard_workload.py) is told once to a shard that never crashes, which writes
down what it shows after each step; then once more on a disk that is photographed before each of
its operations, as a crash at that moment would leave it. Every photograph is opened and must show
exactly what was acknowledged, or that and the whole step that was under way.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fasti.testing.disk import Crashed, SimulatedFiles
from tests.crash.photographs import (
    Op,
    PhotographedFiles,
    Sight,
    check_sight,
    compact_as_if_after_years,
    differences,
)
from tests.crash.shard_workload import (
    Driven,
    check_drained,
    drain,
    dump,
    dump_leases,
    moment,
    without_tokens,
    write_story,
)
from tests.seeds import seeds


@pytest.fixture(autouse=True)
def compact_often(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other story compacts as if it had had years to gather runs and deltas."""
    if seed % 2:
        compact_as_if_after_years(monkeypatch)


def tokens_of(driven: Driven) -> dict[str, Any]:
    """Under which tokens this shard has handed out: another may have grouped it otherwise."""
    next_token = driven.shard.engine.memory.leases.next_token
    return {"leases": dump_leases(driven.shard), "next_token": next_token}


def crash_everywhere(seed: int, steps: int, every: int = 1, images: int = 1) -> int:
    """Stops a story before every k-th operation; returns how many crashes were tried."""
    ops, sights = write_story(seed, steps, SimulatedFiles())
    rng = random.Random(seed)
    files = PhotographedFiles()
    taken: list[tuple[int, int, SimulatedFiles]] = []
    current = 0

    def photograph(operation: int) -> None:
        if operation % every == seed % every:
            taken.extend((operation, current, files.crash(rng)) for _ in range(images))

    files.photograph = photograph
    driven = Driven(files)
    told = tokens_of(driven)
    for current, op in enumerate(ops):
        before = told
        driven.do(op, moment(current))
        told = tokens_of(driven)
        sights[current] = sights[current][0] | before, sights[current][1] | told
    for operation, step, image in taken:
        try:
            _check_crash(image, ops, sights, step, go_on=rng.random() < 0.1)
        except BaseException as error:
            error.add_note(f"seed {seed}, crashed before operation {operation}, in {step}: ")
            error.add_note(repr(ops[step]))
            raise
    return len(taken)


def _check_crash(
    image: SimulatedFiles, ops: list[Op], sights: list[Sight], step: int, go_on: bool
) -> None:
    driven = Driven(image)
    seen = dump(driven.shard, moment(step))
    landed = check_sight(seen, sights[step])
    if go_on:
        # The shard lives on as if nothing had been: the rest of the story ends as it did.
        for later in range(step + landed, len(ops)):
            driven.do(ops[later], moment(later))
        end = dump(driven.shard, moment(len(ops) - 1))
        assert not differences(without_tokens(sights[-1][1]), without_tokens(end))
    now_us = moment(len(ops))
    check_drained(dump(driven.shard, now_us), drain(driven.shard, now_us))
    driven.shard.close()


@pytest.mark.parametrize("seed", range(2))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=32) > 60


@pytest.mark.parametrize("seed", seeds(1, range(100, 102)))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=140, every=15) > 15


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_more_crashes(seed: int) -> None:
    crash_everywhere(seed, steps=60, images=3)
    crash_everywhere(seed + 1000, steps=300, every=13)


@pytest.mark.parametrize("seed", seeds(1, range(200, 202)))
def test_restarts_and_checkpoints_change_nothing_that_can_be_seen(seed: int) -> None:
    files = SimulatedFiles()
    ops, sights = write_story(seed, 150, files)
    for op, (before, after) in zip(ops, sights, strict=True):
        if op[0] in ("restart", "checkpoint", "phase"):
            assert not differences(before, after), op
    driven = Driven(files)
    last = moment(len(ops) - 1)
    assert not differences(sights[-1][1], dump(driven.shard, last))
    check_drained(dump(driven.shard, last), drain(driven.shard, last))


def run_until_stopped(files: SimulatedFiles, ops: list[Op]) -> int:
    """The step in which the disk stopped."""
    step = 0
    try:
        driven = Driven(files)
        for step, op in enumerate(ops):
            driven.do(op, moment(step))
    except Crashed:
        return step
    raise AssertionError("it never stopped")


@pytest.mark.parametrize("seed", seeds(1, range(400, 402)))
def test_a_power_cut_after_a_kill(seed: int) -> None:
    """What a killed process had not synced is seen by the next one, and may still be lost."""
    ops, sights = write_story(seed, 30, SimulatedFiles())
    whole = SimulatedFiles()
    driven = Driven(whole)
    for step, op in enumerate(ops):
        driven.do(op, moment(step))
    rng = random.Random(seed)
    for operation in rng.sample(range(8, whole.operations), 12):
        files = PhotographedFiles()
        files.stop_before = operation
        step = run_until_stopped(files, ops)
        files.stop_before, files.locked = None, False
        images: list[SimulatedFiles] = []
        files.photograph = lambda _, files=files, images=images: images.append(  # type: ignore[misc]
            files.crash(rng)
        )
        driven = Driven(files)
        told = without_tokens(dump(driven.shard, moment(step)))
        driven.do(("checkpoint", {}), moment(step))
        for image in images:
            seen = without_tokens(dump(Driven(image).shard, moment(step)))
            unlike = [differences(without_tokens(sight), seen) for sight in sights[step]]
            assert not all(unlike), (operation, ops[step], unlike)
        seen = without_tokens(dump(Driven(files.crash(rng)).shard, moment(step)))
        assert not differences(told, seen), operation
