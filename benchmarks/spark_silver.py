"""Silver's cost by what is old: the same new transitions with nothing before them, and with much.

New are messages that are produced, leased and acked, a fifth of `rows` transitions; old are four times
`rows` transitions, of messages that are finished, or of as many that are still pending. Only silver
is timed; bronze has brought the transitions before.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import fasti
from benchmarks.spark_bronze import KEPT, lives
from benchmarks.wire import broker, run_job
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Progress, Workflow, run
from fasti.pipeline.stages import BRONZE, SILVER

Figures = dict[str, Any]
Show = Callable[[str], None]

PHASES = 5


def measure(
    spark: SparkSession, directory: Path | None, rows: int, rounds: int, show: Show
) -> Figures:
    """The median seconds of a run, and how many times those of one with nothing old that is."""
    new, old = max(rows // 5, 1), rows * 4
    show(f"silver: {new:,} new transitions, none old")
    # The first warms up.
    alone = statistics.median([_alone(spark, directory, new) for _ in range(rounds + 1)][1:])
    found: Figures = {"silver_none_old": {"new": new, "seconds": round(alone, 2)}}
    for name, make in (("silver", lives), ("silver_open", pend)):
        with _lake(spark, directory) as (address, step):
            show(f"{name}: make {old:,} old transitions, and bring them into the lake")
            make(address, old)
            step()
            show(f"{name}: {new:,} new transitions, {old:,} old ones")
            seconds = statistics.median(_timed(address, step, new) for _ in range(rounds))
        found[name] = {
            "new": new,
            "old": old,
            "seconds": round(seconds, 2),
            "times_without_old": round(seconds / alone, 2),
        }
    return found


def pend(address: str, rows: int) -> None:
    """Messages that stay pending: one transition each."""
    with fasti.connect(address) as client:
        client.create_topic("stock")
    run_job("spark_rows:fill", address, topic="stock", rows=rows, payload_bytes=1)


def _alone(spark: SparkSession, directory: Path | None, new: int) -> float:
    with _lake(spark, directory) as (address, step):
        return _timed(address, step, new)


def _timed(address: str, step: Callable[[], float], new: int) -> float:
    lives(address, new)
    return step()


@contextmanager
def _lake(spark: SparkSession, directory: Path | None) -> Iterator[tuple[str, Callable[[], float]]]:
    """A broker's address, and what brings its feed into a lake; it returns silver's seconds."""
    with (
        broker(directory, **KEPT) as process,
        tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as root,
    ):
        workflow = Workflow(Lake(root), [BRONZE, SILVER], process.address)

        def step() -> float:
            heard: list[Progress] = []
            run(workflow, spark, progress=heard.append)
            return next(each.seconds for each in heard if each.stage == "silver" and each.ended)

        yield process.address, step
