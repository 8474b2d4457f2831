"""The scenarios: what is measured of each peer, with which client processes.

A scenario is a function of a `Bench` that returns figures. Rates are messages a second, latencies
milliseconds. Every loop is bounded in time; sizes come from `Sizes`, so that a quick run and a test
take the same way.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.peers.client import Cannot
from benchmarks.peers.driver import DriverProcess, JobFailed
from benchmarks.peers.registry import FASTI, Peer
from benchmarks.peers.server import Server

Figures = dict[str, Any]
Better = Literal["less", "more"]

# How long a client process may take beyond what it was asked for.
_GRACE_S = 15.0
_RESTART_LEASE_S = 2
# Where a client has no prefetch of its own, a consumer takes up to so many of what is due at a time;
# only the consumer loop goes strictly one by one.
_LEASED_AT_ONCE = 100
_NEARLY = 0.95


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    seconds: float = 3.0
    send_rows: int = 3_000
    # Seconds at 50, 500 and 5,000 a second.
    due_now_s: tuple[float, float, float] = (10.0, 5.0, 3.0)
    change_rows: int = 3_000
    change_many_rows: int = 100_000
    loop_rows: int = 60_000
    instant_rows: int = 20_000
    fill_s: float = 3.0
    stream_rows: int = 3_000_000
    batch: int = 5_000
    steady_s: float = 3.0
    ahead_s: float = 1.0
    stock_s: float = 20.0
    pending: tuple[int, int] = (100_000, 1_000_000)
    memory_rows: int = 200_000
    crash_s: float = 2.0


FULL = Sizes()
QUICK = Sizes(
    seconds=0.7,
    send_rows=1_000,
    due_now_s=(2.0, 1.0, 1.0),
    change_rows=1_000,
    change_many_rows=20_000,
    loop_rows=20_000,
    fill_s=0.7,
    stream_rows=1_000_000,
    steady_s=1.0,
    ahead_s=0.4,
    stock_s=3.0,
    memory_rows=50_000,
    crash_s=0.7,
)


class Bench:
    """One server and a queue on it, for one scenario."""

    def __init__(self, peer: Peer, server: Server, queue: str, sizes: Sizes, scratch: Path) -> None:
        self.peer, self.server, self.sizes = peer, server, sizes
        self.scratch = scratch
        self._queue = queue
        self._drivers: list[DriverProcess] = []

    def driver(self, job: str, queue: str = "", **arguments: Any) -> DriverProcess:
        """A client process that waits for `go`."""
        made = DriverProcess(
            self.peer.python,
            self.peer.adapter,
            self.server.address,
            queue or self._queue,
            job,
            **arguments,
        )
        self._drivers.append(made)
        return made

    def run(self, job: str, queue: str = "", **arguments: Any) -> Figures:
        """A client process from its beginning to its end."""
        made = self.driver(job, queue, **arguments)
        made.go()
        return made.result(arguments["seconds"] + _GRACE_S)

    def pair(self, consumer: DriverProcess, producer: DriverProcess, seconds: float) -> Figures:
        """Lets the consumer begin, then the producer; the figures of both."""
        consumer.go()
        producer.go()
        sent = producer.result(seconds + _GRACE_S)
        return {**consumer.result(seconds + _GRACE_S), **sent}

    def stock(self, rows: int) -> int:
        """Others that stay pending; how many there are."""
        if not rows:
            return 0
        queue = f"{self._queue}-others" if self.peer.pending_apart else self._queue
        seconds, batch = self.sizes.stock_s, min(self.sizes.batch, rows)
        given: Figures = {"rows": rows, "seconds": seconds, "batch": batch, "order": "far"}
        return int(self.run("stream", queue, **given)["sent"])

    @property
    def others(self) -> str:
        """The name of a second queue."""
        return f"{self._queue}-bulk"

    def end(self) -> None:
        """No client process is left."""
        for driver in self._drivers:
            driver.kill()


def send(bench: Bench) -> Figures:
    """One at a time until acknowledged."""
    sizes = bench.sizes
    return bench.run("send_each", rows=sizes.send_rows, seconds=sizes.seconds)


def due_now(bench: Bench, rate: int, number: int) -> Figures:
    """Sent and due now, until in user code."""
    seconds = bench.sizes.due_now_s[number]
    consumer = bench.driver("receive", seconds=seconds + 10, batch=_LEASED_AT_ONCE)
    producer = bench.driver("pace", rate=rate, seconds=seconds)
    found = bench.pair(consumer, producer, seconds)
    if found["reached_per_s"] < _NEARLY * rate:
        found["note"] = f"no more than {found['reached_per_s']:,} a second were taken"
    return found


def change_one(bench: Bench) -> Figures:
    """Cancel and move, one by one."""
    sizes = bench.sizes
    return bench.run("change_each", rows=sizes.change_rows, seconds=sizes.seconds)


def change_many(bench: Bench) -> Figures:
    """Cancel and move by 1,000."""
    sizes = bench.sizes
    # Peers without a call for many go one by one, also when their stock is made.
    rows = sizes.change_many_rows
    if bench.peer.name in ("beanstalkd", "procrastinate") or "nats" in bench.peer.name:
        rows = min(rows, 5_000)
    return bench.run("change_batches", rows=rows, seconds=sizes.seconds, batch=1_000)


def consume_loop(bench: Bench) -> Figures:
    """`for message in consumer: ack`, with default settings."""
    sizes = bench.sizes
    given: Figures = {
        "rows": sizes.loop_rows,
        "seconds": sizes.fill_s,
        "batch": min(1_000, sizes.batch),
    }
    sent = bench.run("stream", **given, order="now")["sent"]
    return bench.run("consume_each", rows=sent, seconds=sizes.seconds)


def instant(bench: Bench) -> Figures:
    """Many that are due at one instant, until the last is in user code."""
    sizes = bench.sizes
    rows, seconds = sizes.instant_rows, 2 * sizes.fill_s
    consumer = bench.driver("receive", seconds=seconds + 25, batch=10 * _LEASED_AT_ONCE)
    given: Figures = {"rows": rows, "seconds": seconds, "batch": min(1_000, rows)}
    # The slowest take a quarter of a minute for as many.
    found = bench.pair(consumer, bench.driver("at_one_instant", **given), seconds + 25)
    if found["sent"] < rows:
        found["note"] = f"{found['sent']:,} messages: more could not be scheduled in the time"
    return found


def schedule_batches(bench: Bench) -> Figures:
    """Scheduling by batches."""
    sizes = bench.sizes
    given: Figures = {
        "rows": 100 * sizes.stream_rows,
        "seconds": sizes.seconds,
        "batch": sizes.batch,
    }
    return bench.run("stream", **given, order="far")


def lease_ack(bench: Bench, order: str) -> Figures:
    """Lease and ack by batches of what fell due in one second."""
    sizes = bench.sizes
    given: Figures = {"rows": sizes.stream_rows, "seconds": sizes.fill_s, "batch": sizes.batch}
    made = bench.run("stream", **given, order=order)
    return bench.run(
        "consume_in_batches",
        rows=made["sent"],
        seconds=sizes.seconds,
        batch=sizes.batch,
        from_us=made["all_due_us"],
    )


def both(bench: Bench) -> Figures:
    """Scheduling and lease + ack at the same time."""
    sizes = bench.sizes
    rows, seconds = 100 * sizes.stream_rows, sizes.seconds
    given: Figures = {"rows": rows, "batch": sizes.batch}
    consumer = bench.driver("consume_in_batches", **given, seconds=2 * seconds)
    producer = bench.driver("stream", **given, seconds=seconds, order="soon")
    consumer.go()
    producer.go()
    sent = producer.result(seconds + _GRACE_S)
    taken = consumer.result(2 * seconds + _GRACE_S)
    rates = (sent["per_s"], taken["per_s"] or 0)
    return {"in_per_s": rates[0], "out_per_s": rates[1], "per_s": min(rates)}


def steady(bench: Bench, rate: int, pending: int) -> Figures:
    """Lateness of steady traffic, with others pending."""
    sizes = bench.sizes
    filled = bench.stock(pending)
    consumer = bench.driver("receive", seconds=sizes.steady_s + 12, batch=_LEASED_AT_ONCE)
    given: Figures = {"rate": rate, "seconds": sizes.steady_s, "ahead_s": sizes.ahead_s}
    producer = bench.driver("pace_batches", **given)
    found = bench.pair(consumer, producer, sizes.steady_s + sizes.ahead_s)
    notes = []
    if filled < pending:
        notes.append(f"with {filled:,} pending: more could not be scheduled in the time")
    if found["sent"] < _NEARLY * rate * sizes.steady_s:
        notes.append(f"no more than {found['reached_per_s']:,} a second were taken")
    if found["received"] < found["sent"]:
        notes.append(f"{found['received']:,} of {found['sent']:,} arrived in time")
    return {**found, "pending": filled, **({"note": "; ".join(notes)} if notes else {})}


def beside_bulk(bench: Bench) -> Figures:
    """Steady lateness while another client schedules at full rate."""
    sizes = bench.sizes
    given: Figures = {"rows": 1_000 * sizes.stream_rows, "batch": sizes.batch, "order": "far"}
    seconds = sizes.steady_s + sizes.ahead_s + 1.0
    bulk = bench.driver("stream", bench.others, **given, seconds=seconds)
    consumer = bench.driver("receive", seconds=sizes.steady_s + 12, batch=_LEASED_AT_ONCE)
    steady_given: Figures = {"rate": 10_000, "seconds": sizes.steady_s, "ahead_s": sizes.ahead_s}
    producer = bench.driver("pace_batches", **steady_given)
    bulk.go()
    found = bench.pair(consumer, producer, seconds)
    return {**found, "bulk_per_s": bulk.result(seconds + _GRACE_S)["per_s"]}


def memory(bench: Bench) -> Figures:
    """Memory and disk for each message that waits."""
    sizes, server = bench.sizes, bench.server
    bench.run("stream", rows=1, seconds=1.0, batch=1, order="far")
    before, disk_before = server.memory_bytes(), server.disk_bytes()
    rows = bench.stock(sizes.memory_rows)
    time.sleep(1.0)
    used, written = server.memory_bytes() - before, server.disk_bytes() - disk_before
    return {
        "rows": rows,
        "memory_bytes_each": round(used / rows, 1),
        "disk_bytes_each": round(written / rows, 1),
        "idle_mib": round(before / 2**20, 1),
    }


def restart(bench: Bench) -> Figures:
    """SIGKILL under traffic: until served again, what was lost, what came twice."""
    acked, handled = bench.scratch / "acked", bench.scratch / "handled"
    with _short_leases():
        producer = bench.driver("numbered", into=str(acked))
        consumer = bench.driver("handled", into=str(handled), idle_s=60.0)
        probe = bench.driver("first_answer")
        drain = bench.driver("handled", into=str(handled), idle_s=_RESTART_LEASE_S + 2.0)
        consumer.go()
        producer.go()
        _wait_written(acked, handled)
        time.sleep(bench.sizes.crash_s)
        bench.server.kill()
        killed_us = time.time_ns() // 1000
        producer.kill()
        consumer.kill()
        probe.go()
        bench.server.start()
        back_us = probe.result(_GRACE_S + 60)["at_us"]
        drain.go()
        drain.result(_GRACE_S + 60)
    return {"restart_ms": round((back_us - killed_us) / 1e3, 1), **_compared(acked, handled)}


def _wait_written(*paths: Path) -> None:
    """Returns when there is something in each of the files: the traffic flows."""
    deadline = time.monotonic() + _GRACE_S
    while not all(path.exists() and path.stat().st_size for path in paths):
        if time.monotonic() > deadline:
            raise JobFailed("no message reached its consumer")
        time.sleep(0.01)


def _compared(acked: Path, handled: Path) -> Figures:
    """What was acknowledged beside what reached user code."""
    promised = set(_numbers(acked))
    reached = Counter(number for number in _numbers(handled) if number >= 0)
    return {
        "acknowledged": len(promised),
        "lost": len(promised - reached.keys()),
        "doubled": sum(count > 1 for count in reached.values()),
    }


def _numbers(path: Path) -> list[int]:
    written = path.read_bytes() if path.exists() else b""
    whole = len(written) // 8 * 8
    return [
        int.from_bytes(written[at : at + 8], "little", signed=True) for at in range(0, whole, 8)
    ]


@contextmanager
def _short_leases() -> Any:
    os.environ["PEERS_LEASE_S"] = str(_RESTART_LEASE_S)
    try:
        yield
    finally:
        del os.environ["PEERS_LEASE_S"]


@dataclass(frozen=True)
class Scenario:
    """One row of the page."""

    name: str
    title: str
    run: Callable[[Bench], Figures]
    # The figures that count, each with its words and with what is better.
    figures: dict[str, tuple[str, Better]]
    # On a server of its own, because of what it leaves behind.
    alone: bool = False
    fasti_only: bool = False
    # Only with `--long`.
    long: bool = False
    # Not in a quick run.
    full_only: bool = False
    notes: str = ""

    def why_not(self, peer: Peer) -> str | None:
        """Why this peer can't do it; None if it can."""
        return peer.cannot.get(self.name)

    def is_for(self, peer: Peer) -> bool:
        """Whether it is measured of this peer at all."""
        return peer.name == FASTI or not self.fasti_only


