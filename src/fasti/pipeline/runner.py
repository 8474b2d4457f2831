"""Runs a workflow: its stages one after the other, in one round or in many.

The pipeline that Fasti brings (`stages`) and pipelines of one's own (`user_stage`) both run here. A
stage does what is left to do, in steps, each of which ends with a commit that says how far it came. So
a stage can be killed anywhere and goes on where it was; and SIGINT and SIGTERM end a run between two
steps. A stage that follows a stream starts it in the first round and looks after it in the others.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fasti.client.address import DEFAULT_ADDRESS
from fasti.client.client import Client
from fasti.errors import InvalidArgument
from fasti.pipeline import shared
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
    """How far a stage is: rows done of those known to be there (None: unknown)."""

    stage: str
    done: int
    total: int | None
    seconds: float
    # The stage's last report in this round.
    ended: bool = False


Report = Callable[[Progress], None]
"""Called after every step, in the thread that runs the workflow."""


@dataclass(frozen=True)
class Stage:
    """One part of a workflow, with the name by which progress is reported."""

    name: str
    # Does what there is to do; returns how many rows that were. Called once in each round.
    work: Callable[[StageRun], int]
    # Called when the workflow ends, also by an error, and if `work` was never called.
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Workflow:
    """Stages, the lake that they work on, and the broker they read from."""

    lake: Lake
    stages: Sequence[Stage]
    address: str = DEFAULT_ADDRESS
    token: str | None = None
    # When the feed no longer reaches back to where the lake is: an error, or go on where it begins.
    on_gap: Literal["fail", "skip"] = "fail"
    # Of stages: bronze has `payload`, `step_rows`, `tasks`; silver `step_rows`.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Whether the tables of the lake are this workflow's to clean and compact. If not, the lake is only
    # a directory that one process at a time may use.
    owns_tables: bool = True


class StageRun:
    """What a stage is given: one round of a workflow."""

    def __init__(
        self,
        workflow: Workflow,
        spark: SparkSession,
        once: bool,
        stop: threading.Event,
        report: Report | None,
    ) -> None:
        self.spark, self.lake, self.once = spark, workflow.lake, once
        self.address, self.token, self.on_gap = workflow.address, workflow.token, workflow.on_gap
        self._options, self._stop, self._report = workflow.options, stop, report
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
        """Of the broker; it connects with its first call."""
        return client_of(self.address, self.token)

    def option(self, name: str, default: Any = None) -> Any:
        """One of the workflow's options."""
        return self._options.get(name, default)

    def stopping(self) -> bool:
        """Whether to end after this step."""
        return self._stop.is_set()

    def progress(self, done: int, total: int | None = None, *, ended: bool = False) -> None:
        """Reports how far the stage is, after a step."""
        if self._report is not None:
            seconds = time.monotonic() - self._began
            self._report(Progress(self._stage, done, total, seconds, ended))

    def work(self, stage: Stage) -> int:
        """Runs one stage; called by the runner."""
        self._stage, self._began = stage.name, time.monotonic()
        self.progress(0)
        done = stage.work(self)
        self.progress(done, done, ended=True)
        return done


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did: rows by stage, how many rounds, whether it was asked to stop."""

    rows: dict[str, int]
    rounds: int
    stopped: bool


def run(
    workflow: Workflow,
    spark: SparkSession,
    *,
    once: bool = True,
    interval: float | None = None,
    progress: Report | None = None,
    stop: threading.Event | None = None,
    signals: bool = True,
) -> RunResult:
    """Runs all stages up to what the feed has when it begins; with `interval` again and again.

    SIGINT and SIGTERM (unless `signals` is False), or `stop`, end it after the step that is under way;
    between two rounds at once. Raises `locked` if another process runs on this lake,
    `invalid_argument` if Spark's processes don't see its directory, `gone` if the feed doesn't reach
    back to where the lake is; whatever a stage raises ends the run, and the next one goes on where it
    was.
    """
    if once == (interval is not None):
        raise InvalidArgument("give either once=True or an interval in seconds", field="interval")
    stop = threading.Event() if stop is None else stop
    rows = {stage.name: 0 for stage in workflow.stages}
    rounds = 0
    with ExitStack() as closing:
        closing.enter_context(workflow.lake.lock())
        if signals:
            closing.enter_context(_stopped_by_signals(stop))
        upkeep = Upkeep(workflow.lake, spark) if workflow.owns_tables else None
        for stage in workflow.stages:
            closing.callback(stage.close)
        while not stop.is_set():
            begun = time.monotonic()
            if upkeep is not None:
                upkeep.tidy(begun)
            this = StageRun(workflow, spark, once, stop, progress)
            for stage in workflow.stages:
                if stop.is_set():
                    break
                rows[stage.name] += this.work(stage)
            rounds += 1
            if interval is None:
                break
            stop.wait(max(0.0, begun + interval - time.monotonic()))
    return RunResult(rows, rounds, stop.is_set())


class Upkeep:
    """Keeps the tables of a lake in order, with its lock."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        if not shared.on_this_machine(spark):
            shared.check(lake.root, spark, shared.parallelism(spark))
        lake.clean()
        self._lake = lake
        self._due_s = 0.0

    def tidy(self, now_s: float) -> None:
        """Joins files and deletes old ones, when it is time."""
        if now_s >= self._due_s:
            self._lake.tidy()
            self._due_s = now_s + _TIDY_S


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set the event; only the main thread can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        # A second one does what it always does.
        signal.signal(number, before[number])
        stop.set()

    before: dict[int, Any] = {}
    for wanted in (signal.SIGINT, signal.SIGTERM):
        before[wanted] = signal.signal(wanted, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
