"""How the steps of a user's pipeline run.

Each step has a folder `<directory>/<pipeline>/<step>`: Spark's checkpoint of its stream, and `id`, a
number of its own. Every write is named by that id and numbered: by the micro-batch of a stream, or
by the run of a batch step (kept in `runs.json`). A driver that is killed anywhere finds in its folder
what it was at, does that again under the same number, and the sink knows whether it has it already.
So each micro-batch and each run is written exactly once. Without its folder a step is a new one:
streams begin anew and are written anew.

Static sources of a step with a stream are read anew for each micro-batch. A `stateful` step is
planned once: its static sources are taken at its start and kept as they were.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from fasti.errors import InvalidArgument
from fasti.pipeline.ends import Place
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import stopped_by_signals
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
    tell = progress or (lambda done: None)
    runners = [_Runner(pipeline.name, step, active, place, tell) for step in steps]
    try:
        # One process at a time: two would write each other's micro-batches.
        with Lake(place.directory / pipeline.name).lock():
            if once:
                return [runner.once() for runner in runners]
            _run_on(runners)
            return [runner.total() for runner in runners]
    finally:
        if mine:
            active.stop()


def _run_on(runners: Sequence[_Runner]) -> None:
    """All steps side by side, until a signal or a failure; then all queries are stopped."""
    streams = [runner for runner in runners if runner.step.streamed]
    batches = [runner for runner in runners if not runner.step.streamed]
    due = dict.fromkeys((runner.step.name for runner in batches), 0.0)
    stop = threading.Event()
    with stopped_by_signals(stop):
        try:
            for runner in streams:
                runner.start()
            while not stop.wait(_LOOK_S):
                for runner in streams:
                    runner.look()
                for runner in batches:
                    if due[runner.step.name] <= time.monotonic() and not stop.is_set():
                        due[runner.step.name] = time.monotonic() + runner.step.every_s
                        runner.once()
        finally:
            for runner in streams:
                runner.stop()


class _Runner:
    """One step in one run. Called in the driver's thread; `_write` also in a stream's."""

    def __init__(
        self, pipeline: str, step: Step, spark: SparkSession, place: Place, tell: Progress
    ) -> None:
        self.step, self._spark, self._place, self._tell = step, spark, place, tell
        self._folder = place.directory / pipeline / step.name
        self._prefix = f"{pipeline}/{step.name}"
        self._query: Any = None
        self._heard = -1
        self._total = StepRun(step.name, 0, 0, 0.0)

    def total(self) -> StepRun:
        """What was done so far."""
        return self._total

    def once(self) -> StepRun:
        """All that there is to do now."""
        if not self.step.streamed:
            self._run_batch()
            return self._total
        self.start(once=True)
        try:
            while not self._query.awaitTermination(_LOOK_S):
                self._hear()
            self._hear()
        finally:
            self.stop()
        return self._total

    # Batch steps

    def _run_batch(self) -> None:
        """A run that was begun and not ended is done again under its number."""
        begin = time.perf_counter()
        identity = self._identity()
        kept = self._folder / "runs.json"
        ended = json.loads(kept.read_text())["ended"] if kept.exists() else 0
        with self._once_read({name: self._read(name) for name in self.step.sources}) as frames:
            self._write(self.step.called(frames), identity, ended + 1)
        _replace(kept, json.dumps({"ended": ended + 1}))
        self._add(0, time.perf_counter() - begin)

    # Streams

    def start(self, once: bool = False) -> None:
        """Starts the query of a step with streams."""
        stream, write = self._kept() if self.step.stateful else self._each()
        writer = stream.writeStream.foreachBatch(write).queryName(self._prefix)
        writer = writer.outputMode(self.step.output)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            every = f"{round(self.step.every_s * 1000)} milliseconds"
            writer = writer.trigger(processingTime=every)
        self._query = writer.start()

    def look(self) -> None:
        """Tells what was done since; raises what made the query fail."""
        self._hear()
        if not self._query.isActive:
            self._query.awaitTermination()

    def stop(self) -> None:
        """Ends the query; what it was at is done again by the next run."""
        if self._query is not None:
            self._query.stop()

    def _each(self) -> tuple[DataFrame, _Write]:
        """The function is called with every micro-batch."""
        identity = self._identity()
        (streamed,) = self.step.streamed
        others = [name for name in self.step.sources if name != streamed]

        def write(rows: DataFrame, batch: int) -> None:
            frames = {name: self._read(name) for name in others}
            with self._once_read({**frames, streamed: rows}) as sources:
                self._write(self.step.called(sources), identity, batch)

        return self._read(streamed), write

    def _kept(self) -> tuple[DataFrame, _Write]:
        """The function is called once, with the streams."""
        identity = self._identity()
        frames = {}
        for name, source in self.step.sources.items():
            frame = self._read(name)
            # A plan is made once for all micro-batches: what it reads must stay.
            frames[name] = frame if source.streamed else frame.localCheckpoint(eager=True)
        made = self.step.called(frames)

        def write(rows: DataFrame, batch: int) -> None:
            self._write(dict.fromkeys(made, rows), identity, batch)

        return next(iter(made.values())), write

    def _hear(self) -> None:
        for told in self._query.recentProgress:
            if told["batchId"] > self._heard and "addBatch" in told["durationMs"]:
                self._heard = told["batchId"]
                self._add(told["numInputRows"], told["durationMs"]["triggerExecution"] / 1e3)

    # Both

    def _read(self, name: str) -> DataFrame:
        return self.step.sources[name].read(self._spark, self._place)

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
        so_far = self._total
        self._total = StepRun(
            so_far.step,
            so_far.batches + 1,
            so_far.rows + rows,
            round(so_far.seconds + seconds, 3),
        )
        self._tell(self._total)

    def _identity(self) -> str:
        """Names this step's writes for as long as its folder is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = self._folder / "id"
        if not kept.exists():
            _replace(kept, uuid.uuid4().hex)
        return kept.read_text()


def _replace(path: Path, text: str) -> None:
    """Writes a small file that is there whole or not at all, also after a power cut."""
    fresh = path.with_name(f"{path.name}.new")
    with open(fresh, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
