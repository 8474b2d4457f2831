"""`fasti bench shards`: what several shards and processes cost, and what they give where there are cores.

On a machine whose cores the clients need too, a rate says little about brokers. So what is taken is the
brokers' own CPU for each message, over all processes of a broker, while one client sends batches that were
made before and takes them back by batches. A broker with one shard is measured in the same rounds, in
alternation: the ratio to it is what counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fasti
from benchmarks.limits import machine
from benchmarks.wire import broker, cpu_seconds, run_job
from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Show = Callable[[str], None]

# Of one shard's: what several may cost or must reach.
ASKED = {
    "four_shards_rate_of_one": 0.85,
    "two_processes_cpu_of_one": 1.15,
    "eight_idle_shards_threads_of_one": 1.3,
    "eight_idle_shards_memory_of_one": 1.3,
}


class Shape(NamedTuple):
    """How a broker is laid out."""

    processes: int
    shards: int

    @property
    def name(self) -> str:
        """In the figures."""
        return f"processes_{self.processes}_shards_{self.shards}"

    @property
    def settings(self) -> dict[str, Any]:
        """As `fasti serve` takes them. One of each is how a broker is without a word."""
        if self == ONE:
            return {}
        return {"shards": self.shards, "processes": self.processes}


ONE = Shape(1, 1)
# Whose messages are counted; two processes with two shards each beside one with all four.
_LOADED = (ONE, Shape(1, 4), Shape(2, 4))
# Threads that have nothing to do end after a while.
_QUIET_S = 15.0
_IDLE = (ONE, Shape(1, 4), Shape(1, 8))


def shards(directory: Path | None, rows: int, rounds: int, show: Show) -> Figures:
    """Each shape's rates and CPU for each message, and what it takes while nothing happens."""
    loaded: dict[str, list[Figures]] = {shape.name: [] for shape in _LOADED}
    for number in range(rounds):
        for shape in _LOADED:
            show(f"round {number + 1}: {shape.processes} processes, {shape.shards} shards")
            loaded[shape.name].append(_load(directory, shape, rows))
    idle: Figures = {}
    for shape in _IDLE:
        show(f"idle: {shape.shards} shards")
        idle[shape.name] = _idle(directory, shape)
    medians = {name: _medians(found) for name, found in loaded.items()}
    return {
        "machine": machine(),
        "loaded": {**medians, "rounds": loaded},
        "idle": idle,
        "ratios": _ratios(medians, idle),
        "asked": ASKED,
    }


def _load(directory: Path | None, shape: Shape, rows: int) -> Figures:
    with broker(directory, **shape.settings) as process:
        with fasti.connect(process.address) as client:
            client.create_topic("batches")
        found: Figures = {}
        # The first batches run code for the first time, in every process.
        run_job("produce_batches", process.address, topic="batches", rows=rows // 10)
        run_job("consume_batches", process.address, topic="batches", rows=rows // 10)
        for name, job in (("produce", "produce_batches"), ("lease_ack", "consume_batches")):
            before = _cpu_s(process)
            result = run_job(job, process.address, topic="batches", rows=rows)
            cpu_s = _cpu_s(process) - before
            found[f"{name}_messages_per_s"] = result["messages_per_s"]
            found[f"{name}_cpu_us"] = round(cpu_s / rows * 1e6, 3)
    found["cpu_us"] = round(found["produce_cpu_us"] + found["lease_ack_cpu_us"], 3)
    # What a core of brokers carries from send to ack, when clients have cores of their own.
    found["messages_per_core_s"] = round(1e6 / found["cpu_us"])
    return found


def _idle(directory: Path | None, shape: Shape) -> Figures:
    with broker(directory, http="off", **shape.settings) as process:
        with fasti.connect(process.address) as client:
            client.create_topic("idle")
        _settle(process.pid)
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in status)
        return {
            "threads": int(values["Threads"]),
            "memory_mb": round(int(values["VmRSS"].split()[0]) / 1024, 1),
        }


def _settle(pid: int) -> None:
    """No connection is open any more: waits until what was begun for one has ended."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        if threads != seen:
            seen, since = threads, time.monotonic()
        time.sleep(0.1)


def _medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}


def _ratios(loaded: dict[str, Figures], idle: dict[str, Figures]) -> Figures:
    one, four, two = (loaded[shape.name] for shape in _LOADED)
    alone, _, eight = (idle[shape.name] for shape in _IDLE)

    def of(mine: Figures, other: Figures, name: str) -> float:
        return round(mine[name] / other[name], 3)

    return {
        "four_shards_produce_rate_of_one": of(four, one, "produce_messages_per_s"),
        "four_shards_lease_ack_rate_of_one": of(four, one, "lease_ack_messages_per_s"),
        "four_shards_cpu_of_one": of(four, one, "cpu_us"),
        "two_processes_cpu_of_one_process": of(two, four, "cpu_us"),
        "two_processes_cpu_of_one_shard": of(two, one, "cpu_us"),
        "eight_idle_shards_threads_of_one": of(eight, alone, "threads"),
        "eight_idle_shards_memory_of_one": of(eight, alone, "memory_mb"),
    }


def _cpu_s(process: BrokerProcess) -> float:
    """All processes of the broker, the supervisor too."""
    return sum(cpu_seconds(pid) for pid in _tree(process.pid))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _tree(int(child))
    return found
