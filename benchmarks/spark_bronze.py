"""The change feed into the bronze table: transitions of messages that were produced, leased, acked."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import fasti
from benchmarks.spark_timing import seconds_of
from benchmarks.throughput_jobs import BATCH
from benchmarks.wire import broker, run_job
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Workflow, run
from fasti.pipeline.stages import BRONZE

Figures = dict[str, Any]
Show = Callable[[str], None]

PHASES = 2
# Produced, leased, acked.
LIFE = 3
# The feed must not go while it is read.
KEPT = {"feed_size": "64GiB"}


def measure(
    spark: SparkSession, directory: Path | None, rows: int, rounds: int, show: Show
) -> Figures:
    """All of the feed into a new lake, again and again."""
    with broker(directory, **KEPT) as process:
        show(f"make {rows:,} transitions")
        lives(process.address, rows)
        show("change feed to bronze")
        taken = [_copied(spark, process.address, directory, rows) for _ in range(rounds + 1)]
    # The first warms up.
    rate = statistics.median(rate for rate, _ in taken[1:])
    return {"bronze": {"rows": taken[-1][1], "transitions_per_s": round(rate)}}


def lives(address: str, transitions: int) -> None:
    """Messages of a topic, each from its beginning to its end."""
    # By whole batches, as its jobs send them.
    rows = -(-transitions // LIFE // BATCH) * BATCH
    with fasti.connect(address) as client:
        client.create_topic("orders")
    run_job("produce_batches", address, topic="orders", rows=rows)
    run_job("consume_batches", address, topic="orders", rows=rows)


def _copied(
    spark: SparkSession, address: str, directory: Path | None, rows: int
) -> tuple[float, int]:
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as root:
        lake = Lake(root)
        pipeline = Workflow(lake, [BRONZE], address)
        seconds = seconds_of(lambda: run(pipeline, spark))
        copied = sum(file.rows for file in lake.bronze.files())
        if copied < rows:
            raise RuntimeError(f"{copied:,} transitions were copied instead of {rows:,}")
    return copied / seconds, copied
