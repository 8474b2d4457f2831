"""The messages that benchmarks send: 100-byte payloads, batches of 5,000, due over 30 days."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.shard import Shard
from fasti.core.commands import Produce, When
from fasti.core.keys import Keys, Rows
from fasti.model import DAY_US, SECOND_US

Int64s = NDArray[np.int64]

TOPIC = "bench"
BATCH = 5_000
PAYLOAD_BYTES = 100
_WINDOW = 16


class Traffic:
    """Makes produce commands. Keys are `user-N`, each once."""

    def __init__(self, seed: tuple[int, int], now_us: int, first_key: int = 0) -> None:
        self._seed, self._now_us = seed, now_us
        self._payloads = pa.array([b"x" * PAYLOAD_BYTES] * BATCH, type=pa.binary())
        self._random = np.random.default_rng(7)
        self.next_key = first_key

    def dues(self) -> Int64s:
        """Random moments within 30 days, from a minute on."""
        return self._now_us + 60_000_000 + self._random.integers(0, 30 * DAY_US, BATCH)

    def keys(self) -> pa.Array:
        """The next keys."""
        numbers = np.arange(self.next_key, self.next_key + BATCH)
        self.next_key += BATCH
        return key_names(numbers)

    def produce(self, keyed: bool, due_us: Int64s | int | None = None) -> Produce:
        """One batch."""
        when = When(due_us=self.dues() if due_us is None else due_us)
        if not keyed:
            return Produce(TOPIC, Rows.of(self._payloads), when)
        rows = Rows.of(self._payloads, key=self.keys())
        return Produce(TOPIC, rows, when, rows.keys(self._seed))

    def batches(
        self, rows: int, keyed: bool | None, every_us: int | None = None
    ) -> Iterator[Produce]:
        """So many rows; with keyed=None every other batch has keys. With `every_us` due in order."""
        for number in range(rows // BATCH):
            due_us = None
            if every_us is not None:
                due_us = self._now_us + np.arange(number * BATCH, (number + 1) * BATCH) * every_us
            yield self.produce(number % 2 == 1 if keyed is None else keyed, due_us)

    def due_batches(self, rows: int, shuffled: bool) -> Iterator[Produce]:
        """So many rows that fell due within the last second, at random or as they come."""
        for number in range(rows // BATCH):
            steps = (number * BATCH + np.arange(BATCH)) * SECOND_US // rows
            if shuffled:
                steps = self._random.integers(0, SECOND_US, BATCH)
            yield self.produce(False, self._now_us - SECOND_US + steps)


def key_names(numbers: Int64s) -> pa.Array:
    """The keys with these numbers."""
    return pc.binary_join_element_wise("user-", pa.array(numbers).cast(pa.string()), "")


def hashed_keys(numbers: Int64s, seed: tuple[int, int]) -> Keys:
    """The same, as a command takes them."""
    return Keys(key_names(numbers), seed)


def prepared(batches: Iterator[Produce]) -> Iterator[Produce]:
    """Makes all batches now, and lets go of each when it is sent, as a producer would."""
    made = deque(batches)
    return (made.popleft() for _ in range(len(made)))


def send_all(shard: Shard, batches: Iterator[Produce]) -> float:
    """Produces batches, some at a time under way; the seconds until all are durable."""
    waiting: deque[Future[list[Any]]] = deque()
    begin = time.perf_counter()
    for command in batches:
        waiting.append(shard.submit([command]))
        if len(waiting) >= _WINDOW:
            _check(waiting.popleft())
    while waiting:
        _check(waiting.popleft())
    return time.perf_counter() - begin


def _check(answer: Future[list[Any]]) -> None:
    reply = answer.result()[0]
    if not reply.all_ok:
        raise reply.error or RuntimeError("a row was refused")
