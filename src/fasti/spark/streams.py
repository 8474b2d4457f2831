"""Streams of the change feed and of logs.

Spark keeps offsets before it reads, and reads again between the same two after a kill: what lies
between two offsets is always the same here. What retention has dropped is an error that says so,
unless `failOnDataLoss` is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fasti.client.changes import feed_bounds
from fasti.client.client import Client
from fasti.errors import Gone
from fasti.spark.connection import client_of
from fasti.spark.errors import shown
from fasti.spark.options import Options
from fasti.spark.places import Offsets, as_offsets, feed_place, log_place
from fasti.spark.plans import Planner
from fasti.spark.tickets import Task
from fasti.spark.views import View


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both have in common."""

    def __init__(self, options: Options, view: View) -> None:
        self._options, self._view = options, view
        self._first: Offsets | None = None
        # With AvailableNow: nothing beyond this.
        self._target: Offsets | None = None

    @property
    def _client(self) -> Client:
        return client_of(self._options["address"], self._options["token"])

    def _planner(self) -> Planner:
        return Planner(self._client, self._options, self._view, parallelism=2)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks more than once: it must hear the same."""
        with shown():
            if self._first is None:
                self._first = self._start()
            return self._first

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        with shown():
            end = self._target if self._target is not None else self._end()
            if isinstance(limit, ReadMaxRows):
                return self._limited(start, end, limit.max_rows)
            return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What there is, for the query's progress."""
        with shown():
            return self._end()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads."""
        with shown():
            self._target = self._end()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        task: Task = partition.value
        with shown():
            yield from task.batches()

    def _start(self) -> Offsets:
        raise NotImplementedError

    def _end(self) -> Offsets:
        raise NotImplementedError

    def _limited(self, start: Offsets, end: Offsets, rows: int) -> Offsets:
        raise NotImplementedError


class FeedStream(_Stream):
    """The change feed of a broker."""

    def _start(self) -> Offsets:
        return feed_place(self._client, self._options, "startingOffsets")

    def _end(self) -> Offsets:
        return as_offsets(feed_bounds(self._client.transport).last)

    def _limited(self, start: Offsets, end: Offsets, rows: int) -> Offsets:
        fields = {"shard": start["shard"], "after": start["frame"], "rows": rows}
        header, _ = self._client.transport.call("feed", fields)
        return {"shard": start["shard"], "frame": min(int(header["position"]), end["frame"])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What happened between two positions."""
        with shown():
            try:
                tasks = self._planner().changes(start, end)
            except Gone:
                if self._options["failOnDataLoss"]:
                    raise
                bounds = feed_bounds(self._client.transport)
                tasks = self._planner().changes(as_offsets(bounds.first), end)
            return [InputPartition(task) for task in tasks]


class LogStream(_Stream):
    """The rows of a log."""

    def _start(self) -> Offsets:
        return log_place(self._client, self._options, "startingOffsets")

    def _end(self) -> Offsets:
        topic = self._options["topic"]
        return {str(each.partition): each.end for each in self._client.log(topic).describe()}

    def _limited(self, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Every partition gets its share of the rows, by how many it has."""
        waiting = {number: max(0, int(end[number]) - int(start.get(number, 0))) for number in end}
        total = sum(waiting.values())
        if total <= rows:
            return end
        return {
            number: int(start.get(number, 0)) + -(-count * rows // total)
            for number, count in waiting.items()
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Rows between two places."""
        with shown():
            described = self._client.log(self._options["topic"]).describe()
            earliest = {str(each.partition): each.earliest for each in described}
            lost = {
                number: first
                for number, first in earliest.items()
                if int(start.get(number, 0)) < min(first, int(end.get(number, 0)))
            }
            if lost:
                if self._options["failOnDataLoss"]:
                    number, first = next(iter(lost.items()))
                    raise Gone(
                        f"rows of partition {number} below offset {first} were dropped before "
                        "they were read",
                        details={"partition": int(number), "earliest": first},
                    )
                start = {n: max(int(start.get(n, 0)), earliest[n]) for n in end}
            return [InputPartition(task) for task in self._planner().log(start, end)]
