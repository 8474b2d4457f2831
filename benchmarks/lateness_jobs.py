"""Clients of the lateness benchmark, each run in a process of its own.

Lateness is taken by the machine's wall clock, which the broker goes by too, at the first line of
user code: not by what the SDK says of itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import fasti
from benchmarks.payloads import payloads as make_payloads

Figures = dict[str, Any]

PAYLOAD = b"x" * 100
_TICK_S = 0.02
_AHEAD_US = 1_000_000


def steady_producer(address: str, topic: str, rate: int, seconds: float, kind: str = "") -> Figures:
    """So many messages a second, each due a second after it is sent, evenly spread."""
    count = round(rate * _TICK_S)
    payloads = pa.array(_payloads(count, kind), type=pa.binary())
    steps = (np.arange(count) * 1_000_000) // rate
    batches = round(seconds / _TICK_S)
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin_us = time.time_ns() // 1000
        waiting = []
        for number in range(batches):
            at_us = begin_us + round(number * _TICK_S * 1e6)
            time.sleep(max(0.0, at_us / 1e6 - time.time()))
            waiting.append(producer.send_batch(payloads, due=at_us + _AHEAD_US + steps, wait=False))
        assert all(batch.result().all_ok for batch in waiting)
    return {"rows": count * batches}


def _payloads(count: int, kind: str) -> list[bytes]:
    """All alike, or of a kind of `payloads.py`."""
    return make_payloads(kind, count, len(PAYLOAD)) if kind else [PAYLOAD] * count


def steady_consumers(
    address: str, topic: str, sessions: int, rows: int, prefetch: int, into: str
) -> Figures:
    """Consumers in threads; how late each message was goes into a file of int64 microseconds."""
    found: list[list[int]] = [[] for _ in range(sessions)]
    left, done = _Countdown(rows), threading.Event()

    def consume(number: int) -> None:
        late = found[number]
        for message in consumers[number]:
            now_us = time.time_ns() // 1000
            late.append(now_us - message.due_us)
            message.ack()
            if left.one():
                done.set()

    with fasti.connect(address) as client:
        consumers = [client.consumer(topic, prefetch=prefetch) for _ in range(sessions)]
        threads = [threading.Thread(target=consume, args=(n,)) for n in range(sessions)]
        for thread in threads:
            thread.start()
        done.wait()
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()
    late = np.concatenate([np.array(part, dtype=np.int64) for part in found])
    late.tofile(Path(into))
    return {"rows": len(late)}


class _Countdown:
    """Says True to whoever takes the last one."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def one(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0


def one_at_a_time(address: str, topic: str, rows: int, into: str, kind: str = "") -> Figures:
    """Sends a message that is due now, waits until it is delivered, then the next."""
    took = []
    payloads = _payloads(64, kind)
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        messages = iter(client.consumer(topic))
        for number in range(rows + 100):
            begin = time.perf_counter_ns()
            producer.send(payloads[number % 64])
            message = next(messages)
            if number >= 100:
                took.append((time.perf_counter_ns() - begin) // 1000)
            message.ack()
    np.array(took, dtype=np.int64).tofile(Path(into))
    return {"rows": rows}


def burst_producer(address: str, topic: str, rows: int, after_s: float) -> Figures:
    """Messages that are all due at one instant."""
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        due_us = client.clock.now_us() + round(after_s * 1e6)
        payloads = pa.array([PAYLOAD] * 5_000, type=pa.binary())
        sent = [
            producer.send_batch(payloads, due=np.full(5_000, due_us), wait=False)
            for _ in range(rows // 5_000)
        ]
        assert all(batch.result().all_ok for batch in sent)
    return {"rows": rows}


def burst_consumers(
    address: str, topic: str, sessions: int, prefetch: int, into: str, quiet_s: float
) -> Figures:
    """Takes what comes until nothing has come for a while; how late each was goes into a file."""
    found: list[list[int]] = [[] for _ in range(sessions)]

    def consume(number: int) -> None:
        late = found[number]
        for message in consumers[number]:
            late.append(time.time_ns() // 1000 - message.due_us)
            message.ack()

    with fasti.connect(address) as client:
        consumers = [
            client.consumer(topic, prefetch=prefetch, timeout=quiet_s) for _ in range(sessions)
        ]
        threads = [threading.Thread(target=consume, args=(n,)) for n in range(sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    late = np.concatenate([np.array(part, dtype=np.int64) for part in found])
    late.tofile(Path(into))
    return {"rows": len(late)}


JOBS: dict[str, Callable[..., Figures]] = {
    "steady_producer": steady_producer,
    "steady_consumers": steady_consumers,
    "one_at_a_time": one_at_a_time,
    "burst_producer": burst_producer,
    "burst_consumers": burst_consumers,
}
