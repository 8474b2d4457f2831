"""Engine and journal together: durable lease + ack and produce, and what a checkpoint does to the journal."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.limits import disk_limits
from benchmarks.traffic import BATCH, TOPIC, Traffic, prepared, send_all
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core.commands import Ack, CreateTopic
from fasti.model import HOUR_US, TopicSettings
from fasti.storage.directory import directory_storage

_NEVER = 1 << 50


def open_shard(directory: Path, **settings: Any) -> Shard:
    """A shard in a directory, with its topic."""
    shard = Shard(directory_storage(directory), ShardSettings(**settings))
    # Longer than any of it takes: a consumer whose leases run out gets little.
    shard.call(CreateTopic(TOPIC, TopicSettings(lease_us=HOUR_US)))
    return shard


def durable_produce(directory: Path, rows: int = 2_000_000) -> dict[str, Any]:
    """Messages per second, synced before they are answered, and the share of the disk's limit."""
    limit = disk_limits(directory)
    results: dict[str, Any] = {"rows": rows, "disk": limit}
    for name, keyed in (("plain", False), ("keyed", True)):
        shard = open_shard(directory / name, checkpoint_bytes=_NEVER)
        traffic = Traffic(shard.store.seed, shard.clock.now_us())
        send_all(shard, traffic.batches(20 * BATCH, keyed))
        commands = prepared(traffic.batches(rows, keyed))
        written = shard.committer.written_bytes
        seconds = send_all(shard, commands)
        written = shard.committer.written_bytes - written
        mb_per_s = written / seconds / 1e6
        results[name] = {
            "per_s": round(rows / seconds),
            "bytes_per_message": round(written / rows, 1),
            "mb_per_s": round(mb_per_s, 1),
            "share_of_disk": round(mb_per_s / limit["durable_mb_per_s"], 3),
        }
        shard.close(checkpoint=False)
    results["asked"] = {"plain": 1_500_000, "keyed": 1_000_000, "or_share_of_disk": 0.6}
    return results


def durable_lease_ack(directory: Path, rows: int = 2_000_000) -> dict[str, Any]:
    """Lease + ack of batches that are there, durable: due at random within a second, then in order."""
    results: dict[str, Any] = {"rows": rows}
    for name, shuffled in (("random", True), ("arrival_order", False)):
        shard = open_shard(directory / name, checkpoint_bytes=_NEVER)
        traffic = Traffic(shard.store.seed, shard.clock.now_us())
        send_all(shard, prepared(traffic.due_batches(rows, shuffled)))
        used, begin = time.process_time(), time.perf_counter()
        work_off(shard, rows)
        results[name] = {
            "per_s": round(rows / (time.perf_counter() - begin)),
            "cpu_us_per_message": round((time.process_time() - used) / rows * 1e6, 3),
        }
        shard.close(checkpoint=False)
    for name in ("per_s", "cpu_us_per_message"):
        ratio = results["random"][name] / results["arrival_order"][name]
        results[f"{name}_of_arrival_order"] = round(ratio, 3)
    return results | {"asked": {"per_s_of_arrival_order": 0.7}}


def work_off(shard: Shard, count: int) -> None:
    """Leases so many, reads their payloads and acks them; all are durable when it returns."""
    session, answers = shard.open_session(), []
    session.lease(TOPIC, "worker", count)
    while count > 0:
        delivery = session.receive(timeout=30)
        if delivery is None:
            raise RuntimeError("no delivery within 30 s")
        ids = delivery.leased.ids
        tokens = np.full(len(ids), delivery.leased.token, dtype=np.int64)
        answers.append(shard.submit([Ack(TOPIC, ids, tokens)]))
        count -= len(ids)
    for answer in answers:
        answer.result()
    session.close()


def checkpoint_beside_traffic(directory: Path, rows: int = 1_500_000) -> dict[str, Any]:
    """The journal's sync times under steady produce, without and with a checkpoint running."""
    shard = open_shard(directory / "checkpoint", checkpoint_bytes=_NEVER)
    traffic = Traffic(shard.store.seed, shard.clock.now_us())
    send_all(shard, traffic.batches(rows, keyed=False))
    without = _sync_times(shard, traffic, rows // 3)
    checkpoint = threading.Thread(target=shard.checkpoint)
    checkpoint.start()
    beside: list[float] = []
    while checkpoint.is_alive():
        beside += _sync_times(shard, traffic, 20 * BATCH)
    shard.close(checkpoint=False)
    return {
        "rows": rows,
        "rate_mb_per_s": round(shard.settings.checkpoint_bytes_per_s / 1e6),
        "without": _percentiles(without),
        "with": _percentiles(beside),
    }


def _sync_times(shard: Shard, traffic: Traffic, rows: int) -> list[float]:
    shard.committer.sync_seconds.clear()
    send_all(shard, traffic.batches(rows, keyed=False))
    return list(shard.committer.sync_seconds)


def _percentiles(seconds: list[float]) -> dict[str, Any]:
    return {
        "syncs": len(seconds),
        "p50_ms": round(float(np.percentile(seconds, 50)) * 1e3, 3),
        "p99_ms": round(float(np.percentile(seconds, 99)) * 1e3, 3),
    }
