"""`fasti bench cluster`, in its smallest form."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_kill_is_measured_and_everything_is_gone_afterwards() -> None:
    command = [sys.executable, "-m", "fasti", "bench", "cluster", "--only", "kill", "--kills", "1"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    figures = json.loads(ran.stdout)
    # 1 says that something took longer than asked, which a busy machine may.
    assert ran.returncode in (0, 1), ran.stderr
    assert figures["kill"]["errors_count"] == figures["kill"]["leases_lost"] == 0
    (kill,) = figures["kill"]["kills"]
    assert 0 < kill["served_s"] < float("inf")
