"""`fasti bench lateness`: how long after its due time a message is in the hands of user code."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import fasti
from benchmarks.limits import machine, sync_limits
from benchmarks.wire import (
    ClientProcess,
    broker,
    cpu_seconds,
    percentiles_ms,
    run_job,
    sync_counts,
    sync_p99_ms,
)
from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Show = Callable[[str], None]

SESSIONS = (1, 10, 100)
# With few sessions each needs credit for what is sent ahead of time: 500 at 10,000 a second.
_CREDIT = 4_000
_IDLE_S = 10.0
_BURST_PROCESSES = 2
ASKED = {
    "steady": {"earliest_ms": 0, "p50_ms": 0.5, "p99_ms": 3, "p999_ms": "9, or disk p99.9 + 5"},
    "beside": {"p99_ms": 10},
    "burst": {"max_ms": 100},
    "one_at_a_time": {"p50_ms": 1.5, "p99_ms": 3},
    "idle_cpu_share": 0.01,
}


def lateness(
    directory: Path | None, seconds: float, rate: int, pending: int, show: Show
) -> Figures:
    """Steady traffic by sessions, the same beside other work, bursts, round trips, and idling."""
    results: Figures = {"machine": machine(), "rate": rate, "seconds": seconds, "pending": pending}
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as place:
        scratch = Path(place)
        results["disk"] = sync_limits(scratch)
        with broker(directory) as process:
            bench = _Bench(process, scratch, rate)
            show(f"{pending:,} messages that stay pending")
            bench.topic("stock")
            run_job("fill", bench.address, topic="stock", rows=pending)
            results["steady"] = {}
            for sessions in SESSIONS:
                show(f"{rate:,} a second, {sessions} sessions")
                results["steady"][str(sessions)] = bench.steady(sessions, seconds)
            results["beside"] = bench.beside_other_work(min(seconds, 20.0), show)
            show("50,000 due at one instant")
            results["burst"] = {str(n): bench.burst(50_000, n) for n in (2, 10)}
            show("one message at a time")
            results["one_at_a_time"] = bench.one_at_a_time(3_000)
            show(f"an idle broker, {_IDLE_S:.0f} s")
            results["idle_cpu_share"] = bench.idle_cpu_share()
    return {**results, "asked": ASKED}


class _Bench:
    """One broker, and a topic for each measurement."""

    def __init__(self, process: BrokerProcess, scratch: Path, rate: int) -> None:
        self.process, self.address = process, process.address
        self._into = str(scratch / "late.bin")
        self._rate = rate
        self._topics = 0

    def topic(self, name: str = "") -> str:
        """A new one."""
        self._topics += 1
        name = name or f"topic-{self._topics}"
        with fasti.connect(self.address) as client:
            client.create_topic(name)
        return name

    def steady(self, sessions: int, seconds: float) -> Figures:
        """So many a second from one process into sessions of another."""
        topic = self.topic()
        producer = ClientProcess(
            "steady_producer", self.address, topic=topic, rate=self._rate, seconds=seconds
        )
        prefetch = max(64, _CREDIT // sessions)
        consumers = ClientProcess(
            "steady_consumers",
            self.address,
            topic=topic,
            sessions=sessions,
            rows=round(self._rate * seconds),
            prefetch=prefetch,
            into=self._into,
        )
        consumers.go()
        syncs = sync_counts(self.address)
        before, begin = cpu_seconds(self.process.pid), time.monotonic()
        producer.go()
        producer.result()
        consumers.result()
        share = (cpu_seconds(self.process.pid) - before) / (time.monotonic() - begin)
        found = percentiles_ms(np.fromfile(self._into, dtype=np.int64))
        return {
            **found,
            "prefetch": prefetch,
            "broker_cpu_share": round(share, 3),
            "sync_p99_ms_at_most": sync_p99_ms(syncs, sync_counts(self.address)),
        }

    def beside_other_work(self, seconds: float, show: Show) -> Figures:
        """Ten sessions, while the broker does something large too."""
        found: Figures = {}
        show("beside bulk produce at full rate")
        bulk_topic = self.topic()
        bulk = ClientProcess("produce_until", self.address, topic=bulk_topic, seconds=seconds + 2)
        bulk.go()
        found["bulk_produce"] = self.steady(10, seconds)
        found["bulk_produce"]["bulk_messages_per_s"] = bulk.result()["messages_per_s"]
        show("during checkpoints")
        with self._again_and_again(self._checkpoint) as checkpoints:
            found["checkpoint"] = self.steady(10, seconds)
        found["checkpoint"]["checkpoints"] = len(checkpoints)
        show("during listings")
        with self._again_and_again(self._list) as listings:
            found["listing"] = self.steady(10, seconds)
        found["listing"]["rows_listed"] = sum(listings)
        return found

    @contextmanager
    def _again_and_again(self, work: Callable[[Any], int]) -> Iterator[list[int]]:
        done: list[int] = []
        stop = threading.Event()

        def run() -> None:
            with fasti.connect(self.address, timeout="10m") as client:
                while not stop.is_set():
                    done.append(work(client))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield done
        finally:
            stop.set()
            thread.join()

    def _checkpoint(self, client: Any) -> int:
        client.transport.call("checkpoint")
        return 1

    def _list(self, client: Any) -> int:
        return sum(batch.num_rows for batch in client.messages("stock").scan())

    def burst(self, rows: int, sessions: int) -> Figures:
        """All due at one instant, for consumers in two processes."""
        topic, after_s = self.topic(), 3.0
        files = [f"{self._into}.{number}" for number in range(_BURST_PROCESSES)]
        consumers = [
            ClientProcess(
                "burst_consumers",
                self.address,
                topic=topic,
                sessions=sessions // _BURST_PROCESSES,
                prefetch=2 * rows // sessions,
                into=file,
                quiet_s=after_s + 2,
            )
            for file in files
        ]
        for process in consumers:
            process.go()
        run_job("burst_producer", self.address, topic=topic, rows=rows, after_s=after_s)
        taken = sum(process.result()["rows"] for process in consumers)
        late = np.concatenate([np.fromfile(file, dtype=np.int64) for file in files])
        return {**percentiles_ms(late), "missing": rows - taken, "processes": _BURST_PROCESSES}

    def one_at_a_time(self, rows: int) -> Figures:
        """Send to delivered, due now."""
        run_job("one_at_a_time", self.address, topic=self.topic(), rows=rows, into=self._into)
        found = percentiles_ms(np.fromfile(self._into, dtype=np.int64))
        found.pop("earliest_ms")
        return found

    def idle_cpu_share(self) -> float:
        """What the broker uses of a core with a million pending and a consumer that waits."""
        topic = self.topic()
        with fasti.connect(self.address) as client, client.consumer(topic, timeout=0.1) as consumer:
            list(consumer)
            time.sleep(1.0)
            before = cpu_seconds(self.process.pid)
            time.sleep(_IDLE_S)
            return round((cpu_seconds(self.process.pid) - before) / _IDLE_S, 4)
