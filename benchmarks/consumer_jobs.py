"""Clients of the consumer benchmark, each run in a process of its own. `prefetch` 0 leaves it unset."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from typing import Any

import numpy as np

import fasti
import fasti.aio

Figures = dict[str, Any]

# A rate is that of so many messages.
_PIECE = 1_000


def _found(stamps: array[float], flushed: float) -> Figures:
    """Of when each message was finished, and when all of that was durable.

    The time to full rate: until the first piece that came at 0.8 of the rate of the second half.
    """
    seconds = np.frombuffer(stamps, dtype=np.float64)
    pieces = seconds[::_PIECE] - seconds[0]
    rates = _PIECE / np.maximum(np.diff(pieces), 1e-9)
    half = len(pieces) // 2
    full = (len(pieces) - 1 - half) * _PIECE / (pieces[-1] - pieces[half])
    reached = int(np.argmax(rates >= 0.8 * full))
    return {
        "messages_per_s": round(len(seconds) / (flushed - seconds[0])),
        "full_rate_after_ms": round(float(pieces[reached]) * 1e3, 1),
    }


def loop(address: str, topic: str, rows: int, prefetch: int) -> Figures:
    """`for message in consumer: message.ack()`."""
    stamps = array("d")
    with fasti.connect(address) as client:
        consumer = client.consumer(topic, prefetch=prefetch or None)
        for message in consumer:
            message.ack()
            stamps.append(time.perf_counter())
            if len(stamps) == rows:
                break
        consumer.flush()
        flushed = time.perf_counter()
        consumer.close()
    return _found(stamps, flushed)


def aio(address: str, topic: str, rows: int, prefetch: int) -> Figures:
    """The same in an event loop."""

    async def consume() -> Figures:
        stamps = array("d")
        async with await fasti.aio.connect(address) as client:
            consumer = client.consumer(topic, prefetch=prefetch or None)
            async for message in consumer:
                message.ack()
                stamps.append(time.perf_counter())
                if len(stamps) == rows:
                    break
            await consumer.flush()
            flushed = time.perf_counter()
            await consumer.close()
        return _found(stamps, flushed)

    return asyncio.run(consume())


def app(address: str, topic: str, rows: int, prefetch: int, concurrency: int = 1) -> Figures:
    """A handler that does nothing; the last acks are not waited for."""
    stamps = array("d")
    done = threading.Event()
    running = fasti.App(address)

    @running.on(topic, prefetch=prefetch or None, concurrency=concurrency)
    def handle(payload: bytes) -> None:
        stamps.append(time.perf_counter())
        if len(stamps) >= rows:
            done.set()

    with running:
        done.wait()
        return _found(stamps[:rows], stamps[rows - 1])


def send(address: str, topic: str, rows: int, buffer_rows: int) -> Figures:
    """`producer.send(payload)` in a loop, until all of it is durable. `buffer_rows` 0 leaves it unset."""
    given: Figures = {"buffer_rows": buffer_rows} if buffer_rows else {}
    payload = b"x" * 100
    with fasti.connect(address) as client, client.producer(topic, **given) as producer:
        producer.send(payload).result()
        begin = time.perf_counter()
        for _ in range(rows):
            producer.send(payload)
        producer.flush()
        seconds = time.perf_counter() - begin
    return {"messages_per_s": round(rows / seconds)}


def burst(address: str, topic: str, rows: int, prefetch: int) -> Figures:
    """What comes until so many have: how long after its due time the last was in user code."""
    with fasti.connect(address) as client:
        consumer = client.consumer(topic, prefetch=prefetch or None)
        last_us = 0
        for taken, message in enumerate(consumer, start=1):
            message.ack()
            if taken == rows:
                last_us = message.started_us - message.due_us
                break
        consumer.close()
    return {"last_ms": round(last_us / 1e3, 1)}
