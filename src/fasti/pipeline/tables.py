"""Tables of the lake: Delta tables, which are Parquet files and a list of those that count.

Files are written first, by tasks or by Spark; nobody sees them until the driver's commit adds them to
the list, in the same moment in which it takes others out. A commit can carry a *transaction*, a name
and a number that grows: with a number that is not beyond the last of that name, nothing happens. So
whatever was done twice counts once, and a table and the position that it has reached can't disagree.

Tables lie on a local or shared file system.

One process at a time writes to a table (`Lake.lock`); any number may read meanwhile. A file that was
taken out of the list stays until `vacuum`, for those who still read it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fasti.errors import InvalidArgument, NotFound
from fasti.pipeline.commits import Commit, Commits, sync
from fasti.pipeline.files import DataFile, describe, folder_of, partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transaction = tuple[str, int]
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
        self._commits = Commits(self.path)

    def __repr__(self) -> str:
        return f"<Table {self.path}>"

    # What there is

    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self._commits.version() is not None

    def version(self) -> int | None:
        """The number of the last commit."""
        return self._commits.version()

    def position(self, name: str) -> int | None:
        """The number of a transaction's name that was committed last."""
        return self._commits.position(name)

    def files(self) -> list[DataFile]:
        """Those that count now."""
        return self._commits.files()

    def rows(self) -> int:
        """How many there are, by what is known of the files."""
        return sum(each.rows for each in self.files())

    def schema(self) -> pa.Schema:
        """The columns. Raises `not_found` if there is no table."""
        if not self.exists():
            raise NotFound(f"there is no table at {self.path}")
        return self._commits.schema()

    # Writing

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory for files that nobody sees yet: see `adopt`. It goes when the block ends."""
        place = self.path / _STAGED / uuid.uuid4().hex
        place.mkdir(parents=True)
        yield place
        # Not after an exception: what lies where it should be is found by it, see `clean`.
        shutil.rmtree(place, ignore_errors=True)

    def adopt(self, staged: Path, paths: Sequence[Path] | None = None) -> list[DataFile]:
        """Puts files of a staging directory, by default all, where they belong, durably.

        They count once they are committed; `clean` deletes them if that never happened.
        """
        found = paths
        if found is None:
            found = sorted(each for each in staged.rglob("*.parquet") if not _hidden(each, staged))
        lost = next((each for each in found if not each.exists()), None)
        if lost is not None:
            raise NotFound(
                f"a task wrote {lost}, and it isn't there: the lake must lie on a file system that "
                "the driver and all executors share"
            )
        with ThreadPoolExecutor(4) as pool:
            files = list(pool.map(lambda each: self._adopt_one(staged, *each), enumerate(found)))
        for folder in {(self.path / each.path).parent for each in files}:
            sync(folder)
        return files

    def _adopt_one(self, staged: Path, number: int, path: Path) -> DataFile:
        partition = partition_of(path.relative_to(staged).as_posix(), self.partition_by)
        partition = {name: partition.get(name) for name in self.partition_by}
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
            return pa.schema([_nullable(each) for each in rows.schema])
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
        txn: Transaction | None = None,
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
        txn: Transaction | None,
        schema: pa.Schema | None,
        data_change: bool = True,
    ) -> bool:
        if self._repeated(txn):
            return False
        if self.exists():
            known = self._commits.schema()
            if schema is not None and not _alike(schema, known):
                raise InvalidArgument(
                    f"{self.path} has other columns: {_differing(schema, known)}",
                    field="schema",
                )
            schema = known
        elif schema is None:
            raise InvalidArgument("the first commit of a table needs its schema", field="schema")
        self._commits.commit(Commit(add, remove, schema, self.partition_by, txn, data_change))
        return True

    def _repeated(self, txn: Transaction | None) -> bool:
        if txn is None:
            return False
        last = self.position(txn[0])
        return last is not None and txn[1] <= last

    # Reading

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """All rows, or those of some files, as they are now."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self.schema())
        chosen = self.files() if files is None else files
        paths = [_for_spark(self.path / each.path) for each in chosen]
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
            [str(self.path / each.path) for each in self.files()],
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
        for each in self.files():
            if each.size_bytes < small_bytes and self._joins(each):
                small.setdefault(tuple(each.partition.values()), []).append(each)
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
        """One file of several of a partition, with what is known of each in reach of readers."""
        folder = staged / folder_of(files[0].partition)
        folder.mkdir(parents=True, exist_ok=True)
        columns = [each for each in self.schema() if each.name not in self.partition_by]
        schema = pa.schema(columns)
        with pq.ParquetWriter(folder / "joined.parquet", schema, compression="zstd") as writer:
            for each in files:
                rows = pq.read_table(self.path / each.path, partitioning=None)
                writer.write_table(rows.select(schema.names).cast(schema))

    def vacuum(self, keep_hours: float = 168) -> int:
        """Deletes files that were taken out so long ago. Returns how many."""
        return self._commits.vacuum(keep_hours)

    def clean(self) -> int:
        """Deletes what writers that were killed have left. Only with `Lake.lock`. Returns how many."""
        left = sorted((self.path / _STAGED).glob("*"))
        if not left:
            return 0
        counted = {each.path for each in self.files()}
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

    return pa.schema([_nullable(each) for each in to_arrow_schema(rows.schema, timezone="UTC")])


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type, nullable=True)


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.relative_to(below).parts)


def _kinds(schema: pa.Schema) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema}


def _alike(mine: pa.Schema, theirs: pa.Schema) -> bool:
    return set(mine.names) == set(theirs.names)


def _differing(mine: pa.Schema, theirs: pa.Schema) -> str:
    new, known = set(mine.names), set(theirs.names)
    return f"it lacks {sorted(new - known)}, and has besides {sorted(known - new)}"
