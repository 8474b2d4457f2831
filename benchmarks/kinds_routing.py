"""Routing over the wire: the same batches into a topic, bound to none, one and three others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import fasti
from benchmarks.kinds import beside
from benchmarks.throughput_jobs import BATCH, PAYLOAD
from benchmarks.wire import broker, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]

_WINDOW = 8
_REGIONS = ("eu", "us", "asia", "africa")


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100-byte payloads in batches of 5,000, with a subject each; rates count what was sent."""
    figures: Figures = {}
    for targets in (0, 1, 3):
        show(f"routing: produce into a topic bound to {targets}")
        with broker(directory) as process, fasti.connect(process.address) as client:
            client.create_topic("orders")
            for number in range(targets):
                client.create_topic(f"copy-{number}")
                client.bindings("orders").add("orders.*.created", f"copy-{number}")
            sent = run_job("kinds_routing:produce", process.address, topic="orders", rows=rows)
            for number in range(targets):
                assert client.messages(f"copy-{number}").count()["ready"] == sent["rows"]
        sent["copies_per_s"] = sent["messages_per_s"] * (1 + targets)
        figures[f"bound_to_{targets}"] = beside(sent, limits)
    plain = figures["bound_to_0"]["messages_per_s"]
    for targets in (1, 3):
        mine = figures[f"bound_to_{targets}"]
        mine["of_unbound"] = round(mine["messages_per_s"] / plain, 3)
    return figures


def produce(address: str, topic: str, rows: int) -> Figures:
    """Batches with one of four subjects in each row."""
    subjects = pa.array([f"orders.{_REGIONS[n % 4]}.created" for n in range(BATCH)])
    table = pa.table({"payload": pa.array([PAYLOAD] * BATCH, pa.binary()), "subject": subjects})
    waiting: deque[Any] = deque()
    rows -= rows % BATCH
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin = time.perf_counter()
        for _ in range(rows // BATCH):
            waiting.append(producer.send_batch(table, wait=False))
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok
        seconds = time.perf_counter() - begin
    return {"rows": rows, "messages_per_s": round(rows / seconds)}
