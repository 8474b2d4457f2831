"""`fasti bench soak`: a broker whose clients come, go and are killed, and whether its memory stays flat.

Everything that clients leave behind is gone within minutes: leases, outcomes, replies and rows of the log
by themselves, and what killed ones had made to stay (topics, groups, schedules) is removed by the soak. So
from the second quarter on nothing that the broker keeps may grow.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fasti
from benchmarks.limits import machine
from benchmarks.soak_jobs import COUNTS, clear, make_topics
from benchmarks.wire import ClientProcess, broker, cpu_seconds, memory_mb

Figures = dict[str, Any]
Show = Callable[[Figures], None]

CROWD = 10
KILL_EVERY_S = 20.0
GROWTH_MAX = 0.02
_SCRAPES = 10
_METRICS = {
    "memory_used_mb": "fasti_memory_used_bytes",
    "arena_mb": 'fasti_memory_bytes{part="rows"}',
    "heap_used_mb": 'fasti_memory_heap_bytes{state="used"}',
    "heap_free_mb": 'fasti_memory_heap_bytes{state="free"}',
    "sessions": "fasti_sessions",
    "leases": "fasti_leases",
}


def soak(
    directory: Path | None, minutes: float, clients: int, show: Show, sample_s: float = 60.0
) -> Figures:
    """Runs the load, shows a sample each minute, and compares the second quarter with the last."""
    started = machine()
    with broker(directory) as process:
        with fasti.connect(process.address) as client:
            make_topics(client)
        load = _Load(process.address, clients)
        samples: list[Figures] = []
        begin = time.monotonic()
        try:
            while time.monotonic() < begin + minutes * 60:
                load.run_until(min(begin + (len(samples) + 1) * sample_s, begin + minutes * 60))
                sample = {"minute": round((time.monotonic() - begin) / 60, 2)}
                sample |= _sample(process.pid, process.address) | {"kills": load.kills}
                samples.append(sample)
                show(sample)
        finally:
            ended = load.end()
        share = cpu_seconds(process.pid) / (time.monotonic() - begin)
    figures = {"machine": started, "clients": clients, "minutes": minutes, "kills": load.kills}
    figures |= {"broker_cpu_share": round(share, 3), "last_crowds": ended}
    return {**figures, **judged(samples), "samples": samples}


def judged(samples: list[Figures]) -> Figures:
    """Averages of the second and the last quarter: memory must not grow between them."""
    quarter = len(samples) // 4
    if not quarter:
        return {"flat": None, "why": "too few samples to compare quarters"}
    found: Figures = {}
    for name in ("resident_mb", "threads", "descriptors", "memory_used_mb"):
        parts = [samples[quarter : 2 * quarter], samples[-quarter:]]
        second, last = (sum(s[name] for s in part) / quarter for part in parts)
        growth = last / second - 1 if second else 0.0
        found[name] = {"second_quarter": round(second, 1), "last_quarter": round(last, 1)}
        found[name]["growth"] = round(growth, 4)
    return {"quarters": found, "flat": found["resident_mb"]["growth"] < GROWTH_MAX}


def _sample(pid: int, address: str) -> Figures:
    with fasti.connect(address, timeout="60s") as client:
        text = _metrics(client)
    values = dict(re.findall(r"^(fasti_\w+(?:\{\w+=\S+\})?) (\S+)$", text, re.MULTILINE))
    sample: Figures = {
        "resident_mb": memory_mb(pid),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }
    for name, metric in _METRICS.items():
        value = float(values.get(metric, 0))
        sample[name] = round(value / 1e6, 2) if name.endswith("_mb") else round(value)
    return sample


def _metrics(client: fasti.Client) -> str:
    """Again where others scrape at the same time: a sample must not end the soak."""
    for _ in range(_SCRAPES - 1):
        with suppress(fasti.errors.FastiError):
            return client.metrics()
    return client.metrics()


class _Load:
    """Crowds of clients; one of them is killed now and then, and another takes its place."""

    def __init__(self, address: str, clients: int) -> None:
        self._address = address
        self._draw = random.Random(11)
        self._next_kill = time.monotonic() + KILL_EVERY_S
        self.kills = 0
        self._crowds: list[ClientProcess] = []
        for first in range(0, clients, CROWD):
            self._crowds.append(self._crowd(min(CROWD, clients - first)))

    def _crowd(self, clients: int) -> ClientProcess:
        seed = self._draw.getrandbits(32)
        made = ClientProcess("soak_jobs:crowd", self._address, clients=clients, seed=seed)
        made.go()
        return made

    def run_until(self, moment: float) -> None:
        """Sleeps and kills."""
        while (now := time.monotonic()) < moment:
            if now >= self._next_kill:
                self._next_kill = now + KILL_EVERY_S
                self.kill_one()
            else:
                time.sleep(min(self._next_kill, moment) - now)

    def kill_one(self) -> None:
        """A process dies in the middle, and another takes its place."""
        number = self._draw.randrange(len(self._crowds))
        victim = self._crowds[number]
        victim.kill()
        self.kills += 1
        with fasti.connect(self._address, timeout="60s") as client:
            clear(client, victim.pid)
        self._crowds[number] = self._crowd(CROWD)

    def end(self) -> Figures:
        """Ends all softly; what the last crowds did since they were started."""
        for crowd in self._crowds:
            crowd.go()
        found = [crowd.result() for crowd in self._crowds]
        errors = [one["last_error"] for one in found if one["last_error"]]
        sums = {name: sum(one.get(name, 0) for one in found) for name in COUNTS}
        return {**sums, **({"last_error": errors[-1]} if errors else {})}
