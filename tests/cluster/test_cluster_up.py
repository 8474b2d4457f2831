"""A whole cluster by one command: it serves, it outlives a broker, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fasti
from tests.cluster.nats_rig import wait_until

_UP = ("--brokers", "2", "--nats", "1", "--shards", "2", "--listen", "127.0.0.1:0")


class Up:
    """`fasti cluster up` and what it has said so far."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._log = directory.with_suffix(".out")
        command = [sys.executable, "-m", "fasti", "cluster", "up", "--dir", str(directory), *flags]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.said
            return re.search(pattern, self.said)

        found: re.Match[str] = wait_until(look, pattern)
        return found

    @property
    def address(self) -> str:
        return self.wait_for(r"FASTI_ADDRESS=(\S+)\n")[1]

    @property
    def pids(self) -> dict[str, int]:
        pairs = self.wait_for(r"processes: (.*)\n")[1].split(", ")
        return {name: int(pid) for name, pid in (pair.split() for pair in pairs)}


@contextmanager
def running(directory: Path, *flags: str) -> Iterator[Up]:
    up = Up(directory, *flags)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.terminate()
        up.process.wait(60)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def status(address: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fasti", "cluster", "status", "--json", "-a", address]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    view: dict[str, Any] = json.loads(result.stdout)
    return view


def test_a_cluster_outlives_a_broker_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", *_UP) as up:
        address, pids = up.address, up.pids
        assert pids.keys() == {"nats1", "b1", "b2"}
        view = status(address)
        assert (view["cluster"], view["leaderless"]) == ("local", [])
        assert [member["name"] for member in view["members"]] == ["b1", "b2"]
        assert {member["state"] for member in view["members"]} == {"alive"}
        assert all(shard["leader"] in ("b1", "b2") for shard in view["shards"])
        with fasti.connect(address) as client:
            client.create_topic("emails")
            with client.producer("emails") as producer:
                producer.send(b"before", key="user-7").result()
            os.kill(pids["b1"], signal.SIGKILL)
            # The shards of the one that is gone are led by the other, or by itself when it is back.
            with client.producer("emails") as producer:
                producer.send(b"after", key="user-8").result()
            assert client.topic("emails").counts["ready"] == 2
        up.wait_for(r"b1 ended \(SIGKILL\)")
        back = int(up.wait_for(r"b1 is back, pid (\d+)")[1])
        assert back != pids["b1"]
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 0, up.said
        assert not any(map(lives, (back, *pids.values())))
    with running(tmp_path / "cluster") as again:
        assert again.address == address
        with fasti.connect(address) as client:
            assert client.topic("emails").counts["ready"] == 2
        pids = again.pids
        # However it ends, nothing outlives it.
        again.process.kill()
        again.process.wait()
        wait_until(lambda: not any(map(lives, pids.values())), "the end of all processes")
