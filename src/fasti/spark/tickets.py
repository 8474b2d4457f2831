"""Reading a ticket in a task: batches of a good size for Spark, made of what the broker sends.

A ticket is a plain dict, so it travels to executors; with it go the address and the view. Small
batches are joined: Spark is at its best with some ten thousand rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fasti.client.client import Client
from fasti.spark.connection import client_of
from fasti.spark.patience import TIMEOUT_S, rows_of
from fasti.spark.views import View

_ROWS = 65_536
_BYTES = 16 << 20


@dataclass(frozen=True)
class Task:
    """What one Spark partition reads."""

    ticket: dict[str, Any]
    address: str
    token: str | None = field(repr=False)
    view: str
    columns: tuple[str, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    # The shard that has the rows.
    shard: int = 0

    def client(self) -> Client:
        """To the broker, in this process."""
        return client_of(self.address, self.token)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._read(self.ticket, self.constants)

    def _read(self, ticket: dict[str, Any], constants: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        view = View(self.view, self.columns)
        for batch in _joined(rows_of(self.client, ticket, self.timeout_s, self.shard)):
            yield view.made_of(batch, **constants)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        # About so many, in one piece if it came so.
        if waiting and rows + batch.num_rows > _ROWS:
            yield _one(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS // 2 or size >= _BYTES:
            yield _one(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
