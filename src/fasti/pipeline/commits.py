"""The list of a table's files that count, in two formats; a commit makes the next list, or nothing.

`DeltaCommits` is the log of a Delta table, written by `deltalake`. `PlainCommits` keeps a file per
version with the whole list, under `_files/`: it is written beside and linked to its number, which
only one can do.

Not for several threads at once.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from fasti.errors import AlreadyExists
from fasti.pipeline.files import DataFile, stats_json

_LISTS_KEPT = 20


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


class Commits(Protocol):
    """A table's list of files, with its past."""

    def version(self) -> int | None:
        """Of the last commit; None: there is no table."""

    def position(self, name: str) -> int | None:
        """The last number of a transaction's name."""

    def files(self) -> list[DataFile]:
        """Those that count."""

    def schema(self) -> pa.Schema:
        """Of the table."""

    def commit(self, change: Commit) -> None:
        """Raises `already_exists` if somebody else committed meanwhile."""

    def vacuum(self, keep_hours: float) -> int:
        """Deletes files that are out of the list for so long."""


class DeltaCommits:
    """By `deltalake`."""

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
        table = self._table()
        return None if table is None else int(table.version())

    def position(self, name: str) -> int | None:
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
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        self._root.mkdir(parents=True, exist_ok=True)
        table = self._table()
        if table is None:
            by = list(change.partition_by)
            DeltaTable.create(str(self._root), change.schema, mode="ignore", partition_by=by)
            table = self._table()
        told = None if change.txn is None else [Transaction(*change.txn)]
        try:
            table.create_write_transaction(
                _delta_actions(change),
                "append",
                change.schema,
                list(change.partition_by),
                commit_properties=CommitProperties(app_transactions=told),
            )
        except CommitFailedError as error:
            self._opened = None
            raise AlreadyExists(f"another process wrote to {self._root}: {error}") from error
        version = int(self._table().version())
        sync(self._root / "_delta_log" / f"{version:020}.json")
        sync(self._root / "_delta_log")

    def vacuum(self, keep_hours: float) -> int:
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


class PlainCommits:
    """By a list of our own."""

    def __init__(self, root: Path) -> None:
        self._root, self._lists = root, root / "_files"

    def _last(self) -> tuple[int, dict[str, Any]] | None:
        """The newest list; tried again if it was tidied away under our hands."""
        while True:
            names = sorted(self._lists.glob("[0-9]*.json"), reverse=True)
            if not names:
                return None
            try:
                return int(names[0].stem), json.loads(names[0].read_text())
            except FileNotFoundError:
                continue

    def version(self) -> int | None:
        last = self._last()
        return None if last is None else last[0]

    def position(self, name: str) -> int | None:
        last = self._last()
        return None if last is None else last[1]["positions"].get(name)

    def schema(self) -> pa.Schema:
        last = self._last()
        assert last is not None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(last[1]["schema"])))

    def files(self) -> list[DataFile]:
        last = self._last()
        return [] if last is None else [DataFile(**each) for each in last[1]["files"]]

    def commit(self, change: Commit) -> None:
        last = self._last()
        version = 0 if last is None else last[0] + 1
        before: dict[str, Any] = (
            {"files": [], "positions": {}, "removed": []} if last is None else last[1]
        )
        gone = {each.path for each in change.remove}
        now_s = time.time()
        self._write(
            version,
            {
                "schema": base64.b64encode(change.schema.serialize().to_pybytes()).decode(),
                "files": [
                    *(each for each in before["files"] if each["path"] not in gone),
                    *(_plain_file(each) for each in change.add),
                ],
                "removed": [*before["removed"], *([path, now_s] for path in sorted(gone))],
                "positions": {**before["positions"], **dict([change.txn] if change.txn else [])},
            },
        )

    def _write(self, version: int, content: dict[str, Any]) -> None:
        self._lists.mkdir(parents=True, exist_ok=True)
        beside = self._lists / f".{uuid.uuid4().hex}"
        beside.write_text(json.dumps(content))
        sync(beside)
        try:
            os.link(beside, self._lists / f"{version:020}.json")
        except FileExistsError as error:
            raise AlreadyExists(f"another process wrote to {self._root}") from error
        finally:
            beside.unlink()
        sync(self._lists)
        for old in sorted(self._lists.glob("[0-9]*.json"))[:-_LISTS_KEPT]:
            old.unlink(missing_ok=True)

    def vacuum(self, keep_hours: float) -> int:
        last = self._last()
        if last is None:
            return 0
        version, content = last
        until_s = time.time() - keep_hours * 3600
        old = [path for path, at_s in content["removed"] if at_s <= until_s]
        for path in old:
            (self._root / path).unlink(missing_ok=True)
        if old:
            kept = [each for each in content["removed"] if each[1] > until_s]
            self._write(version + 1, {**content, "removed": kept})
        return len(old)


def _plain_file(file: DataFile) -> dict[str, Any]:
    # Only bounds that JSON keeps as they are: whole numbers and words.
    def plain(bounds: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in bounds.items() if isinstance(value, (int, str))}

    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "rows": file.rows,
        "partition": dict(file.partition),
        "low": plain(file.low),
        "high": plain(file.high),
    }


def sync(path: Path) -> None:
    """Makes a file's content, or a directory's names, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
