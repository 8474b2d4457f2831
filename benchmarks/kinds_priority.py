"""Priority topics over the wire, beside a timeline in the same run.

The same messages go into a timeline, where they are due at random within the last second and in another
round in the order in which they come, and into priority topics whose priorities are drawn from ten
values, from all 65,536, and from ten with a starvation guard; all of them lie there before the
first is leased, so that the order has to be made of everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import fasti
from benchmarks.kinds import beside
from benchmarks.throughput_jobs import BATCH, PAYLOAD
from benchmarks.wire import broker, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]

# Of the timeline's rate: produce, and lease with ack.
ASKED = {"of_timeline": 0.7}
_WINDOW = 16
_ROUNDS = 3
# By topic: how many different priorities, and the settings.
_TOPICS: dict[str, tuple[int, dict[str, Any]]] = {
    "timeline_random": (0, {}),
    "timeline": (0, {}),
    "ten_priorities": (10, {"kind": "priority"}),
    "all_priorities": (65_536, {"kind": "priority"}),
    "with_guard": (10, {"kind": "priority", "age_step": "1m"}),
}


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100-byte payloads in batches of 5,000: in, and out with acks, each topic on its own broker.

    The best of several rounds in turn: what else the machine does makes a round slower, never
    faster, and a ratio of two rounds is worth no more than the worse of them.
    """
    figures: Figures = {topic: {} for topic in _TOPICS}
    for turn in range(_ROUNDS):
        for topic in _TOPICS:
            show(f"priority: {topic.replace('_', ' ')}, round {turn + 1} of {_ROUNDS}")
            for name, found in _round(directory, topic, rows).items():
                before = figures[topic].get(name, found)
                figures[topic][name] = max(before, found, key=lambda f: f["messages_per_s"])
    for topic, found in figures.items():
        for name, figure in found.items():
            peer = figures["timeline"][name]["messages_per_s"]
            ratio = round(figure["messages_per_s"] / peer, 3)
            figures[topic][name] = {**beside(figure, limits), "of_timeline": ratio}
    return {**figures, "asked": ASKED}


def _round(directory: Path | None, topic: str, rows: int) -> Figures:
    priorities, settings = _TOPICS[topic]
    with broker(directory) as process:
        with fasti.connect(process.address) as client:
            client.create_topic(topic, **settings)
        given = {"topic": topic, "rows": rows, "priorities": priorities}
        produced = run_job("kinds_priority:produce", process.address, **given)
        acked = run_job("consume_batches", process.address, topic=topic, rows=rows)
    return {"produce": produced, "lease_ack": acked}


def produce(address: str, topic: str, rows: int, priorities: int) -> Figures:
    """As `produce_batches`, each row with a priority drawn at random below so many; 0: none."""
    random = np.random.default_rng(7)
    payloads = pa.array([PAYLOAD] * BATCH, type=pa.binary())
    waiting: deque[Any] = deque()
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin = time.perf_counter()
        for _ in range(rows // BATCH):
            drawn = random.integers(0, priorities, BATCH).astype(np.int32) if priorities else None
            due = None
            if topic == "timeline_random":
                due = client.clock.now_us() - random.integers(0, 1_000_000, BATCH)
            waiting.append(producer.send_batch(payloads, due=due, priority=drawn, wait=False))
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok
        seconds = time.perf_counter() - begin
    return {"rows": rows, "messages_per_s": round(rows / seconds)}


JOBS = {"produce": produce}
