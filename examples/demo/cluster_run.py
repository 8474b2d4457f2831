"""A whole cluster for the demo: `fasti cluster up` as a process, and the pids of what it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fasti.client.client import connect
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.placement import place_shards
from fasti.doors.cluster_up import CLUSTER
from fasti.doors.nats_servers import tied
from fasti.errors import FastiError

_START_S = 130.0
_STOP_S = 60.0
_LOOK_S = 0.05
# So long one question about the leaders may take.
_ASK_S = 2.0


class ClusterRun:
    """Three NATS servers and three brokers, in a new directory. Ends them with its block."""

    def __init__(self, directory: Path, happened: Callable[[str], None]) -> None:
        """`happened` is called in another thread. Raises an error if the cluster doesn't come up."""
        self._happened = happened
        flags = ["--dir", str(directory), "--listen", "127.0.0.1:0", "--json"]
        command = [sys.executable, "-m", "fasti", "cluster", "up", *flags]
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._log = directory.parent / f"{directory.name}.log"
        self._pids: dict[str, int] = {}
        self._facts: dict[str, Any] | None = None
        self._ready = threading.Event()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                tied(command, os.getpid()),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C in a terminal is for the demo, which then ends this one.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="reads the cluster", daemon=True)
        self._reader.start()

    def __enter__(self) -> ClusterRun:
        try:
            self._ready.wait(_START_S)
            if self._facts is None:
                words = self._log.read_text().strip().splitlines()
                raise FastiError(words[-1] if words else "the cluster did not come up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "up":
                self._pids = dict(event["processes"])
                self._facts = event
                self._ready.set()
            elif event["event"] == "back":
                self._pids[event["name"]] = event["pid"]
                self._happened(f"{event['name']} was started again")
        self._ready.set()

    @property
    def address(self) -> str:
        """For clients."""
        assert self._facts is not None
        return str(self._facts["address"])

    @property
    def shards(self) -> int:
        """How many."""
        assert self._facts is not None
        return int(self._facts["shards"])

    def kill(self, name: str) -> None:
        """With SIGKILL; it is started again by whoever runs the cluster."""
        os.kill(self._pids[name], signal.SIGKILL)

    def leaders_of_journals(self) -> dict[int, str]:
        """The NATS server that leads each shard's journal."""
        assert self._facts is not None
        connection = NatsConnection(NatsOptions(tuple(self._facts["nats"])))
        try:
            names = {n: ShardNames.of(CLUSTER, n).journal_stream for n in range(self.shards)}
            states = {n: connection.stream_state(name) for n, name in names.items()}
        finally:
            connection.close()
        return {n: state.leader for n, state in states.items() if state is not None}

    def close(self) -> None:
        """All of its processes end, softly if they do."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            # What it has started ends with it.
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


class LeaderWatch:
    """Asks who leads what, again and again, and tells of every change. For a block."""

    def __init__(self, address: str, tell: Callable[..., None], now_us: Callable[[], int]) -> None:
        self._address, self._tell, self._now_us = address, tell, now_us
        self._over = threading.Event()
        # By shard: the broker, and its epoch. Replaced as a whole.
        self.leaders: dict[int, tuple[str, int]] = {}
        # Whether each broker leads its share, and no shard will move while all of them live.
        self.settled = False
        self._thread = threading.Thread(target=self._run, name="watches leaders", daemon=True)

    def __enter__(self) -> LeaderWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with connect(self._address) as client:
            while not self._over.wait(_LOOK_S):
                try:
                    view = client.transport.call("cluster", timeout=_ASK_S)[0]
                except FastiError:
                    continue
                self._take(view)

    def _take(self, view: dict[str, Any]) -> None:
        at_us, known = self._now_us(), dict(self.leaders)
        weights = {each["name"]: each["weight"] for each in view["members"]}
        ranked = place_shards(range(len(view["shards"])), weights)
        led = {shard["shard"]: shard["leader"] for shard in view["shards"]}
        self.settled = all(ranking.first == led[number] for number, ranking in ranked.items())
        for shard in view["shards"]:
            number, leader, epoch = shard["shard"], shard["leader"], shard["epoch"]
            # Of two brokers that are asked one may know more; the higher epoch counts.
            if leader is not None and epoch > known.get(number, ("", 0))[1]:
                known[number] = (leader, epoch)
                self._tell("led", at_us, number, leader, epoch)
        self.leaders = known
