"""The lake: where the pipeline's tables lie, and who may write to them."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fasti.errors import DataDirLocked, InvalidArgument
from fasti.pipeline.files import DataFile
from fasti.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Gold tables that say how things are now: no day of them stays as it is.
_WHOLE = ("backlog", "audit")
# So many small files of one day and topic are joined.
_FILES_MANY = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Lake:
    """The tables below one directory.

        lake.bronze.read(spark)          # every transition
        lake.silver(spark)               # one row per message, as of the last run
        lake.gold("lateness").arrow()    # figures, without Spark
        lake.table("mine")               # a table of a pipeline of one's own

    Nothing has to be there: tables come to be with the first run.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        # A table that is opened again would read its list from the beginning.
        self._tables: dict[str, Table] = {}

    def __repr__(self) -> str:
        return f"<Lake {self.root}>"

    @property
    def bronze(self) -> Table:
        """`transitions`: the change feed."""
        return self._at("bronze/transitions", "day", "part")

    @property
    def messages(self) -> Table:
        """`messages`: one row per message, with what the pipeline needs to go on besides."""
        # Files of open messages are kept at a size at which few rows are written again.
        return self._at("silver/messages", "level", "day", joins=is_finished)

    @property
    def topics(self) -> Table:
        """Topics that were made and deleted, as the feed tells it."""
        return self._at("silver/topics")

    def silver(self, spark: SparkSession) -> DataFrame:
        """One row per message, finished or not, as of the last run."""
        from fasti.pipeline.silver import COLUMNS

        return self.messages.read(spark).select(*COLUMNS)

    def gold(self, name: str) -> Table:
        """A table of figures, by the day; `backlog` and `audit` are written whole."""
        by = () if name in _WHOLE else ("day",)
        return self._at(f"gold/{_checked(name)}", *by)

    def table(self, name: str, *partition_by: str) -> Table:
        """A table of a pipeline of one's own."""
        return self._at(f"tables/{_checked(name)}", *partition_by)

    def _at(
        self, place: str, *partition_by: str, joins: Callable[[DataFile], bool] = lambda _: True
    ) -> Table:
        table = self._tables.get(place)
        if table is None or table.partition_by != partition_by:
            table = self._tables[place] = Table(self.root / place, partition_by, joins)
        return table

    def tidy(self, keep_hours: float = 24) -> None:
        """Joins small files where there are many, and deletes what is no longer needed. With the lock."""
        for table in (self.bronze, self.messages):
            table.compact(files_min=_FILES_MANY)
            table.vacuum(keep_hours)
        self.topics.vacuum(keep_hours)

    def clean(self) -> int:
        """Deletes what killed runs have left in all tables. Only with the lock."""
        return sum(Table(staged.parent).clean() for staged in self.root.glob("*/*/_staged"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Makes this process the only one that writes. Raises `locked` if another one is.

        The lock goes with the process, however that ends.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.read(handle, 100).decode(errors="replace").strip()
                raise DataDirLocked(
                    f"a pipeline is running on {self.root} already ({who or '?'}): "
                    "end it, or run on another directory"
                ) from None
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()}\n".encode())
            yield
        finally:
            os.close(handle)


def is_finished(file: DataFile) -> bool:
    """Of a file of `messages`: none of its rows changes any more."""
    return int(file.partition["level"] or 0) == 0


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a valid table name: use letters, digits, '.', '_' and '-'",
            field="name",
        )
    return name
