"""Clients of `fasti bench cluster`, each run in a process of its own (`wire.py`)."""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import fasti
from benchmarks.payloads import payloads
from fasti.errors import FastiError

Figures = dict[str, Any]

# One for each shard.
PARTITIONS = 3
PAYLOAD_BYTES = 1_024
_ROWS = 1_000
_WINDOW = 16
# Batches to choose from: making them is not measured.
_BATCHES = 16
_MIB = 1 << 20


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def produce(address: str, topic: str, kind: str, seconds: float) -> Figures:
    """Batches of a thousand messages of 1 KiB, each durable when its batch is answered; for so long."""
    batches = [
        pa.array(payloads(kind, _ROWS, PAYLOAD_BYTES, seed), type=pa.binary())
        for seed in range(_BATCHES)
    ]
    waiting: deque[Any] = deque()
    sent = size = number = 0
    with fasti.connect(address) as client:
        client.create_topic(topic, partitions=PARTITIONS)
        producer = client.producer(topic)
        # The first batch runs code for the first time.
        assert producer.send_batch(batches[0], delay="1d").all_ok
        before, begin = _cpu_s(), time.perf_counter()
        while time.perf_counter() - begin < seconds:
            batch = batches[number % _BATCHES]
            number += 1
            waiting.append(producer.send_batch(batch, delay="1d", wait=False))
            sent += len(batch)
            size += batch.nbytes
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok
        took = time.perf_counter() - begin
        cpu_s = _cpu_s() - before
    return {
        "mb_per_s": round(size / took / 1e6, 2),
        "messages_per_s": round(sent / took),
        "client_cpu_ms_per_mb": round(cpu_s * 1e9 / size, 3),
    }


def bare(address: str, streams: int, seconds: float, run: str) -> Figures:
    """nats-py alone: messages of 1 MiB into streams like a journal's, one in flight in each.

    `address` has the servers' URLs, with commas.
    """
    return asyncio.run(_bare(address.split(","), streams, seconds, run))


async def _bare(urls: list[str], streams: int, seconds: float, run: str) -> Figures:
    import nats

    client = await nats.connect(urls, pending_size=64 * _MIB)
    jetstream = client.jetstream()
    messages = payloads("random", _BATCHES, _MIB - 512)
    sent = 0

    async def publish(name: str) -> None:
        nonlocal sent
        last = 0
        while time.perf_counter() - begin < seconds:
            message = messages[last % _BATCHES]
            headers = {"Nats-Expected-Last-Sequence": str(last)}
            last = (await jetstream.publish(name, message, timeout=30.0, headers=headers)).seq
            sent += len(message)

    names = [f"{run}-{number}" for number in range(streams)]
    for name in names:
        await jetstream.add_stream(
            name=name, subjects=[name], num_replicas=3, storage="file", discard="new"
        )
    before, begin = _cpu_s(), time.perf_counter()
    await asyncio.gather(*map(publish, names))
    took = time.perf_counter() - begin
    cpu_s = _cpu_s() - before
    for name in names:
        await jetstream.delete_stream(name)
    await client.close()
    return {
        "mb_per_s": round(sent / took / 1e6, 2),
        "client_cpu_ms_per_mb": round(cpu_s * 1e9 / sent, 3),
    }


def send_one(address: str, topic: str, rows: int, into: str) -> Figures:
    """One message at a time, far ahead: from `send` until it is known to be durable."""
    took = []
    messages = payloads("json", 64, 200)
    with fasti.connect(address) as client:
        client.create_topic(topic, partitions=PARTITIONS)
        producer = client.producer(topic)
        for number in range(rows + 100):
            begin = time.perf_counter_ns()
            producer.send(messages[number % 64], delay="1d").result()
            if number >= 100:
                took.append((time.perf_counter_ns() - begin) // 1000)
    np.array(took, dtype=np.int64).tofile(Path(into))
    return {"rows": rows}


# A client that goes on whatever happens, and writes down when each message was sent, acknowledged, delivered


class _Record:
    """Rows of (shard, when it was sent, when it came), in microseconds of the clock that doesn't jump."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def add(self, shard: int, sent_us: int) -> None:
        self._rows.append((shard, sent_us, _now_us()))

    def write(self, path: str) -> None:
        np.array(self._rows, dtype=np.int64).reshape(-1, 3).tofile(path)


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def probe(address: str, topic: str, pause_s: float, acks: str, deliveries: str) -> Figures:
    """Sends to every shard and takes what is due, until a line comes on stdin; with leases held all the while."""
    stop = threading.Event()
    acked, delivered = _Record(), _Record()
    errors: list[str] = []
    with fasti.connect(address, timeout="60s") as client:
        layout = client.transport.layout(topic)
        partitions = {layout.shard_of(p): p for p in range(layout.partitions)}
        held = _Held(client, f"{topic}-held", partitions)
        producers = {shard: client.producer(topic) for shard in partitions}

        def send(shard: int, partition: int) -> None:
            noise = iter(payloads("random", 4_096, 64, seed=shard) * 1_000)
            while not stop.is_set():
                sent_us = _now_us()
                payload = sent_us.to_bytes(8) + shard.to_bytes(1) + next(noise)
                try:
                    producers[shard].send(payload, partition=partition).result()
                    acked.add(shard, sent_us)
                except FastiError as error:
                    errors.append(f"send: {error.code}")
                stop.wait(pause_s)

        consumer = client.consumer(topic, prefetch=64, timeout="1s")

        def take() -> None:
            while not stop.is_set():
                for message in consumer:
                    sent_us = int.from_bytes(message.payload[:8])
                    delivered.add(message.payload[8], sent_us)
                    message.ack()
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=send, args=item) for item in partitions.items()]
        threads.append(threading.Thread(target=take))
        for thread in threads:
            thread.start()
        print("runs", flush=True)
        sys.stdin.readline()
        stop.set()
        for thread in threads:
            thread.join()
        lost = held.finish()
        consumer.close()
    acked.write(acks)
    delivered.write(deliveries)
    return {"errors": errors[:20], "errors_count": len(errors), "leases_lost": lost}


class _Held:
    """Messages of every shard in user code's hands from the beginning to the end."""

    COUNT = 12

    def __init__(self, client: Any, topic: str, partitions: dict[int, int]) -> None:
        client.create_topic(topic, partitions=len(partitions), lease="10s")
        producer = client.producer(topic)
        for number in range(self.COUNT):
            partition = number % len(partitions)
            producer.send(f'{{"held": {number}}}'.encode(), partition=partition).result()
        self._consumer = client.consumer(topic, name="holder", prefetch=self.COUNT)
        taken = iter(self._consumer)
        self._messages = [next(taken) for _ in range(self.COUNT)]
        self._other = client.consumer(topic, name="other", timeout="0.5s")

    def finish(self) -> int:
        """How many of them are not this client's any more."""
        redelivered = sum(1 for _ in self._other)
        refused = 0
        for message in self._messages:
            try:
                message.ack(wait=True)
            except FastiError:
                refused += 1
        self._other.close()
        self._consumer.close()
        return max(redelivered, refused)


JOBS: dict[str, Callable[..., Figures]] = {
    "produce": produce,
    "bare": bare,
    "send_one": send_one,
    "probe": probe,
}