def _late(*names: str) -> dict[str, tuple[str, Better]]:
    words = {"p50_ms": "p50", "p99_ms": "p99", "p999_ms": "p99.9"}
    return {name: (f"{words[name]} ms", "less") for name in names}


def _scenarios() -> list[Scenario]:
    from benchmarks.peers import fasti_costs

    per_s: dict[str, tuple[str, Better]] = {"per_s": ("per second", "more")}
    changes: dict[str, tuple[str, Better]] = {
        "cancel_per_s": ("cancel per second", "more"),
        "move_per_s": ("move per second", "more"),
    }
    found = [
        Scenario("send", "send until acknowledged", send, _late("p50_ms", "p99_ms")),
        *(
            Scenario(
                f"due_now_{rate}",
                f"sent and due now, until in user code, {rate:,} a second",
                partial(due_now, rate=rate, number=number),
                _late("p50_ms", "p99_ms", "p999_ms"),
            )
            for number, rate in enumerate((50, 500, 5_000))
        ),
        Scenario("change_one", "cancel and move, one by one", change_one, changes),
        Scenario("change_many", "cancel and move by 1,000", change_many, changes),
        Scenario("consume_loop", "consumer loop, default settings", consume_loop, per_s),
        Scenario(
            "instant",
            "20,000 due at one instant, until the last",
            instant,
            {"max_ms": ("ms", "less")},
        ),
        Scenario("schedule", "schedule by batches of 5,000", schedule_batches, per_s),
        Scenario(
            "lease_random",
            "lease + ack by batches of 5,000, random due order",
            partial(lease_ack, order="random"),
            per_s,
        ),
        Scenario(
            "lease_arrival",
            "lease + ack by batches of 5,000, arrival order",
            partial(lease_ack, order="arrival"),
            per_s,
        ),
        Scenario("both", "schedule and lease + ack at once", both, per_s),
    ]
    for pending in (0, 100_000, 1_000_000):
        for rate in (1_000, 10_000):
            found.append(
                Scenario(
                    f"steady_{rate}_{pending}",
                    f"lateness at {rate:,} a second, {pending:,} others pending",
                    partial(steady, rate=rate, pending=pending),
                    _late("p50_ms", "p99_ms", "p999_ms"),
                    alone=pending > 0,
                    full_only=pending > 100_000 or (pending > 0 and rate < 10_000),
                )
            )
    return [
        *found,
        Scenario(
            "beside_bulk",
            "lateness at 10,000 a second beside full bulk produce",
            beside_bulk,
            _late("p50_ms", "p99_ms", "p999_ms"),
            alone=True,
            fasti_only=True,
        ),
        Scenario(
            "memory",
            "memory and disk for each pending message",
            memory,
            {
                "memory_bytes_each": ("bytes of memory", "less"),
                "disk_bytes_each": ("bytes of disk", "less"),
            },
            alone=True,
            notes="What its processes and its directory grew by. With few messages, buffers and"
            " segments that were set up before weigh more than the messages do.",
        ),
        Scenario(
            "restart",
            "SIGKILL under traffic",
            restart,
            {
                "restart_ms": ("ms until served", "less"),
                "lost": ("lost", "less"),
                "doubled": ("doubled", "less"),
            },
            alone=True,
            notes="SIGKILL is no power cut: what the system had taken but not synced is still there."
            " Doubled are messages whose handler ran before the kill and again after it.",
        ),
        Scenario(
            "pending_cost",
            "cost of a message with 10 M pending against 10 k",
            fasti_costs.with_pending,
            {"ratio": ("times", "less")},
            alone=True,
            fasti_only=True,
            long=True,
        ),
        Scenario(
            "topics_cost",
            "cost of a message with 2,000 topics against one",
            fasti_costs.with_topics,
            {"ratio": ("times", "less")},
            alone=True,
            fasti_only=True,
            long=True,
        ),
    ]


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}


def measure(bench: Bench, scenario: Scenario) -> Figures:
    """Its figures; `cannot` with a reason where the peer has no such thing."""
    try:
        return scenario.run(bench)
    except Cannot as why:
        return {"cannot": str(why)}
    finally:
        with suppress(Exception):
            bench.end()
