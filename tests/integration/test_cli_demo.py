"""The demo on a real broker, small: it keeps its promises over a SIGKILL."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app


def test_a_small_run_keeps_its_promises(tmp_path: Path) -> None:
    place, near, far = tmp_path / "data", 40, 20
    arguments = ["demo", "--near", str(near), "--far", str(far), "--seconds", "2", "--json"]
    arguments += ["--no-pipeline"]
    result = CliRunner().invoke(app, [*arguments, "--data", str(place)])
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0, verdict
    assert verdict["ok"]
    # The messages of the traffic that goes on come on top.
    assert verdict["scheduled"] > near + far
    assert verdict["up"]["earliest_ms"] >= 0
    # However few there are, most are left to be delivered.
    assert verdict["cancelled"] <= 0.15 * (near + far)
    assert verdict["delivered"] >= 0.5 * near
    assert verdict["outage_seconds"] > 0
    checked = CliRunner().invoke(app, ["storage", "verify", str(place)])
    assert checked.exit_code == 0
    again = CliRunner().invoke(app, [*arguments, "--data", str(place)])
    assert again.exit_code == ERROR_EXITS["already_exists"]
