"""A batch on its way to the broker: rows in columns, one receipt for all of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

HEADERS = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, pa.DataType] = {
    "due_us": pa.int64(),
    "delay_us": pa.int64(),
    "key": pa.string(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "priority": pa.int32(),
    "subject": pa.string(),
    "expires_us": pa.int64(),
    "expires_after_us": pa.int64(),
}


class Parcel:
    """What travels, and how far it is. Filled in steps of the machine until it is sealed."""

    __slots__ = (
        "atomic",
        "batch",
        "columns",
        "deadline",
        "maybe",
        "number",
        "on_conflict",
        "partition",
        "payloads",
        "rows",
        "sequence",
        "size_bytes",
        "stage",
    )

    def __init__(self, on_conflict: str, partition: int | None = None) -> None:
        self.on_conflict = on_conflict
        # Where all of it goes; None: by key, or where the broker likes.
        self.partition = partition
        self.atomic = False
        self.stage = ""
        self.payloads: list[bytes] = []
        self.columns: dict[str, list[Any]] = {}
        self.batch: pa.RecordBatch | None = None
        self.rows = self.size_bytes = 0
        # How many the producer had made with it; and its number among those that are under way.
        self.number = self.sequence = 0
        # Whether it was written to a connection that was lost: it may have been carried out.
        self.maybe = False
        self.deadline = 0.0

    def put(self, name: str, row: int, value: Any) -> None:
        """A value of a column that most rows may not use."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = []
        if len(column) < row:
            column.extend([None] * (row - len(column)))
        column.append(value)

    def seal(self) -> pa.RecordBatch:
        """The rows as Arrow: made by the thread that sends, once."""
        if self.batch is None:
            self.rows = len(self.payloads)
            arrays = [pa.array(self.payloads, type=pa.binary())]
            names = ["payload"]
            for name, column in self.columns.items():
                column.extend([None] * (self.rows - len(column)))
                arrays.append(pa.array(column, type=_TYPES[name]))
                names.append(name)
            self.batch = pa.RecordBatch.from_arrays(arrays, names)
            self.payloads, self.columns = [], {}
        return self.batch

    @property
    def names(self) -> list[str]:
        """Which columns it has, about: of one that is being filled, those so far."""
        return list(self.columns) if self.batch is None else self.batch.schema.names

    def header(self) -> dict[str, Any]:
        """What is written with the rows."""
        header: dict[str, Any] = {"sequence": self.sequence, "on_conflict": self.on_conflict}
        if self.atomic:
            header["atomic"] = True
        if self.stage:
            header["stage"] = self.stage
        if self.partition is not None:
            header["partition"] = self.partition
        return header
