"""`fasti bench cluster`: what a cluster costs and what it survives, on one machine.

Three NATS servers, three brokers, three shards. Rates are told as ratios within one run: to a bare publisher
to the same servers, and to the same produce on files in one process. How long something was away is taken as
clients see it: by a process that sends to every shard and consumes, and writes down when what came.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fasti
from benchmarks.cluster_rig import (
    BROKERS,
    SHARDS,
    BenchCluster,
    bench_cluster,
    leaders,
)
from benchmarks.limits import machine
from benchmarks.payloads import KINDS
from benchmarks.wire import ClientProcess, cpu_seconds, percentiles_ms, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]
Rows = Any

PARTS = ("produce", "latency", "kill", "nodes", "join")
# Where a figure is, whether it may be at most or must be at least this, and how much.
_BARS = (
    ("produce.random.of_bare", "at least", 0.6),
    ("produce.json.of_bare", "at least", 0.6),
    ("produce.random.of_embedded", "at least", 0.2),
    ("produce.json.of_embedded", "at least", 0.4),
    ("latency.late_at_2000_per_s.p99_ms", "at most", 25),
    ("latency.sent_and_due_now.p50_ms", "at most", 6),
    ("kill.median_s", "at most", 0.5),
    ("kill.worst_s", "at most", 1.5),
    ("kill.leases_lost", "at most", 0),
    ("nodes.follower_lost_worst_s", "at most", 0.1),
    ("nodes.stream_leader_lost_worst_s", "at most", 10),
    ("nodes.leases_lost", "at most", 0),
    ("join.share_s", "at most", 15),
    ("join.handover_worst_s", "at most", 0.2),
    ("join.leases_lost", "at most", 0),
)
_RATE = 2_000
_PROBE_PAUSE_S = 0.002
# How long a node's loss is watched: servers elect for up to nine seconds.
_FOLLOWER_S, _LEADER_S = 3.0, 12.0


def cluster(
    only: Sequence[str], directory: Path | None, rounds: int, kills: int, seconds: float, show: Show
) -> Figures:
    """The parts, and what is asked of them. `seconds` is for each measurement of a rate."""
    figures: Figures = {"machine": machine()}
    show("starting three NATS servers and three brokers")
    with (
        TemporaryDirectory(prefix="fasti-bench-", dir=directory) as place,
        bench_cluster(directory) as bench,
    ):
        scratch = Path(place)
        parts: dict[str, Callable[[], Figures]] = {
            "produce": lambda: _produce(bench, scratch, rounds, seconds, show),
            "latency": lambda: _latency(bench, scratch, seconds, show),
            "kill": lambda: _kill(bench, scratch, kills, show),
            "nodes": lambda: _nodes(bench, scratch, rounds, show),
            "join": lambda: _join(bench, scratch, show),
        }
        for part in PARTS:
            if part in (only or PARTS):
                figures[part] = parts[part]()
    return {**figures, "asked": {path: f"{what} {bar}" for path, what, bar in _BARS}}


def shortfalls(figures: Figures) -> list[str]:
    """What was measured and is not as asked, a line each."""
    lines = []
    for path, what, bar in _BARS:
        value: Any = figures
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None and (value < bar if what == "at least" else value > bar):
            lines.append(f"{path} is {value}, asked: {what} {bar}")
    return lines


def phases(only: Sequence[str], rounds: int, kills: int) -> int:
    """How many steps are shown."""
    steps = {"produce": 3 * len(KINDS) * rounds, "latency": 3, "kill": kills, "nodes": 2 * rounds}
    return 1 + sum(steps.get(part, 1) for part in (only or PARTS))


# Rates


def _produce(
    bench: BenchCluster, scratch: Path, rounds: int, seconds: float, show: Show
) -> Figures:
    found: Figures = {}
    for kind in KINDS:
        taken: dict[str, list[Figures]] = {"bare": [], "cluster": [], "embedded": []}
        for number in range(rounds):
            run = f"{kind}-{number}"
            show(f"round {number + 1}: a bare publisher")
            servers = ",".join(bench.plan.nats_urls)
            job = {"streams": SHARDS, "seconds": seconds, "run": run}
            taken["bare"].append(run_job("cluster_jobs:bare", servers, **job))
            show(f"round {number + 1}: {kind}, cluster")
            taken["cluster"].append(_produce_to_cluster(bench, run, kind, seconds))
            show(f"round {number + 1}: {kind}, embedded")
            with TemporaryDirectory(dir=scratch) as place:
                job = {"topic": run, "kind": kind, "seconds": seconds}
                taken["embedded"].append(
                    run_job("cluster_jobs:produce", f"embedded:{place}/data", **job)
                )
        medians = {name: _median_of(figures, "mb_per_s") for name, figures in taken.items()}
        found[kind] = {
            **{f"{name}_mb_per_s": value for name, value in medians.items()},
            "of_bare": round(medians["cluster"] / medians["bare"], 3),
            "of_embedded": round(medians["cluster"] / medians["embedded"], 3),
            **{
                name: _median_of(taken["cluster"], name)
                for name in ("broker_cpu_ms_per_mb", "nats_cpu_ms_per_mb", "client_cpu_ms_per_mb")
            },
            "rounds": taken,
        }
    return found


def _produce_to_cluster(bench: BenchCluster, topic: str, kind: str, seconds: float) -> Figures:
    def used() -> tuple[float, float]:
        return tuple(
            sum(cpu_seconds(child.pid) for child in children.values() if child.pid is not None)
            for children in (bench.brokers, bench.nodes)
        )  # type: ignore[return-value]

    brokers, nodes = used()
    figures = run_job(
        "cluster_jobs:produce", bench.address, topic=topic, kind=kind, seconds=seconds
    )
    brokers_after, nodes_after = used()
    megabytes = figures["mb_per_s"] * seconds
    figures["broker_cpu_ms_per_mb"] = round((brokers_after - brokers) * 1e3 / megabytes, 3)
    figures["nats_cpu_ms_per_mb"] = round((nodes_after - nodes) * 1e3 / megabytes, 3)
    # What is pending stays out of the next measurement.
    with fasti.connect(bench.address) as client:
        client.delete_topic(topic)
    return figures


def _median_of(figures: list[Figures], name: str) -> float:
    return float(statistics.median(each[name] for each in figures))


def _latency(bench: BenchCluster, scratch: Path, seconds: float, show: Show) -> Figures:
    into, address = str(scratch / "took.bin"), bench.address
    found: Figures = {}
    rows = round(200 * seconds)
    show("sent and acknowledged, one at a time")
    run_job("cluster_jobs:send_one", address, topic="acked", rows=rows, into=into)
    found["sent_and_acknowledged"] = _percentiles(into)
    show("sent and due now, one at a time")
    _make_topic(address, "due-now")
    run_job("one_at_a_time", address, topic="due-now", rows=rows, into=into, kind="json")
    found["sent_and_due_now"] = _percentiles(into)
    show(f"{_RATE:,} a second")
    _make_topic(address, "steady")
    producer = ClientProcess(
        "steady_producer", address, topic="steady", rate=_RATE, seconds=2 * seconds, kind="random"
    )
    count = round(_RATE * 2 * seconds)
    consumers = ClientProcess(
        "steady_consumers",
        address,
        topic="steady",
        sessions=1,
        rows=count,
        prefetch=4_000,
        into=into,
    )
    consumers.go()
    producer.go()
    producer.result()
    consumers.result()
    found[f"late_at_{_RATE}_per_s"] = _percentiles(into)
    return found


def _percentiles(path: str) -> Figures:
    return percentiles_ms(np.fromfile(path, dtype=np.int64))


def _make_topic(address: str, topic: str) -> None:
    with fasti.connect(address) as client:
        client.create_topic(topic, partitions=SHARDS)


# Faults


class _Probe:
    """The client that goes on: made, then `finish`ed, then asked."""

    def __init__(self, bench: BenchCluster, scratch: Path, topic: str) -> None:
        _make_topic(bench.address, topic)
        self._acks, self._deliveries = str(scratch / "acks.bin"), str(scratch / "deliveries.bin")
        files = {"acks": self._acks, "deliveries": self._deliveries}
        self._process = ClientProcess(
            "cluster_jobs:probe", bench.address, topic=topic, pause_s=_PROBE_PAUSE_S, **files
        )
        self._process.go()
        self._process.await_word()
        self.acks: Rows = None
        self.deliveries: Rows = None
        self.told: Figures = {}

    def finish(self) -> None:
        """It stops and tells."""
        self._process.go()
        self.told = self._process.result()
        self.acks = np.fromfile(self._acks, dtype=np.int64).reshape(-1, 3)
        self.deliveries = np.fromfile(self._deliveries, dtype=np.int64).reshape(-1, 3)

    def close(self) -> None:
        """Also when it was not finished."""
        self._process.kill()

    def served_after_s(self, shard: int, at: float) -> tuple[float, float]:
        """From a moment on: until the first message that was sent after it was acknowledged, and delivered."""
        return self._first_s(self.acks, shard, at), self._first_s(self.deliveries, shard, at)

    def _first_s(self, rows: Rows, shard: int, at: float) -> float:
        later = rows[(rows[:, 0] == shard) & (rows[:, 1] >= at * 1e6)]
        return round(float(later[:, 2].min()) / 1e6 - at, 4) if len(later) else float("inf")

    def pause_s(self, shards: Sequence[int], begin: float, end: float) -> float:
        """The longest between two acknowledgements or two deliveries of one of these shards."""
        longest = 0.0
        for rows in (self.acks, self.deliveries):
            for shard in shards:
                came = np.sort(rows[rows[:, 0] == shard][:, 2]) / 1e6
                came = came[(came >= begin - 0.5) & (came <= end)]
                longest = max(longest, float(np.diff(came, append=end).max()))
        return round(longest, 4)


@contextmanager
def _probing(bench: BenchCluster, scratch: Path, topic: str) -> Any:
    probe = _Probe(bench, scratch, topic)
    try:
        yield probe
    finally:
        probe.close()


def _kill(bench: BenchCluster, scratch: Path, kills: int, show: Show) -> Figures:
    """Each time the broker that leads the most; it is back before the next."""
    names, done = bench.names[:BROKERS], []
    with _probing(bench, scratch, "kill") as probe:
        for number in range(kills):
            show(f"broker killed, {number + 1} of {kills}")
            led = leaders(bench.await_members(names))
            victim = max(sorted(set(led), key=str), key=led.count)
            assert victim is not None
            time.sleep(0.5)
            done.append((bench.kill(victim), [n for n, name in enumerate(led) if name == victim]))
            bench.await_members([name for name in names if name != victim])
            time.sleep(1.0)
            bench.start(victim)
        bench.await_members(names)
        probe.finish()
    found = [{"shards": shards, **_served(probe, shards, at)} for at, shards in done]
    worst = [each["served_s"] for each in found]
    return {
        "median_s": round(statistics.median(worst), 4),
        "worst_s": max(worst),
        **probe.told,
        "kills": found,
    }


def _served(probe: _Probe, shards: list[int], at: float) -> Figures:
    times = [probe.served_after_s(shard, at) for shard in shards]
    acked, delivered = (max(column) for column in zip(*times, strict=True))
    return {"acked_s": acked, "delivered_s": delivered, "served_s": max(acked, delivered)}


def _nodes(bench: BenchCluster, scratch: Path, rounds: int, show: Show) -> Figures:
    """A server that leads no journal but keeps all, and one that leads some."""
    found: Figures = {"follower_lost_s": [], "stream_leader_lost_s": []}
    moments = []
    with _probing(bench, scratch, "nodes") as probe:
        for number in range(rounds):
            for kind, watch_s in (("follower", _FOLLOWER_S), ("stream_leader", _LEADER_S)):
                show(f"round {number + 1}: NATS server lost, {kind.replace('_', ' ')}")
                bench.await_replicas()
                led = bench.journal_nodes()
                node = max(sorted(bench.nodes), key=list(led.values()).count)
                shards = [shard for shard, name in led.items() if name == node]
                if kind == "follower":
                    # Those whose journals another server leads.
                    shards = [shard for shard, name in led.items() if name != node]
                    if not shards:
                        node = next(name for name in bench.nodes if name != node)
                        shards = list(led)
                at = bench.kill(node)
                time.sleep(watch_s)
                moments.append((kind, shards, at, at + watch_s))
                bench.start(node)
        bench.await_replicas()
        probe.finish()
    for kind, shards, begin, end in moments:
        found[f"{kind}_lost_s"].append(probe.pause_s(shards, begin, end))
    return {
        "follower_lost_worst_s": max(found["follower_lost_s"]),
        "stream_leader_lost_worst_s": max(found["stream_leader_lost_s"]),
        **probe.told,
        **found,
    }


def _join(bench: BenchCluster, scratch: Path, show: Show) -> Figures:
    """A fourth broker: until it leads its share, and how long its shards were away for that."""
    show("a fourth broker joins")
    bench.await_share(bench.names[:BROKERS])
    before = leaders(bench.await_members(bench.names[:BROKERS]))
    with _probing(bench, scratch, "join") as probe:
        begin = time.monotonic()
        bench.start(bench.names[BROKERS])
        bench.await_members(bench.names)
        joined = time.monotonic()
        bench.await_share(bench.names)
        end = time.monotonic()
        time.sleep(1.0)
        probe.finish()
    after = leaders(bench.await_members(bench.names))
    moved = [shard for shard, name in enumerate(after) if name != before[shard]]
    return {
        "share_s": round(end - begin, 3),
        "share_after_joining_s": round(end - joined, 3),
        "shards_moved": len(moved),
        "handover_worst_s": probe.pause_s(moved, begin, end + 0.5),
        **probe.told,
    }
