"""The rows that the benchmarks of Spark read and write: 100 bytes of payload, no two alike.

Payloads are random: what compresses well would measure Parquet's encoding instead of reading.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fasti

Figures = dict[str, Any]

PAYLOAD_BYTES = 100
_BATCH = 5_000
_WINDOW = 16
_DAY_US = 86_400_000_000
# Rows of one file to schedule: two and more of them, so that both cores have work.
_FILE_ROWS = 500_000


def payloads(random: np.random.Generator, rows: int, size_bytes: int = PAYLOAD_BYTES) -> pa.Array:
    """So many random payloads."""
    offsets = np.arange(rows + 1, dtype=np.int32) * size_bytes
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(rows * size_bytes))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def fill(
    address: str, topic: str, rows: int, timed: bool = True, payload_bytes: int = PAYLOAD_BYTES
) -> Figures:
    """Fills a topic; `timed` messages are due at random over 30 days, from an hour on."""
    random = np.random.default_rng(7)
    waiting: deque[Any] = deque()
    with fasti.connect(address) as client:
        producer = client.producer(topic)
        begin_us = client.clock.now_us() + 3_600_000_000
        for begin in range(0, rows, _BATCH):
            count = min(_BATCH, rows - begin)
            due = begin_us + random.integers(0, 30 * _DAY_US, count) if timed else None
            filled = payloads(random, count, payload_bytes)
            waiting.append(producer.send_batch(filled, due=due, wait=False))
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok
    return {"rows": rows}


def write_parquet(directory: Path, rows: int, begin_us: int, keys: bool = False) -> None:
    """Rows to schedule, as a directory of Parquet files: payload, due, and perhaps key."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(11)
    share = min(_FILE_ROWS, -(-rows // 2))
    for number, begin in enumerate(range(0, rows, share)):
        count = min(share, rows - begin)
        due = begin_us + random.integers(0, 30 * _DAY_US, count)
        columns = {
            "payload": payloads(random, count),
            "due": pa.array(due, pa.timestamp("us", tz="UTC")),
        }
        if keys:
            numbers = pa.array(np.arange(begin, begin + count)).cast(pa.string())
            columns["key"] = pa.compute.binary_join_element_wise("order-", numbers, "")
        pq.write_table(pa.table(columns), directory / f"{number:03}.parquet")
