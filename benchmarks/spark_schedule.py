"""Scheduling a DataFrame, beside a Parquet write of the same rows.

Both read the rows from the same Parquet files. What Fasti has taken is synced to disk and live when
the write returns; Spark doesn't sync what it writes as Parquet.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import fasti
from benchmarks.spark_rows import write_parquet
from benchmarks.spark_timing import beside_parquet, by_turns
from benchmarks.wire import broker

Figures = dict[str, Any]
Show = Callable[[str], None]

PHASES = 4
_AHEAD_US = 3_600_000_000


def measure(
    spark: SparkSession, directory: Path | None, rows: int, rounds: int, show: Show
) -> Figures:
    """Without keys, then with one for each row."""
    found: Figures = {}
    for name, keys in (("schedule", False), ("schedule_with_keys", True)):
        with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as scratch:
            show(f"make {rows:,} rows to schedule{', with keys' if keys else ''}")
            source = Path(scratch) / "source"
            write_parquet(source, rows, time.time_ns() // 1_000 + _AHEAD_US, keys)
            show(f"{name} beside a Parquet write")
            frame = spark.read.parquet(str(source))
            found[name] = _beside_parquet(frame, directory, Path(scratch), rows, rounds)
    return found


def _beside_parquet(
    frame: DataFrame, directory: Path | None, scratch: Path, rows: int, rounds: int
) -> Figures:
    """The first round warms up. Each has a broker of its own, so that disk and memory stay small."""

    def write_files() -> None:
        shutil.rmtree(scratch / "written", ignore_errors=True)
        frame.write.parquet(str(scratch / "written"))

    taken: dict[str, list[float]] = {"fasti": [], "parquet": []}
    for number in range(rounds + 1):
        with broker(directory) as process:
            with fasti.connect(process.address) as client:
                client.create_topic("orders")
                jobs = {"fasti": lambda: schedule(frame, process.address), "parquet": write_files}
                once = by_turns(jobs, rounds=1, warm=0)
                counted = client.messages("orders").count()["scheduled"]
            if counted != rows:
                raise RuntimeError(f"{counted:,} messages were scheduled instead of {rows:,}")
        for name, seconds in once.items():
            taken[name] += [seconds] if number else []
    middle = {name: sorted(each)[len(each) // 2] for name, each in taken.items()}
    return beside_parquet(rows, middle["fasti"], middle["parquet"])


def schedule(frame: DataFrame, address: str) -> None:
    """As a user does it."""
    written = frame.write.format("fasti").option("address", address).option("topic", "orders")
    written.mode("append").save()
