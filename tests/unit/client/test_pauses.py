"""How long clients wait before they try again."""

from __future__ import annotations

from fasti.client.pauses import Pauses, pause_s
from fasti.errors import Overloaded, Unavailable

GONE = Unavailable("gone")
SHARD_GONE = Unavailable("gone", details={"shard": 2})
SHARD_MOVED = Unavailable("moved", details={"shard": 2}, retry_after_us=0)


def test_pauses_grow_up_to_two_seconds() -> None:
    pauses = [pause_s(GONE, tries) for tries in range(1, 12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.04, 2.0)


def test_a_shard_whose_leader_is_gone_is_looked_for_often_and_not_for_ever() -> None:
    assert max(pause_s(SHARD_GONE, tries) for tries in range(1, 40)) == 0.1
    assert pause_s(SHARD_GONE, 100) == 2.0


def test_where_a_shard_is_known_to_be_is_gone_to_at_once_and_then_with_pauses() -> None:
    pauses = Pauses(lambda: 1.0)
    assert [pauses.next_s(SHARD_MOVED) for _ in range(3)] == [0.0, 0.08, 0.1]
    pauses.well()
    assert pauses.next_s(SHARD_MOVED) == 0.0


def test_what_the_broker_asks_for_is_heeded() -> None:
    pauses = Pauses(lambda: 1.0)
    assert pauses.next_s(Overloaded("full", retry_after_us=500_000)) == 0.5
