"""NATS servers for tests: one or three processes on loopback, which can be killed, stopped and restarted."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.doors.nats_servers import tied
from fasti.errors import FastiError

_SERVER = Path(sys.executable).parent / "nats-server"
_numbers = itertools.count(1)
# A server is tied to the thread that starts it, and those of tests come and go.
_starter = ThreadPoolExecutor(1, thread_name_prefix="nats-starter")
# Whoever has no name may do all the rest.
_SYSTEM = "accounts { $SYS { users: [{ user: system, password: secret }] } }"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value; for states that nothing tells of."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)


class NatsServers:
    """`count` servers of one cluster, each with a directory of its own. Always `close` it."""

    def __init__(
        self,
        count: int = 3,
        max_payload: int = 1 << 20,
        stores: list[Path] | None = None,
        max_file: str = "4G",
        sync: str = "always",
        extra: str = "",
        started: bool = True,
    ) -> None:
        """`stores` has a directory for each server's streams, which are somewhere else otherwise; `max_file` is
        what they may take in all; `extra` is added to each server's settings; without it there is a user of
        the system account. With `started=False` each is to be started.
        """
        self._max_file = max_file
        self.directory = Path(tempfile.mkdtemp(prefix="fasti-nats-"))
        self._stores = stores or [self.directory / f"n{number}" for number in range(count)]
        ports = free_ports(2 * count)
        self.ports, self._routes = ports[:count], ports[count:]
        self._max_payload, self._sync, self._extra = max_payload, sync, extra or _SYSTEM
        self.system_credentials = self.directory / "system.txt"
        self.system_credentials.write_text("system:secret\n")
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        for number in range(count):
            self._write(number)
            if started:
                self.start(number)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def _write(self, number: int) -> None:
        routes = ", ".join(f'"nats://{place}"' for place in self._routes_of(number))
        listen = f"127.0.0.1:{self._routes[number]}"
        cluster = f"""
cluster {{ name: rig, listen: "{listen}", routes: [{routes}] {self._cluster_options(number)} }}
"""
        (self.directory / f"n{number}.conf").write_text(
            f"""
server_name: n{number}
listen: "127.0.0.1:{self.ports[number]}"
max_payload: {self._max_payload}
jetstream {{ store_dir: "{self._stores[number]}", sync_interval: {self._sync}, max_file: {self._max_file} }}
{self._extra}
"""
            + (cluster if len(self.ports) > 1 else "")
        )

    def _routes_of(self, number: int) -> list[str]:
        """Where a server finds the others."""
        return [f"127.0.0.1:{port}" for port in self._routes]

    def _cluster_options(self, number: int) -> str:
        return ""

    def start(self, number: int) -> None:
        """It ends with this process, however that ends."""
        config = self.directory / f"n{number}.conf"
        command = tied([str(_SERVER), "-c", str(config)], os.getpid())
        with open(self.directory / f"n{number}.log", "ab") as log:
            begin = partial(subprocess.Popen, command, stdout=log, stderr=log)
            self.processes[number] = _starter.submit(begin).result()

    def kill(self, number: int) -> None:
        self._end(number, signal.SIGKILL)

    def stop(self, number: int) -> None:
        self._end(number, signal.SIGTERM)

    def pause(self, number: int) -> None:
        """SIGSTOP: returns when it does nothing any more."""
        process = self.processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        process = self.processes[number]
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def log(self, number: int) -> str:
        return (self.directory / f"n{number}.log").read_text(errors="replace")

    def _end(self, number: int, how: signal.Signals) -> None:
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.send_signal(how)
            process.wait(20)

    def connect(self, **options: Any) -> NatsConnection:
        """A connection, once the servers have found each other and keep streams."""
        connection: NatsConnection = wait_until(lambda: self._try_connect(options), "a connection")
        wait_until(lambda: _answers(connection), "a leader of the servers")
        return connection

    def _try_connect(self, options: dict[str, Any]) -> NatsConnection | None:
        try:
            return NatsConnection(NatsOptions(self.urls, **options))
        except FastiError:
            return None

    def close(self) -> None:
        for number in range(len(self.processes)):
            self._end(number, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def nats_servers(count: int, **options: Any) -> Iterator[NatsServers]:
    """Servers that have found each other and keep streams."""
    servers = NatsServers(count, **options)
    try:
        servers.connect().close()
        yield servers
    finally:
        servers.close()


def _answers(connection: NatsConnection) -> bool:
    try:
        return connection.stream_state("no-such-stream", timeout_s=0.5) is None
    except FastiError:
        return False


def new_cluster() -> str:
    """The name of a cluster that no other test has."""
    return f"test{next(_numbers)}"
