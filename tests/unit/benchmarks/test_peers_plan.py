"""What is measured in which order, and what a percentile is."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.peers.client import end_payload, is_end, is_warm, payload, read, warm_payload
from benchmarks.peers.percentiles import latencies_ms, percentile
from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.run import chosen, plan
from benchmarks.peers.scenarios import SCENARIOS


def test_every_pair_comes_once_in_each_round() -> None:
    scenarios = chosen(["send", "both", "beside_bulk"], quick=False, long=False)
    cells = plan([FASTI, "celery"], scenarios, 3, seed=1)
    pairs = Counter((cell.peer, cell.scenario) for cell in cells)
    # What only concerns Fasti is not asked of a peer; what a peer can't do is, and says why.
    assert pairs == {
        (FASTI, "send"): 3,
        (FASTI, "both"): 3,
        (FASTI, "beside_bulk"): 3,
        ("celery", "send"): 3,
        ("celery", "both"): 3,
    }
    assert [cell.round for cell in cells] == sorted(cell.round for cell in cells)


def test_a_seed_decides_the_order_and_each_round_has_its_own() -> None:
    scenarios = chosen([], quick=False, long=False)
    names = list(PEERS)
    cells = plan(names, scenarios, 2, seed=7)
    assert cells == plan(names, scenarios, 2, seed=7)
    assert cells != plan(names, scenarios, 2, seed=8)
    first = [(cell.peer, cell.scenario) for cell in cells if cell.round == 0]
    second = [(cell.peer, cell.scenario) for cell in cells if cell.round == 1]
    assert first != second
    assert sorted(first) == sorted(second)


def test_a_quick_run_leaves_out_what_takes_long() -> None:
    quick = {scenario.name for scenario in chosen([], quick=True, long=False)}
    full = {scenario.name for scenario in chosen([], quick=False, long=False)}
    everything = {scenario.name for scenario in chosen([], quick=False, long=True)}
    assert quick < full < everything == set(SCENARIOS)
    assert "steady_10000_1000000" not in quick
    assert "pending_cost" not in full


def test_what_a_peer_cannot_do_names_scenarios_that_there_are() -> None:
    for peer in PEERS.values():
        assert set(peer.cannot) <= set(SCENARIOS), peer.name
        assert all(peer.cannot.values()), peer.name


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.0, 1)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)
    assert latencies_ms([]) == {"count": 0}


def test_latencies_are_told_in_milliseconds() -> None:
    found = latencies_ms([3_000, 1_000, 2_000])
    assert found == {
        "count": 3,
        "min_ms": 1.0,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "p999_ms": 3.0,
        "max_ms": 3.0,
    }


def test_a_payload_carries_a_moment_and_a_number() -> None:
    assert len(payload(5, 6)) == 100
    assert read(payload(1_700_000_000_000_000, 12)) == (1_700_000_000_000_000, 12)
    moment_us, count = read(end_payload(20_000))
    assert is_end(moment_us)
    assert count == 20_000
    assert is_warm(read(warm_payload())[0])
    assert not is_end(read(payload(5))[0])
