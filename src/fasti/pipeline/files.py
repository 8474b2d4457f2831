"""Parquet files of a table, and what is known of each without opening it again; durable writes.

A file belongs to one value of each partition column; that value stands in the path, as Spark and Hive
write it, and not in the file. Of other columns the smallest and largest values are known, so that a
reader can leave out files that have nothing for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# What Hive's escaping leaves alone; the rest is %XX.
_PLAIN = frozenset("!$&()+,-.;@^_`|~ ")


@dataclass(frozen=True)
class DataFile:
    """One file: its path below the table's, and what is in it."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    low: Mapping[str, Any] = field(default_factory=dict)
    high: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_action(cls, row: Mapping[str, Any]) -> DataFile:
        """From a row of `DeltaTable.get_add_actions`."""
        partition: dict[str, str | None] = {}
        bounds: dict[str, dict[str, Any]] = {"min": {}, "max": {}}
        for name, value in row.items():
            kind, dot, column = name.partition(".")
            if dot and kind == "partition":
                partition[column] = None if value is None else str(value)
            elif dot and kind in bounds and value is not None:
                bounds[kind][column] = value
        low, high = bounds["min"], bounds["max"]
        path = unquote(row["path"])
        return cls(path, row["size_bytes"], row["num_records"], partition, low, high)

    def stats_json(self) -> str:
        """What a Delta table keeps of it."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _bound_json(value) for name, value in self.low.items()},
                "maxValues": {name: _bound_json(value) for name, value in self.high.items()},
                "nullCount": {},
            }
        )

    def may_have(self, column: str, above: Any = None, up_to: Any = None) -> bool:
        """Whether a value of the column can lie above one and not beyond the other."""
        low, high = self.low.get(column), self.high.get(column)
        if above is not None and high is not None and high <= above:
            return False
        return not (up_to is not None and low is not None and low > up_to)


def folder_of(partition: Mapping[str, str | None]) -> str:
    """Where files with these values lie, below the table."""
    return "".join(
        f"{name}={NO_VALUE if value is None else _escaped(value)}/"
        for name, value in partition.items()
    )


def _escaped(value: str) -> str:
    return "".join(
        char if char.isalnum() or char in _PLAIN else "".join(f"%{b:02X}" for b in char.encode())
        for char in value
    )


def partition_of(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    """The values of these columns in a path; None where it has none."""
    values: dict[str, str | None] = dict.fromkeys(columns)
    for part in path.split("/")[:-1]:
        name, sign, value = part.partition("=")
        if sign and name in columns:
            values[name] = None if value == NO_VALUE else unquote(value)
    return values


def describe(root: Path, path: str, partition: Mapping[str, str | None]) -> DataFile:
    """What a file's own footer says of it."""
    place = root / path
    metadata = pq.read_metadata(place)
    low, high = _bounds(metadata)
    return DataFile(path, place.stat().st_size, metadata.num_rows, dict(partition), low, high)


def _bounds(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any]]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unknown: set[str] = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            name = column.path_in_schema
            if "." in name or column.physical_type not in ("INT32", "INT64", "BYTE_ARRAY"):
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                if statistics is None or statistics.null_count != column.num_values:
                    unknown.add(name)
                continue
            try:
                least, most = statistics.min, statistics.max
            except OverflowError:
                # Moments that no calendar has, such as that of what never expires.
                unknown.add(name)
                continue
            if not isinstance(least, (int, str, date, datetime)) or isinstance(least, bool):
                continue
            low[name] = min(low.get(name, least), least)
            high[name] = max(high.get(name, most), most)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
    return low, high


def _bound_json(value: Any) -> Any:
    """A bound as JSON, the way Delta writes it."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def replace_text(path: Path, text: str) -> None:
    """Writes a small file that is there whole or not at all, also after a power cut."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def sync(path: Path) -> None:
    """Makes a file's content, or a directory's names, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
