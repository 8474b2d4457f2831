"""What `fasti bench cluster` makes of its figures, and of what it is given."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.cluster import PARTS, longest_pause_s, phases, served_s, shortfalls
from benchmarks.cluster_rig import BROKERS, SHARDS, choose_names
from benchmarks.payloads import payloads
from fasti.cluster.placement import place_shards


def test_what_is_not_as_asked_is_named_and_what_was_not_measured_is_not() -> None:
    figures = {"kill": {"median_s": 0.4, "worst_s": 2.5}, "produce": {"json": {"of_bare": 0.5}}}
    assert shortfalls(figures) == [
        "produce.json.of_bare is 0.5, asked: at least 0.6",
        "kill.worst_s is 2.5, asked: at most 1.5",
    ]


def test_a_part_that_failed_is_named() -> None:
    assert shortfalls({"join": {"failed": "too late", "logs": {}}}) == ["join failed: too late"]


def test_every_part_is_counted() -> None:
    assert phases([], 3, 20) == phases(PARTS, 3, 20)
    assert phases(["join"], 3, 20) == 2


def test_each_broker_leads_a_shard_and_the_fourth_gets_one() -> None:
    names = choose_names()

    def firsts(count: int) -> list[str | None]:
        places = place_shards(range(SHARDS), dict.fromkeys(names[:count], 1.0))
        return [places[shard].first for shard in range(SHARDS)]

    assert set(firsts(BROKERS)) == set(names[:BROKERS])
    assert names[BROKERS] in firsts(BROKERS + 1)


def test_payloads_differ_and_are_what_they_are_called() -> None:
    for kind in ("random", "json"):
        made = payloads(kind, 100, 1_000)
        assert len(set(made)) == 100
        assert min(map(len, made)) >= 1_000
        assert made == payloads(kind, 100, 1_000)
    assert json.loads(payloads("json", 1, 1_000)[0])["lines"]


# Shard, sent, came; in microseconds.
ROWS = np.array(
    [[1, 900_000, 1_100_000], [0, 1_000_000, 1_050_000], [1, 1_400_000, 1_500_000]], dtype=np.int64
)


def test_served_again_counts_only_what_was_sent_after_the_kill() -> None:
    assert served_s(ROWS, 1, 1.0) == 0.5
    assert served_s(ROWS, 2, 1.0) == float("inf")


def test_a_pause_that_has_not_ended_counts_to_the_end() -> None:
    assert longest_pause_s(ROWS, [1], 1.0, 1.6) == 0.4
    assert longest_pause_s(ROWS, [1], 1.0, 3.0) == 1.5
    assert longest_pause_s(ROWS, [2], 1.0, 3.0) == 2.0
