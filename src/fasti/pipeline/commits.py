"""The log of a Delta table, written by `deltalake`: a commit makes the next list of files, or nothing.

Not for several threads at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from fasti.errors import AlreadyExists
from fasti.pipeline.files import DataFile, stats_json


@dataclass(frozen=True)
class Commit:
    """What a commit does."""

    add: Sequence[DataFile]
    remove: Sequence[DataFile]
    schema: pa.Schema
    partition_by: tuple[str, ...]
    txn: tuple[str, int] | None
    # Whether there are other rows than before, or the same in other files.
    data_change: bool = True


class Commits:
    """A table's list of files, with its past."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._opened: Any = None

    def _table(self) -> Any:
        """As it is now; None if there is none."""
        from deltalake import DeltaTable

        if self._opened is not None and self._root.joinpath("_delta_log").is_dir():
            self._opened.update_incremental()
        elif DeltaTable.is_deltatable(str(self._root)):
            self._opened = DeltaTable(str(self._root))
        else:
            self._opened = None
        return self._opened

    def version(self) -> int | None:
        """Of the last commit; None: there is no table."""
        table = self._table()
        return None if table is None else int(table.version())

    def position(self, name: str) -> int | None:
        """The last number of a transaction's name."""
        table = self._table()
        return None if table is None else table.transaction_version(name)

    def schema(self) -> pa.Schema:
        return pa.schema(self._table().schema().to_arrow())

    def files(self) -> list[DataFile]:
        table = self._table()
        if table is None:
            return []
        return [
            _delta_file(row) for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
        ]

    def commit(self, change: Commit) -> None:
        """Raises `already_exists` if another writer committed meanwhile."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        self._root.mkdir(parents=True, exist_ok=True)
        table = self._table()
        if table is None:
            by = list(change.partition_by)
            DeltaTable.create(str(self._root), change.schema, mode="ignore", partition_by=by)
            table = self._table()
        transactions = None if change.txn is None else [Transaction(*change.txn)]
        try:
            table.create_write_transaction(
                _delta_actions(change),
                "append",
                change.schema,
                list(change.partition_by),
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            self._opened = None
            raise AlreadyExists(f"another process wrote to {self._root}: {error}") from error
        version = int(self._table().version())
        sync(self._root / "_delta_log" / f"{version:020}.json")
        sync(self._root / "_delta_log")

    def vacuum(self, keep_hours: float) -> int:
        """Deletes files that are out of the list for so long. Returns how many."""
        table = self._table()
        if table is None:
            return 0
        hours = int(keep_hours)
        # It writes into the log that it was there, also if there was nothing to do.
        if not table.vacuum(hours, dry_run=True, enforce_retention_duration=False):
            return 0
        return len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))


def _delta_actions(change: Commit) -> list[Any]:
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = int(time.time() * 1000)
    return [
        *(
            AddAction(
                each.path,
                each.size_bytes,
                each.partition,
                now_ms,
                change.data_change,
                stats_json(each),
            )
            for each in change.add
        ),
        *(
            RemoveAction(
                each.path, change.data_change, now_ms, each.size_bytes, dict(each.partition)
            )
            for each in change.remove
        ),
    ]


def _delta_file(row: Mapping[str, Any]) -> DataFile:
    partition: dict[str, str | None] = {}
    bounds: dict[str, dict[str, Any]] = {"min": {}, "max": {}}
    for name, value in row.items():
        kind, dot, column = name.partition(".")
        if dot and kind == "partition":
            partition[column] = None if value is None else str(value)
        elif dot and kind in bounds and value is not None:
            bounds[kind][column] = value
    path = unquote(row["path"])
    return DataFile(
        path, row["size_bytes"], row["num_records"], partition, bounds["min"], bounds["max"]
    )


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
