"""The faults of a seed are always the same, and those of a lane are what the lane can make."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.schedule import BROKERS, KINDS, SERVERS, Fault, faults
from tests.chaos.trouble import Trouble


def first(lane: str, seed: int) -> list[Fault]:
    return list(islice(faults(lane, seed, brokers=3, shards=4, rest_s=3.0), 300))


@pytest.mark.parametrize("lane", [BROKERS, SERVERS])
def test_a_seed_gives_the_same_faults_again(lane: str) -> None:
    assert first(lane, 7) == first(lane, 7)
    assert first(lane, 7) != first(lane, 8)


@pytest.mark.parametrize("lane", [BROKERS, SERVERS])
def test_every_kind_comes_and_can_be_made(lane: str) -> None:
    drawn = first(lane, 1)
    assert {fault.kind for fault in drawn} == KINDS[lane].keys()
    for fault in drawn:
        kind = KINDS[lane][fault.kind]
        assert kind.least_s <= fault.lasts_s <= kind.most_s
        assert 0 <= fault.target < (3 if lane == BROKERS else 4)
        assert callable(getattr(Trouble, f"_{fault.kind}"))
