"""`fasti bench spark`: the connector and the pipeline, beside Spark's own Parquet.

One Spark session with two cores in this process; brokers and what fills them in processes of their
own. Every part removes what it wrote before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.limits import machine

Figures = dict[str, Any]
Show = Callable[[str], None]

# Of each part the module `spark_NAME`, with `measure(spark, directory, rows, rounds, show)`, which
# gives its figures by name, and PHASES, how often it shows what it does.
_NAMES = ("reads", "schedule", "bronze", "silver", "following")
PARTS = tuple(name for name in _NAMES if find_spec(f"benchmarks.spark_{name}"))
ROUNDS = 3

# Figure, whether it should be at least or at most, and what.
_ASKED: tuple[tuple[str, str, str, float], ...] = (
    ("messages", "of_parquet", "at least", 0.4),
    ("changes", "of_parquet", "at least", 0.4),
    ("log", "of_parquet", "at least", 0.4),
    ("schedule", "of_parquet", "at least", 0.4),
    ("schedule", "rows_per_s", "at least", 400_000),
    ("bronze", "transitions_per_s", "at least", 500_000),
    ("silver", "times_without_old", "at most", 2.0),
    ("silver_open", "times_without_old", "at most", 2.0),
    ("following", "of_alone", "at least", 0.7),
)


def phases(only: list[str]) -> int:
    """How often `spark` will show what it does: for a bar."""
    return 1 + sum(import_module(f"benchmarks.spark_{name}").PHASES for name in only or PARTS)


def spark(
    only: list[str], directory: Path | None, rows: int, show: Show, rounds: int = ROUNDS
) -> Figures:
    """The named parts, or all. If there is a Spark session already, that one is used and left."""
    from pyspark.sql import SparkSession

    import fasti.spark

    show("start Spark")
    there = SparkSession.getActiveSession()
    session = there or fasti.spark.session("local[2]", "bench", **_CONF)
    figures: Figures = {}
    try:
        if there is None:
            session.sparkContext.setLogLevel("OFF")
        for name in only or PARTS:
            measure = import_module(f"benchmarks.spark_{name}").measure
            figures |= measure(session, directory, rows, rounds, show)
    finally:
        if there is None:
            session.stop()
    return {"machine": machine(), "rounds": rounds, **figures, "targets": judged(figures)}


_CONF = {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}


def judged(figures: Figures) -> Figures:
    """What was asked for, and whether it was met, of what was measured."""
    found: Figures = {}
    for part, figure, bound, asked in _ASKED:
        if part in figures:
            value = figures[part][figure]
            met = value >= asked if bound == "at least" else value <= asked
            verdict = "met" if met else "missed"
            found[f"{part}.{figure}"] = f"{verdict}: {value:,}, asked {bound} {asked:,}"
    return found
