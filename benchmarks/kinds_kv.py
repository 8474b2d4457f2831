"""Key-value topics over the wire: putting and getting many keys at a time, scanning, watching."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import fasti
from benchmarks.kinds import beside
from benchmarks.throughput_jobs import BATCH, PAYLOAD
from benchmarks.wire import broker, cpu_seconds, memory_mb, run_job
from fasti.errors import Gone

Figures = dict[str, Any]
Show = Callable[[str], None]

ASKED = {"put": 300_000, "multi_get": 300_000}
KEYS = 1_000_000
# Calls under way at a time, in one process with one connection.
_AT_ONCE = 4


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100-byte values in batches of 5,000 over a million keys: new, put again, and got."""
    keys = min(rows, KEYS)
    figures: Figures = {"keys": keys}
    with broker(directory) as process:
        address = process.address
        with fasti.connect(address) as client:
            client.create_topic("entries", kind="kv")
        show("kv: put new keys, batches of 5,000")
        figures["put"] = run_job("kinds_kv:put", address, topic="entries", keys=keys, rows=keys)
        figures["broker_mb"] = memory_mb(process.pid)
        show("kv: put keys that are there, at random")
        again = {"topic": "entries", "keys": keys, "rows": keys, "seed": 1}
        figures["put_again"] = run_job("kinds_kv:put", address, **again)
        show("kv: get, batches of 5,000 at random")
        before = cpu_seconds(process.pid)
        figures["multi_get"] = run_job("kinds_kv:get", address, **{**again, "rows": rows})
        figures["multi_get"]["broker_cpu_s"] = round(cpu_seconds(process.pid) - before, 2)
        show("kv: watch all changes from the first put on")
        figures["watch"] = run_job("kinds_kv:watch", address, topic="entries", rows=keys)
        with fasti.connect(address) as client:
            client.checkpoint()
        show("kv: get from runs, after a checkpoint")
        figures["multi_get_from_runs"] = run_job("kinds_kv:get", address, **again)
        show("kv: scan in order, the first of which sorts the keys")
        figures["scan"] = run_job("kinds_kv:scan", address, topic="entries", rows=keys)
    for name in ("put", "put_again", "multi_get", "multi_get_from_runs"):
        figures[name] = beside(figures[name], limits)
    return {**figures, "asked": ASKED}


# Jobs: each in a process of its own


def put(address: str, topic: str, keys: int, rows: int, seed: int | None = None) -> Figures:
    """Every key once in order, or keys at random; each batch is durable when it is answered."""
    values = pa.array([PAYLOAD] * BATCH, type=pa.binary())
    with fasti.connect(address) as client:
        kv = client.kv(topic)
        took = _all_at_once(
            _batches(keys, rows, seed), lambda names: kv.put_many(names, values).all_ok
        )
    return {"rows": rows, "messages_per_s": round(rows / took)}


def get(address: str, topic: str, keys: int, rows: int, seed: int | None = None) -> Figures:
    """Keys at random with their values; every one of them is there."""

    def is_there(names: pa.Array) -> bool:
        found = kv.get_many(names)
        return bool(pc.all(pc.equal(found.column("status"), "ok")).as_py())

    with fasti.connect(address) as client:
        kv = client.kv(topic)
        took = _all_at_once(_batches(keys, rows, seed), is_there)
    return {"rows": rows, "messages_per_s": round(rows / took)}


def scan(address: str, topic: str, rows: int) -> Figures:
    """All entries in order, twice."""
    figures: Figures = {}
    with fasti.connect(address) as client:
        kv = client.kv(topic)
        for name in ("first", "second"):
            begin = time.perf_counter()
            taken = sum(batch.num_rows for batch in kv.scan())
            seconds = time.perf_counter() - begin
            assert taken == rows
            figures[f"{name}_s"] = round(seconds, 2)
            figures[f"{name}_messages_per_s"] = round(taken / seconds)
    return figures


def watch(address: str, topic: str, rows: int) -> Figures:
    """So many changes from the journal and the ring, by batches, or as many as it remembers."""
    taken, begin = 0, time.perf_counter()
    with fasti.connect(address) as client:
        try:
            with client.kv(topic).watch(position=1, timeout="2s") as changes:
                for batch in changes.batches():
                    taken += batch.num_rows
                    if taken >= rows:
                        break
        except Gone as error:
            return {"rows": taken, "gone": error.message}
    seconds = time.perf_counter() - begin
    return {"rows": taken, "messages_per_s": round(taken / seconds)}


def _batches(keys: int, rows: int, seed: int | None) -> list[pa.Array]:
    """Made before the clock starts."""
    names = pa.array([f"user-{number:08d}" for number in range(keys)], pa.string())
    random = np.random.default_rng(seed)
    found = []
    for begin in range(0, rows - rows % BATCH, BATCH):
        if seed is None:
            found.append(names.slice(begin % keys, BATCH))
        else:
            found.append(names.take(pa.array(random.integers(0, keys, BATCH))))
    return found


def _all_at_once(batches: list[pa.Array], call: Callable[[pa.Array], bool]) -> float:
    """How long it took, with a few calls under way at a time."""
    waiting: deque[Future[bool]] = deque()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        begin = time.perf_counter()
        for batch in batches:
            waiting.append(threads.submit(call, batch))
            if len(waiting) > 2 * _AT_ONCE:
                assert waiting.popleft().result()
        while waiting:
            assert waiting.popleft().result()
        return time.perf_counter() - begin
