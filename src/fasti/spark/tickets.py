"""Reading a ticket in a task: batches of a good size for Spark, made of what the broker sends.

A ticket is a plain dict, so it travels to executors; with it go the address and the view. Small
batches are joined: Spark is at its best with some ten thousand rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fasti.spark.connection import client_of
from fasti.spark.patience import rows_of
from fasti.spark.views import View

_ROWS = 65_536
_BYTES = 16 << 20


@dataclass(frozen=True)
class Task:
    """What one Spark partition reads."""

    ticket: dict[str, Any]
    address: str
    token: str | None
    view: str
    columns: tuple[str, ...]
    constants: dict[str, str] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of the ticket."""
        view = View(self.view, self.columns)
        rows = rows_of(lambda: client_of(self.address, self.token), self.ticket)
        for batch in _joined(rows):
            yield view.made_of(batch, **self.constants)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield _one(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
