"""Every scenario at a tiny size, with real servers: Fasti's always, peers' where they are installed.

Nothing here is timed: what counts is that each scenario comes to its figures, and that what the servers
promise holds (nothing lost, nothing cancelled twice), which the adapters assert.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.peers import fasti_costs
from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.run import run
from benchmarks.peers.scenarios import SCENARIOS, Bench, Sizes
from benchmarks.peers.server import Server, descendants

TINY = Sizes(
    seconds=0.2,
    send_rows=20,
    due_now_s=(0.2, 0.1, 0.1),
    change_rows=20,
    change_many_rows=2_000,
    loop_rows=200,
    instant_rows=100,
    fill_s=0.2,
    stream_rows=2_000,
    batch=100,
    steady_s=0.2,
    ahead_s=0.2,
    stock_s=0.2,
    memory_rows=500,
    crash_s=0.2,
)
MEASURED = [name for name, scenario in SCENARIOS.items() if not scenario.long]
# The same code at another number.
SAME = ("due_now_500", "steady_1000_", "steady_10000_1000000")
SOME = [name for name in MEASURED if not name.startswith(SAME) or name == "due_now_5000"]


@pytest.mark.parametrize("scenario", SOME)
def test_fasti_comes_to_every_figure(scenario: str, tmp_path: Path) -> None:
    found = run(["fasti"], [scenario], 1, seed=1, directory=tmp_path, sizes=TINY)
    (cell,) = found["cells"]
    assert "failed" not in cell["figures"], cell["figures"]
    assert set(SCENARIOS[scenario].figures) <= set(cell["figures"])
    if scenario == "restart":
        assert cell["figures"]["lost"] == 0
    if scenario.startswith(("due_now", "steady")):
        assert cell["figures"]["received"] == cell["figures"]["expected"]
        # Never early.
        assert cell["figures"]["min_ms"] >= 0
    assert list(tmp_path.iterdir()) == []


def test_costs_are_ratios_of_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fasti_costs, "_AT_A_TIME", 3)
    monkeypatch.setattr(fasti_costs, "_BATCHES", 20)
    peer = PEERS[FASTI]
    server: Server = peer.module.Server(tmp_path / "server")
    try:
        server.start()
        bench = Bench(peer, server, "costs", TINY, tmp_path)
        assert fasti_costs.with_topics(bench, 6)["ratio"] > 0
        assert fasti_costs.with_pending(bench, 5_000, 10_000)["many_us"] > 0
    finally:
        server.close()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PEERS if name != FASTI])
def test_a_peer_comes_to_its_figures_or_says_why_not(name: str, tmp_path: Path) -> None:
    if (why := PEERS[name].missing()) is not None:
        pytest.skip(why)
    # What the disk keeps after a crash is the peer's affair, and takes the longest.
    scenarios = [scenario for scenario in SOME if scenario != "restart"]
    found = run([name], scenarios, 1, seed=1, directory=tmp_path, sizes=TINY)
    for cell in found["cells"]:
        assert "failed" not in cell["figures"], cell
        if "cannot" not in cell["figures"] and cell["peer"] == name:
            figures = SCENARIOS[cell["scenario"]].figures
            reached = {figure for figure in figures if figure in cell["figures"]}
            assert reached, cell
    assert descendants(os.getpid()) == [os.getpid()]


def test_what_is_not_installed_is_skipped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.registry.PEERS_VENV", tmp_path / "nowhere")
    found = run(["celery"], ["send"], 1, seed=1, directory=tmp_path, sizes=TINY)
    assert found["skipped"] == {
        "celery": "the clients of the peers are not installed: make bench-peers-install"
    }
    assert {cell["peer"] for cell in found["cells"]} == {FASTI}
