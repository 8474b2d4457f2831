"""One thread's turns among standbys: who is stepped, who is let go, and who waits for a take-over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fasti.broker.host import Host
from fasti.broker.threads import Threads
from fasti.cluster.standby import Standby
from fasti.doors.cluster_standbys import Standbys


class FakeStandby:
    """Loads in three steps, and then follows what it hears of."""

    def __init__(self, shard: int, size_bytes: int) -> None:
        self.shard, self._size_bytes = shard, size_bytes
        self.steps = self.sequence = self.heard = 0
        self.hurries = False

    @property
    def used_bytes(self) -> int:
        return self._size_bytes if self.steps else 0

    def hear(self, sequence: int, version: int, at_us: int) -> bool:
        self.heard = max(self.heard, sequence)
        return self.heard > self.sequence

    def hurry(self) -> None:
        self.hurries = True

    def step(self) -> float | None:
        self.steps += 1
        if self.steps >= 3:
            self.sequence = self.heard
        return 0.0 if self.steps < 3 else None


class Rig:
    def __init__(self, memory_bytes: int = 1000) -> None:
        self.led_bytes, self.made, self.told = 0, [], 0  # type: ignore[var-annotated]
        self.size_bytes = 100
        threads = Threads()
        host = SimpleNamespace(
            threads=threads,
            settings=SimpleNamespace(memory_bytes=memory_bytes),
            services={},
            all_shards=self.shards,
        )
        self.host = host
        self.standbys = Standbys(cast(Host, host), self.make, self.tell)

    def shards(self) -> list[Any]:
        memory = SimpleNamespace(used_bytes=self.led_bytes)
        return [SimpleNamespace(engine=SimpleNamespace(memory=memory))]

    def make(self, shard: int) -> Standby:
        self.made.append(FakeStandby(shard, self.size_bytes))
        return cast(Standby, self.made[-1])

    def tell(self) -> None:
        self.told += 1

    def poll(self) -> float | None:
        return self.standbys._poll()

    def settle(self) -> None:
        while self.poll() is not None:
            pass


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_asks_for_nothing_until_it_hears_of_more(rig: Rig) -> None:
    rig.standbys.follow(3)
    rig.settle()
    (standby,) = rig.made
    assert standby.steps == 3
    rig.standbys.hear(3, 9, 1, 0)
    rig.settle()
    assert (standby.sequence, rig.told) == (9, 1)
    assert rig.standbys.find(3) is standby
    rig.standbys.leave(3)
    assert 3 not in rig.standbys
    assert rig.poll() is None


def test_one_that_is_taken_over_is_left_alone(rig: Rig) -> None:
    rig.standbys.follow(3)
    rig.settle()
    (standby,) = rig.made
    assert rig.standbys.take(3) is standby
    rig.standbys.hear(3, 9, 1, 0)
    assert rig.poll() is None
    assert standby.sequence == 0
    rig.standbys.put_back(3)
    rig.settle()
    assert standby.sequence == 9
    assert rig.standbys.take(4) is None


def test_leaders_go_first_where_memory_is_short(rig: Rig) -> None:
    rig.standbys.follow(1)
    rig.size_bytes = 400
    rig.standbys.follow(2)
    rig.settle()
    small, large = rig.made
    assert rig.standbys.used_bytes == 500
    rig.led_bytes = 700
    wait_s = rig.poll()
    assert rig.standbys.find(1) is small
    assert rig.standbys.find(2) is not large
    assert rig.standbys.used_bytes == 100
    # It is tried again, and not at once.
    assert rig.poll() is not None
    assert wait_s is None or wait_s >= 0
    assert rig.standbys.find(2).sequence == 0  # type: ignore[union-attr]
    # Leaders alone may be above it: there is nothing to let go.
    rig.standbys.leave(1)
    rig.led_bytes = 2000
    rig.poll()


def test_a_leader_that_may_be_gone_makes_its_standbys_hurry(rig: Rig) -> None:
    for shard in (1, 2):
        rig.standbys.follow(shard)
    rig.settle()
    rig.standbys.hurry([2, 7])
    assert [standby.hurries for standby in rig.made] == [False, True]
    steps = rig.made[1].steps
    rig.poll()
    assert rig.made[1].steps == steps + 1
