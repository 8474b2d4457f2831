"""The lake: where the pipeline's tables lie, and who may write to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from fasti.pipeline.tables import Format, Table


class Lake:
    """The tables below one directory.

    lake = Lake("./lake")
    lake.bronze.read(spark)           # every transition
    lake.silver(spark)                # one row per message, as of the last run
    lake.gold("lateness").arrow()     # without Spark
    """

    def __init__(self, root: str | Path, format: Format = "delta") -> None:
        self.root, self.format = Path(root), format

    @property
    def bronze(self) -> Table:
        """`transitions`: the change feed."""
        raise NotImplementedError

    @property
    def messages(self) -> Table:
        """The table behind `silver`: some of its rows are parts of a message's life."""
        raise NotImplementedError

    def silver(self, spark: SparkSession) -> DataFrame:
        """One row per message, finished or not."""
        raise NotImplementedError

    def gold(self, name: str) -> Table:
        """A table of figures."""
        raise NotImplementedError

    def table(self, name: str) -> Table:
        """A table of a pipeline of one's own."""
        raise NotImplementedError

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Makes this process the only one that writes. Raises `locked` if another one is."""
        raise NotImplementedError
