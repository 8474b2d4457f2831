"""Reading topics as DataFrames, beside Parquet files of the same rows and columns.

Both go into Spark's `noop` sink, which takes every column of every row and keeps nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

import fasti
from benchmarks.spark_timing import beside_parquet, by_turns
from benchmarks.wire import broker, run_job
from fasti.client.arguments import Kind

Figures = dict[str, Any]
Show = Callable[[str], None]

PHASES = 6
# The feed's rows must not go while they are read.
_KEPT = {"feed_size": "64GiB"}


def measure(
    spark: SparkSession, directory: Path | None, rows: int, rounds: int, show: Show
) -> Figures:
    """Messages of a timeline, its transitions, and a log, one broker after another."""
    found: Figures = {}
    with broker(directory, **_KEPT) as process:
        _fill(process.address, "stock", "timeline", rows, show)
        sides = {
            "messages": {"view": "messages"},
            "changes": {"view": "changes", "payload": "true"},
            "changes_without_payload": {"view": "changes"},
        }
        for name, options in sides.items():
            show(f"read {name} beside Parquet")
            # The topic's creation is a transition too.
            there = rows + (options["view"] == "changes")
            frame = _reading(spark, process.address, topic="stock", **options)
            found[name] = _beside_parquet(spark, frame, directory, there, rounds)
    with broker(directory, **_KEPT) as process:
        _fill(process.address, "events", "log", rows, show)
        show("read log beside Parquet")
        frame = _reading(spark, process.address, topic="events", view="log")
        found["log"] = _beside_parquet(spark, frame, directory, rows, rounds)
    return found


def _fill(address: str, topic: str, kind: Kind, rows: int, show: Show) -> None:
    show(f"fill a {kind} with {rows:,} messages")
    with fasti.connect(address) as client:
        client.create_topic(topic, kind=kind)
    run_job("spark_rows:fill", address, topic=topic, rows=rows, timed=kind == "timeline")


def _reading(spark: SparkSession, address: str, **options: str) -> Callable[[], DataFrame]:
    """A DataFrame of the topic as it is when this is called."""
    return lambda: spark.read.format("fasti").options(address=address, **options).load()


def _beside_parquet(
    spark: SparkSession,
    frame: Callable[[], DataFrame],
    directory: Path | None,
    rows: int,
    rounds: int,
) -> Figures:
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as scratch:
        path = f"{scratch}/rows"
        frame().write.parquet(path)
        written = ds.dataset(path).count_rows()
        if written != rows:
            raise RuntimeError(f"{written:,} rows were read instead of {rows:,}")
        jobs = {
            "fasti": lambda: drained(frame()),
            "parquet": lambda: drained(spark.read.parquet(path)),
        }
        taken = by_turns(jobs, rounds)
        shutil.rmtree(path)
    return beside_parquet(rows, taken["fasti"], taken["parquet"])


def drained(frame: DataFrame) -> None:
    """All rows, with all columns, to nowhere."""
    frame.write.format("noop").mode("overwrite").save()
