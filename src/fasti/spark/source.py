"""`format("fasti")`: the data source that Spark finds by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fasti.spark.connection import client_of
from fasti.spark.errors import shown
from fasti.spark.feed_stream import FeedStream
from fasti.spark.filters import pushed
from fasti.spark.log_stream import LogStream
from fasti.spark.options import Options
from fasti.spark.plans import Planner
from fasti.spark.sink import BatchWriter, StreamWriter
from fasti.spark.tickets import Task
from fasti.spark.views import View


class FastiSource(DataSource):
    """Topics as DataFrames. The options stand in the guide to Spark."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "fasti"

    def schema(self) -> StructType:
        """The view's, with the columns that were asked for."""
        with shown():
            return from_arrow_schema(_view(Options.reading(self.options)).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch reads."""
        with shown():
            return FastiReader(Options.reading(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Streams of changes and logs."""
        with shown():
            options = Options.reading(self.options, stream=True)
            kind = FeedStream if options["view"] == "changes" else LogStream
            return kind(options, _view(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Batch writes."""
        with shown():
            return BatchWriter(Options.writing(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Streams into topics."""
        with shown():
            return StreamWriter(Options.writing(self.options, stream=True), schema, overwrite)


def _view(options: Options) -> View:
    view = options["view"]
    payload = view != "changes" or options["payload"]
    return View(view, options["columns"], payload, options["includeHeaders"])


class FastiReader(DataSourceReader):
    """One batch read: planned in the driver, read by tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._filters: dict[str, Any] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps what the broker can filter; gives the rest back to Spark."""
        self._filters, rest = pushed(self._options["view"], filters)
        return rest

    def partitions(self) -> Sequence[InputPartition]:
        """A task each. The state of all tasks is of one moment."""
        with shown():
            options, view = self._options, _view(self._options)
            client = client_of(options["address"], options["token"])
            planner = Planner(client, options, view, parallelism=2)
            if view.name == "messages":
                tasks = planner.messages(self._filters)
            elif view.name == "kv":
                tasks = planner.entries()
            else:
                tasks = planner.between_options()
            return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        task: Task = partition.value
        with shown():
            yield from task.batches()
