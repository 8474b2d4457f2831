"""Transactions over all kinds of topics: whole or not at all, now and after a restart.

One transaction may take from a timeline, append to a log and put into a key-value topic. Whatever
it was made of, one that came to nothing leaves everything as it was, down to what a checkpoint
would keep; and everything is the same again after a restart, from the journal or from blocks.
"""

from __future__ import annotations

import pytest

from fasti.core import commands as co
from fasti.model import SECOND_US
from tests.properties.mixed_rig import MixedShard
from tests.seeds import seeds


def differences(was: object, now: object, path: str = "") -> list[str]:
    """Where two sights differ, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for name in sorted({*was, *now}, key=str):
            if name not in was or name not in now:
                which = "now" if name in now else "before"
                found.append(f"{path}/{name}: only {which}: {now.get(name, was.get(name))!r:.200}")
            else:
                found += differences(was[name], now[name], f"{path}/{name}")
        return found
    return [] if was == now else [f"{path}: {was!r:.300} became {now!r:.300}"]


def same(was: object, now: object, *about: object) -> None:
    found = differences(was, now)
    assert not found, "\n".join([repr(about), *found[:10]])


def tell(seed: int, steps: int) -> tuple[int, int]:
    """Random work; returns how many transactions stood, and how many came to nothing."""
    mixed = MixedShard(seed)
    rng = mixed.rng
    stood = failed = 0
    for step in range(steps):
        choice = rng.random()
        if choice < 0.2:
            mixed.take()
        elif choice < 0.3:
            mixed.now_us += rng.choice([1, SECOND_US, 40 * SECOND_US])
            mixed.shard.step([], mixed.now_us, 0)
        elif choice < 0.4:
            before = mixed.seen()
            if choice < 0.35:
                mixed.shard.checkpoint(mixed.now_us, 0)
            else:
                mixed.restart()
            same(before, mixed.seen(), seed, step, choice)
        else:
            parts = [mixed.part() for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.3:
                parts.append(mixed.failing())
            before = mixed.seen()
            reply = mixed.call(co.Transaction(parts))
            if reply.committed:
                stood += 1
                mixed.used(parts)
            else:
                failed += 1
                same(before, mixed.seen(), seed, step, parts)
    before = mixed.seen()
    mixed.restart()
    same(before, mixed.seen(), seed)
    mixed.shard.close()
    return stood, failed


@pytest.mark.parametrize("seed", seeds(4, range(8)))
def test_whole_or_not_at_all(seed: int) -> None:
    stood, failed = tell(seed, 80)
    assert min(stood, failed) >= 4


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_whole_or_not_at_all_for_long(seed: int) -> None:
    tell(seed, 200)
