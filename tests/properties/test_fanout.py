"""Fan-out beside a naive model: bindings that change while messages come, keys that are taken in one
topic of several, batches that are sent again, transactions, checkpoints and restarts.
"""

from __future__ import annotations

import random

import pytest

from fasti.core.routing import fanout
from fasti.storage.files.memory_files import MemoryFiles
from tests.properties.fanout_rig import KEYS, PATTERNS, SOURCES, TARGETS, Rig
from tests.seeds import seeds

WORK = {
    "produce": 10,
    "bind": 6,
    "unbind": 2,
    "produce_late": 3,
    "produce_numbered": 3,
    "produce_again": 3,
    "transact": 3,
    "cancel": 4,
    "lease": 3,
    "remake": 1,
    "checkpoint": 1,
    "restart": 1,
}


def work(rig: Rig, rng: random.Random) -> None:
    name = rng.choices(list(WORK), list(WORK.values()))[0]
    topic, target = rng.choice(SOURCES), rng.choice(TARGETS)
    if name in ("bind", "unbind"):
        getattr(rig, name)(topic, rng.choice(PATTERNS), target)
    elif name == "produce":
        is_log = topic == "events"
        policy = "reject" if is_log else rng.choice(["reject", "reject", "replace", "keep"])
        rig.produce(topic, policy, rng.choice(["", "", "billing"]), rng.random() < 0.3)
    elif name == "produce_late":
        rig.produce_late(topic)
    elif name == "produce_numbered":
        rig.produce_numbered(topic, rng.choice(["p-1", "p-2"]))
    elif name == "produce_again":
        rig.produce_again(rng.choice(["p-1", "p-2"]))
    elif name == "transact":
        rig.transact(topic, rng.choice(SOURCES))
    elif name == "cancel":
        rig.cancel(rng.choice(["orders", "emails", "audit", "urgent"]), rng.choice(KEYS[2:]))
    elif name == "lease":
        rig.lease(rng.choice(["orders", "emails", "audit", "urgent"]))
    elif name == "remake":
        rig.remake(rng.choice(["emails", "audit", "events", "urgent"]))
    else:
        getattr(rig, name)()


@pytest.fixture(autouse=True)
def route_nothing_here(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other story is one of batches too large for the engine to route."""
    if seed % 2:
        monkeypatch.setattr(fanout, "ROUTED_HERE_MAX", 0)


@pytest.mark.parametrize("seed", seeds(6, range(12)))
def test_every_message_goes_everywhere_or_nowhere(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(MemoryFiles(), rng)
    for _ in range(80):
        work(rig, rng)
        rig.compare()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_more_of_it(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(MemoryFiles(), rng)
    for _ in range(150):
        work(rig, rng)
        rig.compare()
