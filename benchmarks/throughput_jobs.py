"""Clients of the throughput benchmark, each run in a process of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import fasti

Figures = dict[str, Any]

BATCH = 5_000
PAYLOAD = b"x" * 100
_WINDOW = 16


def produce_batches(
    address: str, topic: str, rows: int, spread_us: int = 0, shuffled: bool = False
) -> Figures:
    """Batches of 5,000 by Flight, each row durable when its batch is answered.

    Due now, or spread from now on: in the order in which they are sent, or at random.
    """
    payloads = pa.array([PAYLOAD] * BATCH, type=pa.binary())
    steps = np.arange(BATCH) * (spread_us // BATCH)
    random = np.random.default_rng(7)
    waiting: deque[Any] = deque()
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin = time.perf_counter()
        for _ in range(rows // BATCH):
            if shuffled:
                steps = random.integers(0, spread_us, BATCH)
            due = client.clock.now_us() + steps if spread_us else None
            waiting.append(producer.send_batch(payloads, due=due, wait=False))
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok
        seconds = time.perf_counter() - begin
    return {"rows": rows, "messages_per_s": round(rows / seconds)}


def consume_batches(address: str, topic: str, rows: int, batch: int = BATCH) -> Figures:
    """Leases and acks by batches; the last ack is answered when the time is taken."""
    taken, sizes, begin = 0, [], 0.0
    with fasti.connect(address) as client:
        consumer = client.consumer(topic, prefetch=8 * batch)
        for leased in consumer.batches(batch, wait="20ms"):
            begin = begin or time.perf_counter()
            leased.ack()
            taken += len(leased)
            sizes.append(len(leased))
            if taken >= rows:
                break
        consumer.flush()
        seconds = time.perf_counter() - begin
        consumer.close()
    return {
        "rows": taken,
        "messages_per_s": round(taken / seconds),
        "mean_batch": round(float(np.mean(sizes))),
    }


def send_each(address: str, topic: str, rows: int) -> Figures:
    """`send` for each message; all are durable when the time is taken."""
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin = time.perf_counter()
        for _ in range(rows):
            producer.send(PAYLOAD)
        producer.flush()
        seconds = time.perf_counter() - begin
    return {"rows": rows, "messages_per_s": round(rows / seconds)}


def consume_each(address: str, topic: str, rows: int, prefetch: int = 20_000) -> Figures:
    """`for message in consumer: message.ack()`; all are acked when the time is taken."""
    with fasti.connect(address) as client:
        consumer = client.consumer(topic, prefetch=prefetch)
        begin = 0.0
        for taken, message in enumerate(consumer, start=1):
            begin = begin or time.perf_counter()
            message.ack()
            if taken == rows:
                break
        consumer.flush()
        seconds = time.perf_counter() - begin
        consumer.close()
    return {"rows": rows, "prefetch": prefetch, "messages_per_s": round(rows / seconds)}


def fill(address: str, topic: str, rows: int) -> Figures:
    """Messages that stay where they are: due at random over 30 days, from an hour on."""
    payloads = pa.array([PAYLOAD] * BATCH, type=pa.binary())
    random = np.random.default_rng(7)
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin_us = client.clock.now_us() + 3_600_000_000
        for _ in range(rows // BATCH):
            due = begin_us + random.integers(0, 30 * 86_400_000_000, BATCH)
            assert producer.send_batch(payloads, due=due).all_ok
    return {"rows": rows}


def produce_until(address: str, topic: str, seconds: float) -> Figures:
    """Full-rate bulk produce, far ahead, for so long: traffic beside something else."""
    payloads = pa.array([PAYLOAD] * BATCH, type=pa.binary())
    waiting: deque[Any] = deque()
    rows = 0
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            waiting.append(producer.send_batch(payloads, delay="30d", wait=False))
            rows += BATCH
            if len(waiting) > _WINDOW:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
        took = time.perf_counter() - begin
    return {"rows": rows, "messages_per_s": round(rows / took)}


JOBS: dict[str, Callable[..., Figures]] = {
    "produce_batches": produce_batches,
    "consume_batches": consume_batches,
    "send_each": send_each,
    "consume_each": consume_each,
    "fill": fill,
    "produce_until": produce_until,
}
