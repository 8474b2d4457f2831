"""The rig's NATS servers end with the process that started them, also when that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.nats_rig import wait_until

_STARTS = """
import sys
from tests.cluster.nats_rig import NatsServers
servers = NatsServers(1)
servers.connect()
print(servers.processes[0].pid, servers.directory, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_server_ends_with_a_process_that_is_killed() -> None:
    command = [sys.executable, "-c", _STARTS]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[0])
        assert is_running(pid)
        process.kill()
    wait_until(lambda: not is_running(pid), "the end of the server")
