"""A shard with bound topics on a disk that loses what it may, stopped before every operation.

Batches go into a topic that is bound to others; the disk is photographed before each of its
operations, as a crash at that moment would leave it. In every photograph a batch is in all of its
topics or in none, and one that was acknowledged is in all.
"""

from __future__ import annotations

import random

import pytest

from fasti.testing.disk import SimulatedFiles
from tests.crash.photographs import PhotographedFiles
from tests.models.fanout import Row
from tests.properties.fanout_rig import Rig, words

BOUND = ("orders", "emails", "audit", "events")
STEPS = 24


def put(rig: Rig, number: int, size: int) -> list[Row]:
    """One batch that goes everywhere, some of it by key."""
    rows = [
        Row(b"%d-%d" % (number, row), f"key-{number}-{row}" if row % 2 else None, "orders.new")
        for row in range(size)
    ]
    assert words(rig.call(rig.command("orders", rows, rig.matcher("orders")))) == ["ok"] * size
    return rows


def check(image: SimulatedFiles, acknowledged: list[list[Row]], under_way: list[Row]) -> None:
    rig = Rig.__new__(Rig)
    rig.reopen(image)
    held = {topic: sorted(each[1] for each in rig.listed(topic)) for topic in BOUND}
    rig.shard.close()
    known = sorted(row.payload for rows in acknowledged for row in rows)
    with_last = sorted([*known, *(row.payload for row in under_way)])
    assert held["orders"] in (known, with_last)
    for topic, payloads in held.items():
        assert payloads == held["orders"], topic


@pytest.mark.parametrize("seed", range(2))
def test_every_crash_leaves_all_copies_or_none(seed: int) -> None:
    rng = random.Random(seed)
    files = PhotographedFiles()
    rig = Rig(files, rng)
    for target in BOUND[1:]:
        rig.bind("orders", "orders.>", target)
    taken: list[tuple[int, SimulatedFiles]] = []
    batches: list[list[Row]] = []
    files.photograph = lambda _: taken.append((len(batches), files.crash(rng)))
    for number in range(STEPS):
        if number % 9 == 8:
            rig.checkpoint()
        batches.append(put(rig, number, rng.randint(1, 40)))
    files.photograph = lambda _: None
    batches.append([])
    assert len(taken) > STEPS
    for whole, image in rng.sample(taken, 40):
        check(image, batches[:whole], batches[whole])
