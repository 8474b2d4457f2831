"""What benchmarks over the wire share: a broker in one process, clients in others.

`python -m benchmarks.wire JOB ADDRESS {arguments}` is one client process: it says `ready`, waits
for a line, does its job and prints the result as one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Job = Callable[..., Figures]


class ClientProcess:
    """A job in a process of its own. It begins with `go`; `result` waits for what it found."""

    def __init__(self, job: str, address: str, **arguments: Any) -> None:
        self._job = job
        command = [sys.executable, "-m", "benchmarks.wire", job, address, json.dumps(arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._line()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def go(self) -> None:
        """Lets it begin, or end, if it is one that waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def await_word(self) -> None:
        """Waits for a line that it says before its result."""
        self._line()

    def result(self) -> Figures:
        """What it found."""
        found: Figures = json.loads(self._line())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        return found

    def kill(self) -> None:
        """Ends it in the middle, as a crash would."""
        self._process.kill()
        # Its pipes go with it.
        self._process.communicate()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client {self._job!r} ended with {self._process.wait()}")
        return line


def run_job(job: str, address: str, **arguments: Any) -> Figures:
    """One client process from its beginning to its end."""
    process = ClientProcess(job, address, **arguments)
    process.go()
    return process.result()


@contextmanager
def broker(directory: Path | None, **settings: Any) -> Iterator[BrokerProcess]:
    """A broker on a free port and a directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as data:
        with BrokerProcess(Path(data) / "data", settings=settings) as process:
            yield process


def cpu_seconds(pid: int) -> float:
    """What a process has used of the cores so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """A process's anonymous memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return round(int(line.split()[1]) / 1024, 1)
    return float("nan")


def sync_counts(address: str) -> dict[float, int]:
    """The broker's journal syncs so far: how many took at most so many seconds."""
    import fasti

    with fasti.connect(address) as client:
        text = client.metrics()
    found = re.findall(
        r'^fasti_journal_sync_seconds_bucket\{le="([^"]+)"\} (\S+)$', text, re.MULTILINE
    )
    return {float(bound): int(float(count)) for bound, count in found}


def sync_p99_ms(before: dict[float, int], after: dict[float, int]) -> float | None:
    """Of 100 syncs between two readings, 99 took at most this long; None if that can't be told."""
    counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    total = max(counts.values(), default=0)
    within = [bound for bound, count in counts.items() if total and count >= 0.99 * total]
    return round(min(within) * 1e3, 3) if within and min(within) != float("inf") else None


def percentiles_ms(microseconds: Any) -> Figures:
    """As every figure of lateness is told."""
    values = np.asarray(microseconds) / 1e3
    if not len(values):
        return {"count": 0}
    names = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9}
    return {
        "count": len(values),
        "earliest_ms": round(float(values.min()), 3),
        **{name: round(float(np.percentile(values, q)), 3) for name, q in names.items()},
        "max_ms": round(float(values.max()), 3),
    }


def main() -> None:
    """One client, in this process."""
    # Imported here: they import this module.
    from benchmarks import lateness_jobs, throughput_jobs

    jobs: dict[str, Job] = {**throughput_jobs.JOBS, **lateness_jobs.JOBS}
    job, address, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    module, _, function = job.partition(":")
    if function:
        # A job of one of the topic kinds: `kinds_log:follow`.
        jobs[job] = getattr(import_module(f"benchmarks.{module}"), function)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(jobs[job](address, **arguments)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
