"""Gold's tables as figures want them: some periods of them, added up, without Spark.

Everything that is as long as a table stays in Arrow; rows of Python are made of what is shown, so that a
lake with ten thousand topics costs no more than one can wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fasti.model import DAY_US, HOUR_US, MINUTE_US
from fasti.pipeline.lake import Lake

LENGTHS = {"minute": MINUTE_US, "hour": HOUR_US, "day": DAY_US}
# In the place of a topic: all of them together.
ALL = "*"

Row = dict[str, Any]
Series = list[tuple[int, Row]]
"""Periods in order of time: when each began, in microseconds, and its figures."""


def periods(lake: Lake, name: str, grain: str, begin_us: int = 0) -> pa.Table:
    """Rows of one grain from a moment on; `start` in microseconds."""
    table = lake.gold(name)
    if not table.exists():
        return pa.table({})
    since = pa.scalar(begin_us, pa.timestamp("us", tz="UTC"))
    day = since.as_py().date().isoformat()
    files = [file for file in table.files() if str(file.partition.get("day", "9")) >= day]
    if not files:
        return pa.table({})
    rows = ds.dataset([str(table.path / file.path) for file in files], format="parquet").to_table(
        filter=(pc.field("grain") == grain) & (pc.field("start") >= since)
    )
    place = rows.schema.get_field_index("start")
    starts = rows.column("start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return rows.set_column(place, "start", starts)


def added(rows: pa.Table, by: Sequence[str], sums: Sequence[str]) -> list[Row]:
    """The sums of some columns for each value of others."""
    if not rows.num_rows:
        return []
    groups = rows.group_by(list(by)).aggregate([(name, "sum") for name in sums])
    return list(groups.rename_columns([*by, *sums]).to_pylist())


def total(rows: pa.Table, name: str) -> int:
    """The sum of a column; 0 of a table that isn't there."""
    return int(pc.sum(rows.column(name)).as_py() or 0) if rows.num_rows else 0


def of_topics(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows of some topics."""
    if not rows.num_rows:
        return rows
    return rows.filter(pc.is_in(rows.column("topic"), pa.array(names, pa.string())))


def but_all(rows: pa.Table) -> pa.Table:
    """Without those that stand for all topics."""
    return rows.filter(pc.not_equal(rows.column("topic"), ALL)) if rows.num_rows else rows


def last_of_each(rows: pa.Table) -> dict[str, Row]:
    """The last period of each topic."""
    if not rows.num_rows:
        return {}
    rows = rows.sort_by("start")
    codes = rows.column("topic").combine_chunks().dictionary_encode()
    last = np.zeros(len(codes.dictionary), dtype=np.int64)
    # Where a place is written several times, the last one stays.
    last[codes.indices.to_numpy()] = np.arange(rows.num_rows)
    return {row["topic"]: row for row in rows.take(pa.array(last)).to_pylist()}


def filled(rows: dict[int, Row], length_us: int, begin_us: int, end_us: int, empty: Row) -> Series:
    """Every period, also those in which nothing happened."""
    starts = range(begin_us, max(end_us, begin_us) + 1, length_us)
    return [(start, rows.get(start, empty)) for start in starts]
