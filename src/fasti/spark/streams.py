"""Streams of the change feed and of logs.

Spark keeps offsets before it reads, and reads again between the same two after a kill: what lies
between two offsets is always the same here. What retention has dropped, or went away with a topic or
the broker's data, is an error that says so, unless `failOnDataLoss` is false.

A reader lives in a process of its own beside the driver for as long as its query runs, and is called
by one thread. Spark asks for the latest offset again and again while nothing happens, a hundred times
a second: an idle stream waits before it asks the broker, longer each time, up to a tenth of a second.
A micro-batch that is small is one question to the broker and one task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fasti.client.client import Client
from fasti.errors import Gone
from fasti.spark.connection import client_of
from fasti.spark.errors import as_spark_errors
from fasti.spark.options import Options
from fasti.spark.patience import patiently
from fasti.spark.places import Offsets
from fasti.spark.plans import Planner
from fasti.spark.tickets import Task
from fasti.spark.views import View

logger = logging.getLogger("fasti.spark")

_IDLE_FIRST_S, _IDLE_MAX_S = 0.01, 0.1


class Idling:
    """How long to wait before the broker is asked again: not at all when there was something new."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._asked_at = 0.0

    def wait(self) -> None:
        left = self._asked_at + self._pause_s - time.monotonic()
        if left > 0:
            time.sleep(left)

    def note_question(self, news: bool) -> None:
        grown = min(max(2 * self._pause_s, _IDLE_FIRST_S), _IDLE_MAX_S)
        self._pause_s = 0.0 if news else grown
        self._asked_at = time.monotonic()


class OffsetStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both have in common. `commit` has nothing to do: what Spark has read is not dropped."""

    def __init__(self, options: Options, view: View) -> None:
        self._options, self._view = options, view
        self._idling = Idling()
        self._first: Offsets | None = None
        # What there was when the broker was last asked.
        self._latest: Offsets | None = None
        # With AvailableNow: nothing beyond this.
        self._target: Offsets | None = None
        # A start that was looked at, and where reading really begins from it.
        self._looked: tuple[Offsets, Offsets] | None = None

    # What Spark calls

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> Offsets:
        """Spark asks more than once: it must hear the same."""
        with as_spark_errors():
            if self._first is None:
                self._first = self._patiently(self._starting)
            return self._first

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next micro-batch ends."""
        with as_spark_errors():
            self._idling.wait()
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = self._patiently(lambda: self._ending(start, rows))
            self._idling.note_question(end != start)
            return end

    def reportLatestOffset(self) -> Offsets | None:
        """What there is, for the query's progress. Spark asks right after the call above."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads."""
        with as_spark_errors():
            self._target = self._patiently(self._end)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Again after a restart, for the one that was not finished."""
        with as_spark_errors():
            return [
                InputPartition(work) for work in self._patiently(lambda: self._work(start, end))
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor."""
        tasks: Sequence[Task] = partition.value
        with as_spark_errors():
            for task in tasks:
                yield from self._rows(task)

    def _rows(self, task: Task | None) -> Iterator[pa.RecordBatch]:
        """What of a task's rows is still there when it comes to them."""
        while task is not None:
            try:
                yield from task.batches()
                return
            except Gone as error:
                if self._options["failOnDataLoss"]:
                    raise
                logger.warning("data loss: %s The query goes on behind it.", error.message)
                task = _later(task, error)

    # For those below

    def _patiently(self, ask: Any) -> Any:
        return patiently(ask, self._options["timeout"])

    @property
    def _client(self) -> Client:
        return client_of(self._options["address"], self._options["token"])

    def _call(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        header, _ = self._client.transport.call(action, fields, timeout=self._options["timeout"])
        return header

    def _planner(self) -> Planner:
        return Planner(self._client, self._options, self._view)

    def _begin(self, start: Offsets) -> Offsets:
        """Where reading begins from an offset: there, unless something was lost."""
        if self._looked is None or self._looked[0] != start:
            self._looked = start, self._look(start)
        return self._looked[1]

    def _report_loss(self, what: str, settings: str, details: dict[str, Any]) -> None:
        """Raises that something is missing, or warns of it."""
        if self._options["failOnDataLoss"]:
            raise Gone(
                f"{what} {settings} With failOnDataLoss=false the query goes on with the earliest "
                "that there is.",
                details=details,
            )
        logger.warning("data loss: %s The query goes on with the earliest that there is.", what)

    def _starting(self) -> Offsets:
        """Where a new query begins."""
        raise NotImplementedError

    def _end(self) -> Offsets:
        """What there is now."""
        raise NotImplementedError

    def _look(self, start: Offsets) -> Offsets:
        """Asks the broker what of an offset is still there."""
        raise NotImplementedError

    def _ending(self, start: Offsets, rows: int | None) -> Offsets:
        """Where a micro-batch from `start` ends that has about so many rows at most."""
        raise NotImplementedError

    def _work(self, start: Offsets, end: Offsets) -> list[list[Task]]:
        """What tasks do: each reads its tickets one after the other."""
        raise NotImplementedError


def _later(task: Task, error: Gone) -> Task | None:
    """What is left of a task without what was dropped under its hands; None if nothing is."""
    ticket = task.ticket
    place, end, name = (
        ("after", "through", "first")
        if ticket["call"] == "changes"
        else ("offset", "end_offset", "earliest")
    )
    first = error.details.get(name)
    if not isinstance(first, int) or first <= ticket[place]:
        raise error
    return None if first >= ticket[end] else replace(task, ticket={**ticket, place: first})
