"""Logs over the wire: appending, following, and consuming by a group with acks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fasti
from benchmarks.kinds import beside
from benchmarks.throughput_jobs import BATCH
from benchmarks.wire import ClientProcess, broker, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]

ASKED = {"append": 1_000_000, "follow": 1_500_000, "group_ack": 700_000}


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100-byte payloads in batches of 5,000; a follower reads what lies there, then beside."""
    figures: Figures = {}
    with broker(directory) as process:
        address = process.address
        with fasti.connect(address) as client:
            client.create_topic("events", kind="log")
            client.create_topic("beside", kind="log")
        show("log: append, batches of 5,000")
        figures["append"] = run_job("produce_batches", address, topic="events", rows=rows)
        show("log: follow from the earliest row")
        figures["follow"] = run_job("kinds_log:follow", address, topic="events", rows=rows)
        show("log: a group leases and acks, batches of 5,000")
        figures["group_ack"] = run_job("kinds_log:group_ack", address, topic="events", rows=rows)
        show("log: append and follow at once")
        figures["both_at_once"] = _both(address, rows)
    for name in ("append", "follow", "group_ack"):
        figures[name] = beside(figures[name], limits)
    return {**figures, "asked": ASKED}


def _both(address: str, rows: int) -> Figures:
    producer = ClientProcess("produce_batches", address, topic="beside", rows=rows)
    follower = ClientProcess("kinds_log:follow", address, topic="beside", rows=rows)
    follower.go()
    producer.go()
    produced, followed = producer.result(), follower.result()
    return {
        "append_messages_per_s": produced["messages_per_s"],
        "follow_messages_per_s": followed["messages_per_s"],
    }


# Jobs: each in a process of its own


def follow(address: str, topic: str, rows: int) -> Figures:
    """Reads so many rows as they come, by whole batches, and checks that no offset is missing."""
    taken, begin = 0, 0.0
    with fasti.connect(address) as client:
        with client.reader(topic, start="earliest", follow=True) as reader:
            for table in reader.batches(BATCH):
                begin = begin or time.perf_counter()
                assert table.column("offset")[0].as_py() == taken
                taken += table.num_rows
                if taken >= rows:
                    break
            seconds = time.perf_counter() - begin
    return {"rows": taken, "messages_per_s": round(taken / seconds)}


def group_ack(address: str, topic: str, rows: int, group: str = "bench") -> Figures:
    """Leases and acks by batches; the last ack is answered when the time is taken."""
    taken, begin = 0, 0.0
    with fasti.connect(address) as client:
        consumer = client.consumer(topic, group=group, prefetch=8 * BATCH)
        for leased in consumer.batches(BATCH, wait="20ms"):
            begin = begin or time.perf_counter()
            leased.ack()
            taken += len(leased)
            if taken >= rows:
                break
        consumer.flush()
        seconds = time.perf_counter() - begin
        consumer.close()
        lag = client.groups(topic).lag(group)
    return {"rows": taken, "messages_per_s": round(taken / seconds), "lag_after": lag}
