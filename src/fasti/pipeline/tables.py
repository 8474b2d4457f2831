"""Tables of the lake: Parquet files, and a list of those that count.

Files are written first, by tasks or by Spark; nobody sees them until the driver's commit adds them to
the list, in the same moment in which it takes others out. A commit can carry a *transaction*, a name
and a number that grows: with a number that is not beyond the last of that name, nothing happens. So
whatever was done twice counts once, and a table and the position that it has reached can't disagree.

Two formats: `delta` (any reader of Delta tables can read it) and `parquet` (the same files, with a
list of our own beside them). Tables lie on a local or shared file system.

One process at a time writes to a table (`Lake.lock`); any number may read meanwhile. A file that was
taken out of the list stays until `vacuum`, for those who still read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from fasti.pipeline.files import DataFile

Format = Literal["delta", "parquet"]
Transaction = tuple[str, int]
"""A name and a number that grows: see the module."""


class Table:
    """A table at a place. It comes to be with its first write."""

    def __init__(
        self, path: str | Path, format: Format = "delta", partition_by: Sequence[str] = ()
    ) -> None:
        self.path, self.format, self.partition_by = Path(path), format, tuple(partition_by)

    def exists(self) -> bool:
        """Whether anything was ever written."""
        raise NotImplementedError

    def version(self) -> int | None:
        """The number of the last commit."""
        raise NotImplementedError

    def position(self, name: str) -> int | None:
        """The number of a transaction's name that was committed last."""
        raise NotImplementedError

    def files(self) -> list[DataFile]:
        """Those that count now."""
        raise NotImplementedError

    def schema(self) -> pa.Schema:
        """The columns, those in the paths last. Raises `not_found` if there is no table."""
        raise NotImplementedError

    def write(self, rows: DataFrame) -> list[DataFile]:
        """Writes files that nobody sees yet: for `append`, `overwrite` or `replace`."""
        raise NotImplementedError

    def append(self, rows: DataFrame | Sequence[DataFile], txn: Transaction | None = None) -> bool:
        """Adds rows. False if that transaction was committed before: then nothing changes."""
        raise NotImplementedError

    def overwrite(
        self, rows: DataFrame | Sequence[DataFile], txn: Transaction | None = None
    ) -> bool:
        """These rows instead of all that were there, in one moment."""
        raise NotImplementedError

    def replace(
        self,
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        txn: Transaction | None = None,
        schema: pa.Schema | None = None,
    ) -> bool:
        """Adds files and takes others out, in one moment."""
        raise NotImplementedError

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """All rows, or those of some files."""
        raise NotImplementedError

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, without Spark: for tables that fit into memory."""
        raise NotImplementedError

    def compact(self, spark: SparkSession, small_bytes: int = 32 << 20) -> int:
        """Writes the small files of each partition again as one. Returns how many are gone."""
        raise NotImplementedError

    def vacuum(self, keep_hours: float = 168) -> int:
        """Deletes files that were taken out so long ago. Returns how many."""
        raise NotImplementedError
