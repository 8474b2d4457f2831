"""What only concerns Fasti: whether a message costs the same with many pending, or many topics.

The cost is the broker's processor time for a message, scheduled, leased and acknowledged: on a busy
machine it says more than the clock does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.wire import cpu_seconds

if TYPE_CHECKING:
    from benchmarks.peers.scenarios import Bench

Figures = dict[str, Any]

_FEW, _MANY = 10_000, 10_000_000
_TOPICS = 2_000
_ROWS, _BATCH = 200_000, 100


def with_pending(bench: Bench, few: int = _FEW, many: int = _MANY) -> Figures:
    """The same work with few and with many others pending, and the ratio."""
    import fasti

    with fasti.connect(bench.server.address) as client:
        client.create_topic("others")
        client.create_topic("work")
        _fill(client, few)
        _work(bench, client, ["work"])
        cheap = _work(bench, client, ["work"])
        _fill(client, many - few)
        dear = _work(bench, client, ["work"])
    return {"few_us": cheap, "many_us": dear, "ratio": round(dear / cheap, 3)}


def with_topics(bench: Bench, count: int = _TOPICS) -> Figures:
    """The same work in one topic and spread over many, and the ratio."""
    import fasti

    names = [f"topic-{number}" for number in range(count)]
    with fasti.connect(bench.server.address) as client:
        client.create_topic("work")
        for name in names:
            client.create_topic(name)
        _work(bench, client, ["work"])
        cheap = _work(bench, client, ["work"])
        dear = _work(bench, client, names)
    return {"one_us": cheap, "many_us": dear, "ratio": round(dear / cheap, 3)}


def _fill(client: Any, rows: int) -> None:
    import numpy as np
    import pyarrow as pa

    payloads = pa.array([b"x" * 100] * 5_000, type=pa.binary())
    drawn = np.random.default_rng(7)
    producer = client.producer("others")
    begin_us = client.clock.now_us() + 3_600_000_000
    for _ in range(rows // 5_000):
        due = begin_us + drawn.integers(0, 30 * 86_400_000_000, 5_000)
        assert producer.send_batch(payloads, due=due).all_ok


def _work(bench: Bench, client: Any, topics: list[str]) -> float:
    """Broker's microseconds for a message: batches of 100 into each topic in turn, then out again."""
    import pyarrow as pa

    payloads = pa.array([b"x" * 100] * _BATCH, type=pa.binary())
    producers = [client.producer(topic) for topic in topics]
    (pid, *_) = bench.server.pids()
    begin_s = cpu_seconds(pid)
    for number in range(_ROWS // _BATCH):
        assert producers[number % len(topics)].send_batch(payloads).all_ok
    for producer in producers:
        producer.close()
    for topic in topics:
        left = _ROWS // len(topics)
        with client.consumer(topic, timeout=5) as consumer:
            for batch in consumer.batches(_BATCH):
                batch.ack()
                left -= len(batch)
                if left <= 0:
                    break
    return round((cpu_seconds(pid) - begin_s) * 1e6 / _ROWS, 2)
