"""Seconds of Spark jobs: warmed up, taken several times, the sides of a ratio turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

Figures = dict[str, Any]
Show = Callable[[str], None]
Job = Callable[[], Any]


def seconds_of(job: Job) -> float:
    """How long it takes, once."""
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def by_turns(jobs: dict[str, Job], rounds: int, warm: int = 1) -> dict[str, float]:
    """The median seconds of each. They take turns, so that a slow minute is everybody's."""
    for _ in range(warm):
        for job in jobs.values():
            job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(seconds_of(job))
    return {name: statistics.median(each) for name, each in taken.items()}


def beside_parquet(rows: int, fasti_s: float, parquet_s: float) -> Figures:
    """Both rates, and the one as a share of the other."""
    return {
        "rows": rows,
        "rows_per_s": round(rows / fasti_s),
        "parquet_rows_per_s": round(rows / parquet_s),
        "of_parquet": round(parquet_s / fasti_s, 3),
    }
