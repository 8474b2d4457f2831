"""Runs as `fasti bench peers` writes them, made up."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.run import FORMAT

LIMITS = {
    "disk": {"sync_p50_ms": 0.2, "sync_p99_ms": 0.5},
    "loopback": {"p50_ms": 0.03, "p99_ms": 0.08},
}


def a_run(
    cells: dict[tuple[str, str], list[dict[str, Any]]], source: str = "abc", **more: Any
) -> dict[str, Any]:
    """A run with these figures, round by round, for each peer and scenario."""
    measured = [
        {"peer": peer, "scenario": scenario, "round": number, "took_s": 1.0, "figures": figures}
        for (peer, scenario), rounds in cells.items()
        for number, figures in enumerate(rounds)
    ]
    return {
        "format": FORMAT,
        "seed": 7,
        "rounds": max((len(rounds) for rounds in cells.values()), default=0),
        "quick": False,
        "started": "2026-11-17T22:30:00+00:00",
        "ended": "2026-11-17T22:34:00+00:00",
        "commit": "1234567",
        "source": source,
        "machine": {"cores": 2, "memory_gib": 23.4, "load_before": 0.1},
        "versions": {peer: "1.0" for peer, _ in cells},
        "clients": {"redis": "8.1.0"},
        "skipped": {},
        "limits": [LIMITS],
        "left_out": 0,
        "cells": measured,
        **more,
    }
