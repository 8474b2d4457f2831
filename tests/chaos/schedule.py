"""Which faults come, in which order, for how long: drawn from a seed alone, so that a run can be had again.

Two lanes go on at the same time: one for what befalls brokers, clients and consumers, one for the NATS servers. In a
lane a fault begins when the one before is healed. What a target is (a broker by its number; the server that leads a
shard's journal) is drawn too, and looked up when the fault begins. When exactly a fault meets which request is the
machine's affair: the same seed gives the same faults, not the same history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

BROKERS, SERVERS = "brokers", "servers"


class Fault(NamedTuple):
    """One fault: ``pause_s`` after the one before was healed, of something, for a time."""

    lane: str
    kind: str
    # The broker's number, the shard's whose journal's leader is meant, or the server's.
    target: int
    lasts_s: float
    pause_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target} for {self.lasts_s:.1f} s"


class Kind(NamedTuple):
    """A kind of fault: how often it comes, and how long it lasts."""

    weight: int
    least_s: float
    most_s: float


KINDS: dict[str, dict[str, Kind]] = {
    BROKERS: {
        "broker_killed": Kind(6, 0.1, 4),
        "broker_stopped": Kind(2, 0.1, 4),
        "broker_paused": Kind(4, 1, 6),
        "broker_cut_from_nats": Kind(3, 0.5, 6),
        "broker_held_from_nats": Kind(3, 0.5, 6),
        "clients_cut_from_broker": Kind(3, 0.1, 4),
        "clients_held_from_broker": Kind(2, 0.5, 4),
        "broker_joins": Kind(2, 12, 20),
        "brokers_killed": Kind(1, 0.1, 2),
        "all_killed": Kind(1, 0.1, 2),
        "consumer_paused": Kind(2, 1, 15),
        "consumer_killed": Kind(2, 0, 0),
    },
    SERVERS: {
        "leader_killed": Kind(3, 0.1, 8),
        "leader_paused": Kind(3, 1, 6),
        "leader_stopped": Kind(2, 0.1, 6),
        "follower_killed": Kind(3, 0.1, 8),
        "follower_paused": Kind(2, 1, 6),
        "leader_moved": Kind(4, 0, 0),
        "majority_killed": Kind(1, 3, 15),
        "majority_paused": Kind(1, 1, 8),
        "server_cut_off": Kind(2, 1, 8),
        "server_slow": Kind(2, 2, 8),
    },
}


def faults(lane: str, seed: int, brokers: int, shards: int, rest_s: float) -> Iterator[Fault]:
    """The faults of a lane, without end; `rest_s` is the mean pause between them."""
    rng = random.Random(f"{lane}-{seed}")
    kinds = KINDS[lane]
    while True:
        (name,) = rng.choices(list(kinds), [kind.weight for kind in kinds.values()])
        kind = kinds[name]
        target = rng.randrange(brokers if lane == BROKERS else shards)
        lasts_s = rng.uniform(kind.least_s, kind.most_s)
        yield Fault(lane, name, target, round(lasts_s, 2), round(rng.uniform(0.2, 2 * rest_s), 2))
