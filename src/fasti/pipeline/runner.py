"""Runs a pipeline: its stages one after the other, once or on and on.

A stage is a function of a `Run`: it does what is left to do, in steps, each of which ends with a
commit that says how far it came. So a stage can be killed anywhere and goes on where it was; and
SIGINT and SIGTERM end a run between two steps.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fasti.client.address import DEFAULT_ADDRESS
from fasti.client.client import Client
from fasti.errors import InvalidArgument
from fasti.pipeline import shared
from fasti.pipeline.bronze import parallelism
from fasti.pipeline.lake import Lake
from fasti.spark.connection import client_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What stages look at in messages, of fifty columns.
_NEEDED = (
    *("shard", "topic", "topic_since", "partition", "id", "state", "last_position"),
    *("produced_at", "due_last", "first_leased_at", "started_at", "finished_at"),
    *("lateness_us", "early", "leases", "releases"),
)
# Files are joined, and old ones deleted, when a run begins and so often.
_TIDY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: rows done of those known to be there (None: nobody knows)."""

    stage: str
    done: int
    total: int | None
    seconds: float
    # The stage's last word in this round.
    ended: bool = False

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.done / self.seconds if self.seconds else 0.0


Report = Callable[[Progress], None]
"""Called from the thread that runs, after every step."""


@dataclass(frozen=True)
class Pipeline:
    """What runs, on which lake, from which broker."""

    lake: Lake
    stages: Sequence[Stage]
    address: str = DEFAULT_ADDRESS
    token: str | None = None
    # When the feed no longer reaches back to where the lake is: an error, or go on where it begins.
    on_gap: Literal["fail", "skip"] = "fail"
    # Of stages: bronze has `payload`, `step_rows`, `tasks`; silver `step_rows`.
    options: Mapping[str, Any] = field(default_factory=dict)


class Run:
    """What a stage is given: one round of a pipeline."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, stop: threading.Event, report: Report | None
    ) -> None:
        self.spark, self.lake = spark, pipeline.lake
        self.address, self.token, self.on_gap = pipeline.address, pipeline.token, pipeline.on_gap
        self._options, self._stop, self._report = pipeline.options, stop, report
        self._stage, self._began = "", 0.0
        # Silver, and as of which version of it.
        self._messages: tuple[int | None, DataFrame] | None = None

    def messages(self) -> DataFrame:
        """All messages, of silver as it is now, with the columns that gold and the audit look at."""
        version = self.lake.messages.version()
        if self._messages is None or self._messages[0] != version:
            self._messages = version, self.lake.silver(self.spark).select(*_NEEDED)
        return self._messages[1]

    @property
    def client(self) -> Client:
        """Of the broker; made when it is first asked for."""
        return client_of(self.address, self.token)

    def option(self, name: str, default: Any = None) -> Any:
        """One of the pipeline's options."""
        return self._options.get(name, default)

    def stopping(self) -> bool:
        """Whether to end after this step."""
        return self._stop.is_set()

    def progress(self, done: int, total: int | None = None) -> None:
        """Tells how far the stage is, after a step."""
        self._tell(done, total, ended=False)

    def begin(self, stage: str) -> None:
        """By the runner."""
        self._stage, self._began = stage, time.monotonic()
        self._tell(0, None, ended=False)

    def end(self, done: int) -> None:
        """By the runner."""
        self._tell(done, done, ended=True)

    def _tell(self, done: int, total: int | None, ended: bool) -> None:
        if self._report is not None:
            lasted = time.monotonic() - self._began
            self._report(Progress(self._stage, done, total, lasted, ended))


Stage = Callable[[Run], int]
"""Does what is there to do; returns how many rows that were. Its `__name__` is the stage's name."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did: rows by stage, how many rounds, whether it was asked to stop."""

    rows: dict[str, int]
    rounds: int
    stopped: bool


def run(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    once: bool = True,
    interval: float | None = None,
    progress: Report | None = None,
    stop: threading.Event | None = None,
) -> Done:
    """Runs all stages up to what the feed has when it begins; with `interval` again and again.

    SIGINT and SIGTERM, or `stop`, end it after the step that is under way; between two rounds at
    once. Raises `locked` if another process runs on this lake, `invalid_argument` if Spark's processes
    don't see its directory, `gone` if the feed doesn't reach back to where the lake is; whatever a
    stage raises ends the run, and the next one goes on where it was.
    """
    if once == (interval is not None):
        raise InvalidArgument("either once, or an interval in seconds", field="interval")
    stop = threading.Event() if stop is None else stop
    rows = {name_of(stage): 0 for stage in pipeline.stages}
    rounds = 0
    with pipeline.lake.lock(), stopped_by_signals(stop):
        if not shared.on_this_machine(spark):
            shared.check(pipeline.lake.root, spark, parallelism(spark))
        pipeline.lake.clean()
        tidied = time.monotonic() - _TIDY_S
        while not stop.is_set():
            begun = time.monotonic()
            if begun - tidied >= _TIDY_S:
                pipeline.lake.tidy()
                tidied = begun
            this = Run(pipeline, spark, stop, progress)
            for stage in pipeline.stages:
                if stop.is_set():
                    break
                this.begin(name_of(stage))
                done = stage(this)
                rows[name_of(stage)] += done
                this.end(done)
            rounds += 1
            if interval is None:
                break
            stop.wait(max(0.0, begun + interval - time.monotonic()))
    return Done(rows, rounds, stop.is_set())


def name_of(stage: Stage) -> str:
    """For bars and reports."""
    return str(getattr(stage, "__name__", type(stage).__name__))


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set the event, where signals can be had: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        # A second one does what it always does.
        signal.signal(number, before[number])
        stop.set()

    before: dict[int, Any] = {}
    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
