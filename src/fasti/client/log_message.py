"""Rows of a log in the hands of user code: nothing is leased, so there is nothing to finish."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.client.durations import as_datetime
from fasti.model import SEQUENCE_BITS


class Rows:
    """Rows that were read together, in columns. They become Python values when they are read."""

    __slots__ = (
        "_data",
        "_lists",
        "_offsets",
        "batch",
        "count",
        "first_offset",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, batch: pa.RecordBatch) -> None:
        self.topic = topic
        self.batch = batch
        self.count: int = batch.num_rows
        # Rows of one batch are of one partition, one behind the other.
        self.partition: int = batch.column("partition")[0].as_py()
        self.first_offset: int = batch.column("offset")[0].as_py()
        self._lists: dict[str, list[Any]] = {}
        self._data: bytes | None = None
        self._offsets: list[int] = []

    def value(self, name: str, row: int) -> Any:
        """A value of a column."""
        values = self._lists.get(name)
        if values is None:
            values = self._lists[name] = self.batch.column(name).to_pylist()
        return values[row]

    def payload(self, row: int) -> bytes:
        """One payload."""
        if self._data is None:
            column = self.batch.column("payload")
            offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
            first = column.offset
            self._offsets = offsets[first : first + len(column) + 1].tolist()
            data = column.buffers()[2]
            self._data = b"" if data is None else data.to_pybytes()
        return self._data[self._offsets[row] : self._offsets[row + 1]]


class LogMessage:
    """One row of a log, as `client.reader(...)` gives it."""

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows = rows
        self._row = row

    @property
    def topic(self) -> str:
        """The log that it is from."""
        return self._rows.topic

    @property
    def partition(self) -> int:
        """The partition that it is in."""
        return self._rows.partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self._rows.first_offset + self._row

    @property
    def id(self) -> int:
        """Its id, by which groups know it: made of partition and offset."""
        return self.partition << SEQUENCE_BITS | (self.offset + 1)

    @property
    def payload(self) -> bytes:
        """What was sent."""
        return self._rows.payload(self._row)

    @property
    def key(self) -> str | None:
        """The key that chose its partition."""
        return self._rows.value("key", self._row)

    @property
    def headers(self) -> dict[str, str]:
        """Its headers; empty if it has none."""
        return dict(self._rows.value("headers", self._row) or ())

    @property
    def content_type(self) -> str | None:
        """What kind of payload it is."""
        return self._rows.value("content_type", self._row)

    @property
    def subject(self) -> str | None:
        """What it is about, if it was sent with a subject."""
        return self._rows.value("subject", self._row)

    @property
    def created_us(self) -> int:
        """When it was appended, in microseconds."""
        return int(self._rows.value("created_us", self._row))

    @property
    def created(self) -> datetime:
        """When it was appended."""
        return as_datetime(self.created_us)

    def __repr__(self) -> str:
        return f"<LogMessage {self.offset} of partition {self.partition} of {self.topic!r}>"
