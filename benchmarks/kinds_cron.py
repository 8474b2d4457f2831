"""Schedules over the wire: 100,000 that each happen once a minute, as a consumer sees them.

Twice: spread over the minute (60 expressions, a sixtieth of the schedules at each second, with a jitter
of a second), and all at second 0. Messages are emitted ten seconds ahead, so that at the moment itself the broker only hands
out. What is due at one instant is handed over by batches; one message at a time the consumers'
Python alone takes longer than the moment may last, and that is shown beside it.

Lateness is taken by the wall clock at the first line of user code. The broker's memory is read after
every period: what has been fired must leave nothing behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fasti
from benchmarks.wire import ClientProcess, broker, cpu_seconds, memory_mb, percentiles_ms
from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Show = Callable[[str], None]

ASKED = {"schedules": 100_000, "p99_ms": 50, "grows": False}
_SCHEDULES_MAX = 100_000
_ROUNDS = 4
_PAYLOAD = b"x" * 100
_PROCESSES = 2
# Of the target: how long before they are due messages are sent to consumers.
_LOOKAHEAD = {"spread": "250ms", "at_once": "2s", "at_once_one_by_one": "2s"}


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100,000 schedules a minute with at least 3,000,000 rows; fewer and sooner with fewer."""
    count = min(_SCHEDULES_MAX, rows // 30)
    period_s = 60 if count == _SCHEDULES_MAX else 10
    figures: Figures = {"schedules": count, "period_s": period_s, "rounds": _ROUNDS}
    for case in _LOOKAHEAD:
        show(f"cron: {count:,} schedules, {case.replace('_', ' ')}, {_ROUNDS} times {period_s} s")
        with broker(directory) as process:
            figures[case] = _Case(process, case, count, period_s).measure()
    return {**figures, "asked": ASKED}


class _Case:
    """One broker with its schedules and consumers."""

    def __init__(self, process: BrokerProcess, case: str, count: int, period_s: int) -> None:
        self._process, self._case = process, case
        self._count, self._period_s = count, period_s

    def measure(self) -> Figures:
        """Some rounds, after one that nobody measures."""
        begin = time.perf_counter()
        with fasti.connect(self._process.address) as client:
            # What became of finished messages is told for a while, by default for ten minutes.
            client.create_topic(
                "due", lookahead=_LOOKAHEAD[self._case], lease="5m", outcome_age="30s"
            )
            client.create_topic("cron", kind="cron")
            self._put(client)
        put_s = time.perf_counter() - begin
        with fasti.connect(self._process.address) as client:
            known = client.schedules("cron").preview("s0", 2)
        first_us = round(known[1].at.timestamp() * 1e6)
        found, memory, cpu = self._consume(first_us)
        late = np.concatenate([np.fromfile(each, dtype=np.int64) for each in found])
        expected = self._count * _ROUNDS
        return {
            **percentiles_ms(late),
            "missing": expected - len(late),
            "lookahead": _LOOKAHEAD[self._case],
            "schedules_put_per_s": round(self._count / put_s),
            "broker_cpu_share": round(cpu / (_ROUNDS * self._period_s), 3),
            "memory_mb": memory,
        }

    def _put(self, client: fasti.Client) -> None:
        schedules = client.schedules("cron")
        spread = self._case == "spread"
        definitions: dict[str, dict[str, Any]] = {}
        for number in range(self._count):
            second = number % self._period_s if spread else 0
            cron = f"{second}/{self._period_s} * * * * *"
            definitions[f"s{number}"] = {"cron": cron, "target": "due", "payload": _PAYLOAD}
            if spread:
                definitions[f"s{number}"]["jitter"] = "1s"
        assert all(each.ok for each in schedules.put_many(definitions))

    def _consume(self, first_us: int) -> tuple[list[Path], list[float], float]:
        pid = self._process.pid
        scratch = self._process.data.parent
        files = [scratch / f"late-{number}.bin" for number in range(_PROCESSES)]
        job = "by_batches" if self._case == "at_once" else "one_by_one"
        end_us = first_us + _ROUNDS * self._period_s * 1_000_000
        given = {"from_us": first_us, "end_us": end_us, "schedules": self._count}
        consumers = [
            ClientProcess(f"kinds_cron:{job}", self._process.address, into=str(file), **given)
            for file in files
        ]
        for each in consumers:
            each.go()
        memory: list[float] = []
        before = 0.0
        for round_number in range(_ROUNDS + 1):
            # Between two bursts, where nothing is under way.
            at_us = first_us + round_number * self._period_s * 1_000_000
            pause_s = at_us / 1e6 + self._period_s / 3 - self._period_s - time.time()
            time.sleep(max(0.0, pause_s))
            memory.append(memory_mb(pid))
            if not round_number:
                before = cpu_seconds(pid)
        used = cpu_seconds(pid) - before
        for each in consumers:
            each.result()
        return files, memory, used


def _consume(
    address: str, schedules: int, end_us: int, take: Callable[[Any, list[Any], int], None]
) -> list[Any]:
    """Two sessions in threads, until some time after the last is due."""
    share = 2 * schedules // _PROCESSES
    found: list[Any] = []
    with fasti.connect(address) as client:
        timeout = end_us / 1e6 - time.time() + 8
        consumers = [client.consumer("due", prefetch=max(share, 100)) for _ in range(2)]
        threads = [threading.Thread(target=take, args=(c, found, share)) for c in consumers]
        for thread in threads:
            thread.start()
        time.sleep(max(timeout, 0.0))
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()
    return found


def one_by_one(address: str, from_us: int, end_us: int, schedules: int, into: str) -> Figures:
    """User code gets message after message; how late each was goes into a file."""

    def take(consumer: Any, found: list[Any], share: int) -> None:
        for message in consumer:
            found.append((time.time_ns() // 1000, message.due_us))
            message.ack()

    seen = np.array(_consume(address, schedules, end_us, take), dtype=np.int64).reshape(-1, 2)
    return _write(seen[:, 1], seen[:, 0] - seen[:, 1], from_us, end_us, into)


def by_batches(address: str, from_us: int, end_us: int, schedules: int, into: str) -> Figures:
    """User code gets tables of up to 5,000 messages."""

    def take(consumer: Any, found: list[Any], share: int) -> None:
        for batch in consumer.batches(min(5_000, max(share // 4, 1)), wait="1ms"):
            table, now_us = batch.table, time.time_ns() // 1000
            found.append((table.column("due_us").to_numpy(), now_us))
            batch.ack()

    seen = _consume(address, schedules, end_us, take)
    due = np.concatenate([due for due, _ in seen] or [np.zeros(0, dtype=np.int64)])
    late = np.concatenate([now_us - due for due, now_us in seen] or [due])
    return _write(due, late, from_us, end_us, into)


def _write(due: Any, late: Any, from_us: int, end_us: int, into: str) -> Figures:
    measured = late[(due >= from_us) & (due < end_us)]
    measured.astype(np.int64).tofile(Path(into))
    return {"rows": len(measured)}
