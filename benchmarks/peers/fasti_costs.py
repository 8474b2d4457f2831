"""What only concerns Fasti: whether a message costs the same with many pending, or many topics.

The cost is the broker's processor time for a message, scheduled, leased and acknowledged, a batch of 100
after the other: on a busy machine it says more than the clock does. It is that of steady traffic: the
checkpoint of what was filled in before has ended, and in many topics producers and consumers are open and
have had a batch before it is counted. Everything that the broker does meanwhile counts, for whomever:
heartbeats of the consumers that are open, housekeeping, and looking after the messages that only wait.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.wire import cpu_seconds

if TYPE_CHECKING:
    from benchmarks.peers.scenarios import Bench

Figures = dict[str, Any]

_FEW, _MANY = 10_000, 10_000_000
_TOPICS = 2_000
_BATCH, _BATCHES = 100, 2_000
# Batches a round, and topics with a consumer at a time; rounds in one topic, and in each of many.
_AT_A_TIME = 100
_ROUNDS_ALONE, _ROUNDS_EACH = 40, 3


def with_pending(bench: Bench, few: int = _FEW, many: int = _MANY) -> Figures:
    """The same work with few and with many others pending, and the ratio."""
    import fasti

    with fasti.connect(bench.server.address) as client:
        client.create_topic("others")
        client.create_topic("work")
        _fill(client, few)
        cheap = _streamed_us(bench, client, "work")
        _fill(client, many - few)
        dear = _streamed_us(bench, client, "work")
    return {"few_us": cheap, "many_us": dear, "ratio": round(dear / cheap, 3)}


def with_topics(bench: Bench, count: int = _TOPICS) -> Figures:
    """The same work in one topic and in many, and the ratio.

    A client process has no room for the threads of thousands of consumers: 100 topics at a time have theirs,
    until all had their turn. What is not in the ratio is told beside it, in microseconds for a topic: to open
    and close a producer and a consumer, their first batch, and a checkpoint for every 100 topics.
    """
    import fasti

    names = [f"topic-{number}" for number in range(count)]
    with fasti.connect(bench.server.address) as client:
        client.create_topic("work")
        for name in names:
            client.create_topic(name)
        cheap = _cost_us(_seconds(bench, client, ["work"], _ROUNDS_ALONE), _ROUNDS_ALONE)
        begin_s, counted_s = _broker_s(bench), 0.0
        for first in range(0, count, _AT_A_TIME):
            some = names[first : first + _AT_A_TIME]
            counted_s += _seconds(bench, client, some, _ROUNDS_EACH)
        opened_s = _broker_s(bench) - begin_s - counted_s
    dear = _cost_us(counted_s, _ROUNDS_EACH * -(-count // _AT_A_TIME))
    return {
        "one_us": cheap,
        "many_us": dear,
        "ratio": round(dear / cheap, 3),
        "opening_us": round(opened_s * 1e6 / count),
    }


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


def _streamed_us(bench: Bench, client: Any, topic: str) -> float:
    """Broker's microseconds for a message in one topic: many batches in, then all out, three times."""
    import pyarrow as pa

    payloads = pa.array([b"x" * 100] * _BATCH, type=pa.binary())
    costs = []
    client.checkpoint(timeout="2m")
    with client.producer(topic) as producer:
        for _ in range(3):
            begin_s = _broker_s(bench)
            for _ in range(_BATCHES):
                assert producer.send_batch(payloads).all_ok
            left = _BATCHES * _BATCH
            with client.consumer(topic, timeout=10) as consumer:
                for batch in consumer.batches(_BATCH):
                    batch.ack()
                    left -= len(batch)
                    if not left:
                        break
            costs.append((_broker_s(bench) - begin_s) * 1e6 / (_BATCHES * _BATCH))
    return round(median(costs), 2)


def _cost_us(seconds: float, rounds: int) -> float:
    return round(seconds * 1e6 / (rounds * _AT_A_TIME * _BATCH), 2)


def _seconds(bench: Bench, client: Any, topics: list[str], rounds: int) -> float:
    """What 100 batches a round cost the broker: into a topic and out again, then the next one's turn.

    Not all in and then all out: a consumer that nobody reads gives back what it holds.
    """
    import pyarrow as pa

    payloads = pa.array([b"x" * 100] * _BATCH, type=pa.binary())
    with ExitStack() as opened:
        producers = [opened.enter_context(client.producer(topic)) for topic in topics]
        consumers = [opened.enter_context(client.consumer(topic, timeout=10)) for topic in topics]
        arriving = [consumer.batches(_BATCH) for consumer in consumers]

        def pass_through() -> None:
            for number in range(_AT_A_TIME):
                turn, left = number % len(topics), _BATCH
                assert producers[turn].send_batch(payloads).all_ok
                while left:
                    batch = next(arriving[turn])
                    batch.ack()
                    left -= len(batch)

        pass_through()
        client.checkpoint(timeout="2m")
        begin_s = _broker_s(bench)
        for _ in range(rounds):
            pass_through()
        return _broker_s(bench) - begin_s


def _broker_s(bench: Bench) -> float:
    (pid, *_) = bench.server.pids()
    return cpu_seconds(pid)
