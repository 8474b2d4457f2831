"""Tables of the lake: Delta tables, which are Parquet files and a list of those that count.

Files are written first, by tasks or by Spark; readers see them once the driver's commit adds them to
the list, in the same moment in which it takes others out. A commit can carry a *transaction*, a name
and a number that grows: with a number that is not beyond the last of that name, nothing happens. So
whatever was done twice counts once, and a table and the position that it has reached can't disagree.

Tables lie on a local or shared file system.

One process at a time writes to a table (`Lake.lock`); any number may read meanwhile. A file that was
taken out of the list stays until `vacuum`, for readers that still read it. Not for several threads at once.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fasti.errors import AlreadyExists, InvalidArgument, NotFound
from fasti.pipeline.files import DataFile, describe, folder_of, partition_of, sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transaction = tuple[str, int]
# Those of one commit: of several, none may have been there before.
Transactions = Transaction | list[Transaction]
"""A name and a number that grows: see the module."""

Rows: TypeAlias = "DataFrame | pa.Table | Sequence[DataFile]"
"""What can be written: a DataFrame, an Arrow table, or files that were adopted."""

_STAGED = "_staged"
_PATHS_MAX = 32


class Table:
    """A table at a place. It comes to be with its first write."""

    def __init__(
        self,
        path: str | Path,
        partition_by: Sequence[str] = (),
        joins: Callable[[DataFile], bool] = lambda _: True,
    ) -> None:
        self.path, self.partition_by = Path(path).absolute(), tuple(partition_by)
        # Which files `compact` may join; a writer can care for the size of others itself.
        self._joins = joins
        self._opened: Any = None

    def __repr__(self) -> str:
        return f"<Table {self.path}>"

    # What there is

    def _delta(self) -> Any:
        """As it is now; None if there is no table."""
        from deltalake import DeltaTable

        if self._opened is not None and self.path.joinpath("_delta_log").is_dir():
            self._opened.update_incremental()
        elif DeltaTable.is_deltatable(str(self.path)):
            self._opened = DeltaTable(str(self.path))
        else:
            self._opened = None
        return self._opened

    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self._delta() is not None

    def version(self) -> int | None:
        """The number of the last commit; None if there is no table."""
        delta = self._delta()
        return None if delta is None else int(delta.version())

    def position(self, name: str) -> int | None:
        """The number of a transaction's name that was committed last."""
        delta = self._delta()
        return None if delta is None else delta.transaction_version(name)

    def files(self) -> list[DataFile]:
        """Those that count now."""
        delta = self._delta()
        if delta is None:
            return []
        actions = pa.table(delta.get_add_actions(flatten=True))
        return [DataFile.of_action(row) for row in actions.to_pylist()]

    def rows(self) -> int:
        """How many there are, by what is known of the files."""
        return sum(file.rows for file in self.files())

    def schema(self) -> pa.Schema:
        """The columns. Raises `not_found` if there is no table."""
        delta = self._delta()
        if delta is None:
            raise NotFound(f"there is no table at {self.path}")
        return pa.schema(delta.schema().to_arrow())

    # Writing

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory for files that readers don't see yet: see `adopt`. It goes when the block ends."""
        place = self.path / _STAGED / uuid.uuid4().hex
        place.mkdir(parents=True)
        yield place
        # Not after an exception: by its name `clean` finds the files that were adopted already.
        shutil.rmtree(place, ignore_errors=True)

    def adopt(self, staged: Path, paths: Sequence[Path] | None = None) -> list[DataFile]:
        """Puts files of a staging directory, by default all, where they belong, durably.

        They count once they are committed; `clean` deletes them if that never happened.
        """
        if paths is None:
            paths = sorted(path for path in staged.rglob("*.parquet") if not _hidden(path, staged))
        lost = next((path for path in paths if not path.exists()), None)
        if lost is not None:
            raise NotFound(
                f"a task wrote {lost}, which this process doesn't see: the lake must be on a "
                "file system that the driver and all executors share"
            )
        with ThreadPoolExecutor(4) as pool:
            files = list(pool.map(lambda path: self._adopt_one(staged, *path), enumerate(paths)))
        for folder in {(self.path / file.path).parent for file in files}:
            sync(folder)
        return files

    def _adopt_one(self, staged: Path, number: int, path: Path) -> DataFile:
        partition = partition_of(path.relative_to(staged).as_posix(), self.partition_by)
        name = f"{folder_of(partition)}{staged.name}-{number:05}.parquet"
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(path)
        path.rename(target)
        return describe(self.path, name, partition)

    def write_staged(self, rows: DataFrame | pa.Table, staged: Path) -> pa.Schema:
        """Writes rows into a staging directory; Spark writes those of a DataFrame."""
        if isinstance(rows, pa.Table):
            by = ds.partitioning(
                pa.schema([rows.schema.field(name) for name in self.partition_by]), flavor="hive"
            )
            ds.write_dataset(rows, staged, format="parquet", partitioning=by)
            return pa.schema([_nullable(field) for field in rows.schema])
        # Spark's own kind of moment has no bounds and other readers warn of it.
        with _setting(rows.sparkSession, "parquet.outputTimestampType", "TIMESTAMP_MICROS"):
            writer = rows.write.mode("append").option("compression", "zstd")
            if self.partition_by:
                writer = writer.partitionBy(*self.partition_by)
            writer.parquet(_for_spark(staged))
        return arrow_schema(rows)

    def append(self, rows: Rows, txn: Transaction | None = None) -> bool:
        """Adds rows. False if that transaction was committed before: then nothing changes."""
        return self._write(rows, txn, overwrite=False)

    def overwrite(self, rows: Rows, txn: Transaction | None = None) -> bool:
        """These rows instead of all that were there, in one moment."""
        return self._write(rows, txn, overwrite=True)

    def _write(self, rows: Rows, txn: Transaction | None, overwrite: bool) -> bool:
        if self._repeated(txn):
            return False
        if isinstance(rows, Sequence):
            return self.replace(rows, self.files() if overwrite else [], txn)
        with self.staging() as staged:
            schema = self.write_staged(rows, staged)
            remove = self.files() if overwrite else []
            return self.replace(self.adopt(staged), remove, txn, schema)

    def replace(
        self,
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        txn: Transactions | None = None,
        schema: pa.Schema | None = None,
    ) -> bool:
        """Adds files and takes others out, in one moment. False if that was done before.

        The first commit needs the table's schema, which never changes.
        """
        return self._replace(add, remove, txn, schema)

    def _replace(
        self,
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        txn: Transactions | None,
        schema: pa.Schema | None,
        data_change: bool = True,
    ) -> bool:
        """`data_change` is False where the same rows lie in other files."""
        if self._repeated(txn):
            return False
        if self.exists():
            known = self.schema()
            if schema is not None and set(schema.names) != set(known.names):
                raise InvalidArgument(
                    f"{self.path} has other columns: {_difference(schema, known)}",
                    field="schema",
                )
            schema = known
        elif schema is None:
            raise InvalidArgument("the first commit of a table needs its schema", field="schema")
        self._commit(_actions(add, remove, data_change), txn, schema)
        return True

    def _commit(self, actions: list[Any], txn: Transactions | None, schema: pa.Schema) -> None:
        """Raises `already_exists` if another writer committed meanwhile."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties
        from deltalake.transaction import Transaction as DeltaTransaction

        by = list(self.partition_by)
        if not self.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(str(self.path), schema, mode="ignore", partition_by=by)
        transactions = [DeltaTransaction(*each) for each in _listed(txn)] or None
        properties = CommitProperties(app_transactions=transactions)
        try:
            self._delta().create_write_transaction(
                actions, "append", schema, by, commit_properties=properties
            )
        except CommitFailedError as error:
            self._opened = None
            raise AlreadyExists(f"another process wrote to {self.path}: {error}") from error
        log = self.path / "_delta_log"
        sync(log / f"{self.version():020}.json")
        sync(log)

    def _repeated(self, txn: Transactions | None) -> bool:
        return any(number <= _or_none(self.position(name)) for name, number in _listed(txn))

    # Reading

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """All rows, or those of some files, as they are now."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self.schema())
        chosen = self.files() if files is None else files
        paths = [_for_spark(self.path / file.path) for file in chosen]
        if not paths:
            return spark.createDataFrame([], schema)
        # With more paths than that, Spark starts a job only to look at them.
        most = str(max(_PATHS_MAX, len(paths)))
        with _setting(spark, "sources.parallelPartitionDiscovery.threshold", most):
            reader = spark.read.schema(schema).option("basePath", _for_spark(self.path))
            return reader.parquet(*paths).select(*schema.fieldNames())

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, without Spark: for tables that fit into memory."""
        return self.dataset().to_table(columns=None if columns is None else list(columns))

    def dataset(self) -> ds.Dataset:
        """All rows, without Spark, to be read as one likes."""
        schema = self.schema()
        by = pa.schema([schema.field(name) for name in self.partition_by])
        return ds.dataset(
            [str(self.path / file.path) for file in self.files()],
            schema=schema,
            format="parquet",
            partitioning=ds.HivePartitioning(by, segment_encoding="uri"),
            partition_base_dir=str(self.path),
        )

    # Care

    def compact(
        self, spark: SparkSession | None = None, small_bytes: int = 32 << 20, files_min: int = 2
    ) -> int:
        """Writes the small files of each partition that has so many of them again as one.

        Spark does it, or, without a session, this process, file by file. Returns how many files
        are gone.
        """
        small: dict[tuple[Any, ...], list[DataFile]] = {}
        for file in self.files():
            if file.size_bytes < small_bytes and self._joins(file):
                small.setdefault(tuple(file.partition.values()), []).append(file)
        gone = 0
        for files in small.values():
            if len(files) >= files_min:
                with self.staging() as staged:
                    if spark is None:
                        self._join(files, staged)
                    else:
                        self.write_staged(self.read(spark, files).coalesce(1), staged)
                    self._replace(self.adopt(staged), files, None, None, data_change=False)
                gone += len(files)
        return gone

    def _join(self, files: Sequence[DataFile], staged: Path) -> None:
        """One file of several of a partition, a row group of each."""
        folder = staged / folder_of(files[0].partition)
        folder.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([f for f in self.schema() if f.name not in self.partition_by])
        with pq.ParquetWriter(folder / "joined.parquet", schema, compression="zstd") as writer:
            for file in files:
                rows = pq.read_table(self.path / file.path, partitioning=None)
                writer.write_table(rows.select(schema.names).cast(schema))

    def vacuum(self, keep_hours: float = 168) -> int:
        """Deletes files that were taken out so long ago. Returns how many."""
        delta = self._delta()
        # It writes into the log that it was there, also if there was nothing to do.
        if delta is None or not self._vacuumed(delta, keep_hours, dry_run=True):
            return 0
        return len(self._vacuumed(delta, keep_hours, dry_run=False))

    def _vacuumed(self, delta: Any, keep_hours: float, dry_run: bool) -> list[str]:
        hours = int(keep_hours)
        return list(delta.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False))

    def clean(self) -> int:
        """Deletes what writers that were killed have left. Only with `Lake.lock`. Returns how many."""
        left = sorted((self.path / _STAGED).glob("*"))
        if not left:
            return 0
        counted = {file.path for file in self.files()}
        gone = 0
        for staged in left:
            for path in self.path.rglob(f"{staged.name}-*.parquet"):
                if path.relative_to(self.path).as_posix() not in counted:
                    path.unlink()
                    gone += 1
            gone += sum(1 for _ in staged.rglob("*.parquet"))
            shutil.rmtree(staged, ignore_errors=True)
        return gone


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of `spark.sql` for as long as the block lasts."""
    name = f"spark.sql.{name}"
    before = spark.conf.get(name) or ""
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _for_spark(path: Path) -> str:
    """On the file system of machines, whichever is the default one of a cluster."""
    return f"file://{path}"


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """A DataFrame's columns as a table keeps them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema([_nullable(field) for field in fields])


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type, nullable=True)


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.relative_to(below).parts)


def _or_none(position: int | None) -> int:
    return -1 if position is None else position


def _listed(txn: Transactions | None) -> list[Transaction]:
    if txn is None:
        return []
    return txn if isinstance(txn, list) else [txn]


def _difference(mine: pa.Schema, theirs: pa.Schema) -> str:
    new, known = set(mine.names), set(theirs.names)
    return f"it lacks {sorted(new - known)}, and has besides {sorted(known - new)}"


def _actions(add: Sequence[DataFile], remove: Sequence[DataFile], data_change: bool) -> list[Any]:
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = int(time.time() * 1000)
    added = [
        AddAction(f.path, f.size_bytes, f.partition, now_ms, data_change, f.stats_json())
        for f in add
    ]
    removed = [
        RemoveAction(f.path, data_change, now_ms, f.size_bytes, dict(f.partition)) for f in remove
    ]
    return [*added, *removed]
