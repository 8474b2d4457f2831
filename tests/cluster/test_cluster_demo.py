"""The demo on a cluster, small: a broker and a NATS server are killed, and every promise is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_small_run_keeps_its_promises(tmp_path: Path) -> None:
    numbers = ["--near", "200", "--far", "20", "--seconds", "12"]
    command = [sys.executable, "-m", "fasti", "demo", "--cluster", "--json", *numbers]
    result = subprocess.run(
        [*command, "--data", str(tmp_path / "data")], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    verdict = json.loads(result.stdout)
    assert verdict["ok"]
    assert verdict["scheduled"] > 220
    assert verdict["acknowledged"] == verdict["delivered"]
    told = [what for _, what in verdict["story"]]
    kills = [what for what in told if "is killed with SIGKILL" in what]
    assert [what[:4] for what in kills][1] == "nats"
    assert [each["name"].partition(" of ")[0] for each in verdict["phases"]] == [
        "while nothing is wrong",
        "from the kill",
        "from the kill",
    ]
    # Whoever was killed is not the one that leads its shards next.
    killed = kills[0].split()[0]
    after = told[told.index(kills[0]) :]
    assert any("leads shard" in what and not what.startswith(killed) for what in after)
