"""Batch reads: planned in a process beside the driver, read by tasks.

Spark makes a reader for each plan, asks it for partitions once, and keeps both for as long as the
DataFrame lives. A reader that can filter is refused unless `spark.sql.python.filterPushdown.enabled`
is true, so the one that Spark gets when it is not has no such method: everything works, with all rows
on the way to Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from fasti.spark.connection import client_of
from fasti.spark.errors import as_spark_errors
from fasti.spark.filters import Pushed, pushed
from fasti.spark.options import Options
from fasti.spark.plans import Planner
from fasti.spark.tickets import Task
from fasti.spark.views import View

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class BatchReader(DataSourceReader):
    """Reads one view, without filters."""

    def __init__(self, options: Options, view: View) -> None:
        self._options, self._view = options, view
        self._filters = Pushed(view.name)

    def partitions(self) -> Sequence[InputPartition]:
        """A task each. The rows of all tasks are of one moment."""
        with as_spark_errors():
            client = client_of(self._options["address"], self._options["token"])
            planner = Planner(client, self._options, self._view, filters=self._filters)
            return [InputPartition(task) for task in planner.planned()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        # Where there is nothing to read Spark makes up a partition.
        if task is not None:
            with as_spark_errors():
                yield from task.batches()


class FilteringReader(BatchReader):
    """The same, for a Spark that hands filters over."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps what the broker can filter; gives the rest back to Spark."""
        self._filters, rest = pushed(self._view.name, filters)
        return rest


def reader_of(options: Options, view: View) -> BatchReader:
    """The reader that Spark can take just now.

    Filters are taken only when the user asks for it. Spark up to 4.3 keeps the partitions that were
    planned last with the `load()`, not with the query: another query of the same DataFrame, with
    other filters or none, would read those, and miss rows without a word.
    """
    pushing = options["pushDownPredicate"] and _is_asked_to_filter()
    return FilteringReader(options, view) if pushing else BatchReader(options, view)


def _is_asked_to_filter() -> bool:
    """Whether Spark is about to hand filters over. It says so only by where it calls from."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == _PUSHING:
            return True
    return False
