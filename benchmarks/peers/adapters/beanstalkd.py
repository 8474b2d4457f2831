"""beanstalkd: `put` with a delay in whole seconds, `reserve`, `delete`.

A delay has no fraction of a second, so what lies ahead may be a second late. A job can't be moved by
one call: it is reserved by its id and released with another delay, two round trips that are not atomic.
`reserve` gives one job at a time, so a batch is as many round trips.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.server import Server as BaseServer
from benchmarks.peers.server import output

_PRIORITY = 65536


class Server(BaseServer):
    """`-f0`: fsync after every write of the binlog."""

    package = program = "beanstalkd"

    @classmethod
    def version(cls) -> str:
        return output(cls.executable() or cls.program, "-v").removeprefix("beanstalkd ")

    def prepare(self) -> None:
        (self.directory / "binlog").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        binlog = str(Path(self.directory, "binlog"))
        return [
            str(self.executable()),
            "-l",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-b",
            binlog,
            "-f0",
        ]


def connect(address: str, queue: str) -> Client:
    """By greenstalk."""
    import greenstalk

    host, _, port = address.partition(":")
    place = (host, int(port))
    return Client(greenstalk.Client(place, encoding=None, use=queue, watch=queue))


class Client(peers.Client):
    """One connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def schedule(self, payload: bytes, due_us: int) -> Any:
        return self._connection.put(payload, delay=_delay_s(due_us), ttr=peers.LEASE_S)

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        for payload, due_us in zip(column, dues_us, strict=True):
            self.schedule(payload, due_us)

    def cancel(self, handle: Any) -> None:
        self._connection.delete(handle)

    def move(self, handle: Any, due_us: int) -> None:
        job = self._connection.reserve_job(handle)
        self._connection.release(job, priority=_PRIORITY, delay=_delay_s(due_us))

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        for job in self._jobs(idle_s):
            enough = handler(job.body)
            self._connection.delete(job)
            if enough:
                return

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        for job in self._jobs(idle_s):
            self._connection.delete(job)
            if handler(1):
                return

    def _jobs(self, idle_s: float) -> Any:
        import greenstalk

        while True:
            try:
                yield self._connection.reserve(timeout=math.ceil(idle_s))
            except greenstalk.TimedOutError:
                return

    def cancel_many(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._connection.delete(handle)

    def close(self) -> None:
        self._connection.close()


def _delay_s(due_us: int) -> int:
    return max(0, math.ceil((due_us - peers.now_us()) / 1e6))
