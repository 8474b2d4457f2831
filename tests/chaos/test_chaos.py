"""A minute of chaos, as `make chaos` runs it; and that it leaves nothing behind when it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.nats_rig import wait_until
from tests.integration.serve_rig import children
from tests.integration.trouble.rig import ROOT


def chaos(directory: Path, minutes: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos", "--minutes", str(minutes), "--seed", "5"]
    command += ["--directory", str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    process = chaos(tmp_path, 1)
    said, _ = process.communicate(timeout=800)
    assert process.returncode == 0, said
    assert "every promise was kept" in said


@pytest.mark.long
def test_it_ends_what_it_started_when_it_is_stopped(tmp_path: Path) -> None:
    with chaos(tmp_path, 10) as process:
        assert process.stdout is not None
        assert "the cluster is up" in process.stdout.readline()
        # Three servers, three brokers, and some workers.
        wait_until(lambda: len(children(process.pid)) > 8, "workers")
        started = children(process.pid)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(100) == 130
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "their end")
