"""The steps of a user's pipeline as stages, which the same runner runs.

Each step has a folder `<directory>/<pipeline>/<step>`: Spark's checkpoint of its stream, and `id`, a
number of its own. Every write is named by that id and numbered: by the micro-batch of a stream, or
by the run of a batch step (kept in `runs.json`). A driver that is killed anywhere reads in the folder
what it was doing, does that again under the same number, and the sink knows whether it has it already.
So each micro-batch and each run is written exactly once. Without its folder a step is a new one:
streams begin anew and are written anew.

Static sources of a step with a stream are read anew for each micro-batch. A `stateful` step is
planned once: its static sources are read at its start and stay as they were.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from fasti.errors import InvalidArgument
from fasti.pipeline import runner
from fasti.pipeline.ends import Place
from fasti.pipeline.files import replace_text
from fasti.pipeline.lake import Lake
from fasti.pipeline.shared import NO_CONNECT, connected

if TYPE_CHECKING:
    from fasti.pipeline.user import Pipeline, Step


@dataclass(frozen=True, slots=True)
class StepRun:
    """What a step did: how many micro-batches or runs, rows read from its streams, seconds."""

    step: str
    batches: int
    rows: int
    seconds: float


Progress = Callable[[StepRun], None]

_Write = Callable[[DataFrame, int], None]
# How often running queries are looked at, for progress and failures.
_LOOK_S = 0.2


def run(
    pipeline: Pipeline,
    spark: SparkSession | None,
    once: bool,
    steps: Sequence[Step],
    place: Place,
    progress: Progress | None,
) -> list[StepRun]:
    """See `Pipeline.run`."""
    from fasti.spark.session import register, session

    mine = SparkSession.getActiveSession() is None and spark is None
    active = spark or session(name=pipeline.name)
    if connected(active):
        # There micro-batches are handed out on the server, far from this process's sinks.
        raise InvalidArgument(NO_CONNECT, field="spark")
    register(active)
    # Makes it this thread's session too: in one that has none, Spark finds no source by its name.
    active.createDataFrame([], "nothing int")
    stages = [StepStage(pipeline.name, step, place, progress) for step in steps]
    workflow = runner.Workflow(
        # One process at a time: two would write each other's micro-batches.
        Lake(place.directory / pipeline.name),
        [runner.Stage(stage.step.name, stage.update, stage.stop) for stage in stages],
        owns_tables=False,
    )
    try:
        # A run that ends by itself leaves signals to the program that called it.
        interval_s = None if once else _LOOK_S
        runner.run(workflow, active, once=once, interval=interval_s, signals=not once)
        return [stage.total for stage in stages]
    finally:
        if mine:
            active.stop()


class StepStage:
    """One step in one run. Called in the driver's thread; `_write` also in a stream's."""

    def __init__(self, pipeline: str, step: Step, place: Place, progress: Progress | None) -> None:
        self.step, self._place, self._progress = step, place, progress
        self._folder = place.directory / pipeline / step.name
        self._prefix = f"{pipeline}/{step.name}"
        self._query: Any = None
        self._due_s = 0.0
        self._last_batch = -1
        self.total = StepRun(step.name, 0, 0, 0.0)

    def update(self, run: runner.StageRun) -> int:
        """All that there is to do now; of a run that goes on, as much as is due. Returns the rows.

        Raises what made the query of a stream fail.
        """
        before = self.total.rows
        if not self.step.streamed:
            self._run_when_due(run.spark)
        elif run.once:
            self._start(run.spark, once=True)
            while not self._query.awaitTermination(_LOOK_S):
                self._report()
            self._report()
        elif self._query is None:
            self._start(run.spark, once=False)
        else:
            self._report()
            if not self._query.isActive:
                self._query.awaitTermination()
        return self.total.rows - before

    def stop(self) -> None:
        """Ends the query; a micro-batch that was under way is done again by the next run."""
        if self._query is not None:
            self._query.stop()

    def _run_when_due(self, spark: SparkSession) -> None:
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + self.step.every_s
            self._run_batch(spark)

    def _run_batch(self, spark: SparkSession) -> None:
        """A run that was begun and not ended is done again under its number."""
        begin = time.perf_counter()
        identity = self._identity()
        runs = self._folder / "runs.json"
        ended = json.loads(runs.read_text())["ended"] if runs.exists() else 0
        sources = {
            name: source.read(spark, self._place) for name, source in self.step.sources.items()
        }
        with self._once_read(sources) as frames:
            self._write(self.step.call(frames), identity, ended + 1)
        replace_text(runs, json.dumps({"ended": ended + 1}))
        self._add(0, time.perf_counter() - begin)

    def _start(self, spark: SparkSession, once: bool) -> None:
        """Starts the query of a step with streams."""
        planned = self._once_planned if self.step.stateful else self._batch_by_batch
        stream, write = planned(spark)
        writer = stream.writeStream.foreachBatch(write).queryName(self._prefix)
        writer = writer.outputMode(self.step.output)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            every = f"{round(self.step.every_s * 1000)} milliseconds"
            writer = writer.trigger(processingTime=every)
        self._query = writer.start()

    def _batch_by_batch(self, spark: SparkSession) -> tuple[DataFrame, _Write]:
        """The function is called with every micro-batch."""
        identity = self._identity()
        (streamed,) = self.step.streamed
        others = dict(self.step.sources)
        stream = others.pop(streamed).read(spark, self._place)

        def write(rows: DataFrame, batch: int) -> None:
            frames = {name: source.read(spark, self._place) for name, source in others.items()}
            with self._once_read({**frames, streamed: rows}) as sources:
                self._write(self.step.call(sources), identity, batch)

        return stream, write

    def _once_planned(self, spark: SparkSession) -> tuple[DataFrame, _Write]:
        """The function is called once, with the streams."""
        identity = self._identity()
        frames = {}
        for name, source in self.step.sources.items():
            frame = source.read(spark, self._place)
            # A plan is made once for all micro-batches: what it reads must stay.
            frames[name] = frame if source.streamed else frame.localCheckpoint(eager=True)
        made = self.step.call(frames)

        def write(rows: DataFrame, batch: int) -> None:
            self._write(dict.fromkeys(made, rows), identity, batch)

        return next(iter(made.values())), write

    def _report(self) -> None:
        """Counts the micro-batches that ended since."""
        for batch in self._query.recentProgress:
            if batch["batchId"] > self._last_batch and "addBatch" in batch["durationMs"]:
                self._last_batch = batch["batchId"]
                self._add(batch["numInputRows"], batch["durationMs"]["triggerExecution"] / 1e3)

    @contextmanager
    def _once_read(self, frames: dict[str, DataFrame]) -> Iterator[dict[str, DataFrame]]:
        """Several sinks see the same rows: what the first one changes must not change the next."""
        if len(self.step.sinks) == 1:
            yield frames
            return
        for frame in frames.values():
            frame.persist()
        try:
            yield frames
        finally:
            for frame in frames.values():
                frame.unpersist()

    def _write(self, made: Mapping[str, DataFrame], identity: str, number: int) -> None:
        for name, frame in made.items():
            sink = f"{self._prefix}/{name}/{identity}" if name else f"{self._prefix}/{identity}"
            self.step.sinks[name].write(frame, self._place, (sink, number))

    def _add(self, rows: int, seconds: float) -> None:
        total = self.total
        lasted = round(total.seconds + seconds, 3)
        self.total = StepRun(total.step, total.batches + 1, total.rows + rows, lasted)
        if self._progress is not None:
            self._progress(self.total)

    def _identity(self) -> str:
        """Names this step's writes for as long as its folder is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "id"
        if not path.exists():
            replace_text(path, uuid.uuid4().hex)
        return path.read_text()
