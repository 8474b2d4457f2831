"""The data source with a weak spot, for tests: it dies, fails or waits where its options say.

The option `weak` is JSON: `at` (`write`: in a task, when some of its rows are staged; `commit`: before
the publication; `published`: behind it), `batch`, what to `do`, and a file `once`, which sees to it
that it happens once. To `do`: `exit` ends the process at hand, `raise` raises, `kill` kills the driver
(all of the process group DRIVER_GROUP), `wait` makes the file `there` and waits for the file `go`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from fasti.spark.options import Options
from fasti.spark.sink import BatchWriter, StreamWriter
from fasti.spark.source import FastiSource

WAIT_S = 120.0


class WeakSpot:
    """Values only: goes to the tasks."""

    def __init__(self, told: str | None) -> None:
        self._told: dict[str, Any] = json.loads(told) if told else {}

    def reached(self, at: str, batch: int) -> None:
        """Does what it shall, if this is the place."""
        if self._told.get("at") != at or self._told.get("batch", 0) != batch:
            return
        try:
            os.close(os.open(self._told["once"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        getattr(self, f"_{self._told['do']}")()

    def _exit(self) -> None:
        os._exit(1)

    def _raise(self) -> None:
        raise RuntimeError("a weak spot")

    def _kill(self) -> None:
        # Spark hands the driver's process group on in the environment of its workers.
        os.killpg(int(os.environ["DRIVER_GROUP"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _wait(self) -> None:
        Path(self._told["there"]).touch()
        deadline = time.monotonic() + WAIT_S
        while not Path(self._told["go"]).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def staged(
        self, batches: Iterator[pa.RecordBatch], batch: int, rows: Any
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a task; when the first of them is in the broker, the place is reached."""
        for number, each in enumerate(batches):
            if number == 1 and self._told.get("at") == "write":
                deadline = time.monotonic() + WAIT_S
                while not rows():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                self.reached("write", batch)
            yield each


class WeakBatchWriter(BatchWriter):
    def __init__(self, weak: WeakSpot, options: Options, schema: StructType) -> None:
        super().__init__(options, schema, overwrite=False)
        self._weak = weak

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sink = self._write.sink(self._sink_id)
        return super().write(self._weak.staged(iterator, self._batch, lambda: _rows(sink)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._weak.reached("commit", self._batch)
        super().commit(messages)
        self._weak.reached("published", self._batch)


class WeakStreamWriter(StreamWriter):
    def __init__(self, weak: WeakSpot, options: Options, schema: StructType) -> None:
        super().__init__(options, schema, overwrite=False)
        self._weak = weak

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        query = self._sink_id or task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch is not None
        sink = self._write.sink(query)
        return super().write(self._weak.staged(iterator, int(batch), lambda: _rows(sink)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._weak.reached("commit", batchId)
        super().commit(messages, batchId)
        self._weak.reached("published", batchId)


def _rows(sink: Any) -> int:
    found = sink.describe()
    return 0 if found is None else int(found.rows)


class WeakSource(FastiSource):
    @classmethod
    def name(cls) -> str:
        return "fasti-weak"

    def _parts(self) -> tuple[WeakSpot, dict[str, str]]:
        rest = {name: value for name, value in self.options.items() if name != "weak"}
        return WeakSpot(self.options.get("weak")), rest

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        weak, rest = self._parts()
        return WeakBatchWriter(weak, Options.writing(rest), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        weak, rest = self._parts()
        return WeakStreamWriter(weak, Options.writing(rest, stream=True), schema)


def register(spark: SparkSession) -> None:
    """Makes `format("fasti-weak")` known. It travels with the job: workers can't import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(WeakSource)
