"""Gold as tables: days that something new happened on are computed anew, all others stay.

Where gold is, is kept beside the tables, in `gold/state.json`, and written when all of them are. A run
that is killed before that computes the same days again, and each table changes days in one commit: what
is done twice counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fasti.pipeline import gold
from fasti.pipeline.bronze import shards
from fasti.pipeline.gold.periods import day_of
from fasti.pipeline.state import State
from fasti.pipeline.tables import Table

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import Run

DAILY = ("lateness", "throughput", "consumers", "retries", "attempts")


def silver_position(lake: Lake) -> dict[str, int]:
    """How far silver is in each shard's feed."""
    found = {shard: lake.messages.position(f"bronze:{shard}") for shard in shards(lake)}
    return {shard: position for shard, position in found.items() if position is not None}


def update(run: Run) -> int:
    """Brings gold up to silver. Returns how many rows were written."""
    lake, state = run.lake, State.of(run.lake)
    through = silver_position(lake)
    if through == state.gold and all(lake.gold(name).exists() for name in (*DAILY, "backlog")):
        return 0
    days, last_us = _touched(run, state.gold, through)
    state.as_of_us = max(state.as_of_us, last_us, run.option("as_of_us", lambda: 0)())
    written = 0
    tables = {name: _computed(run, name, days) for name in DAILY}
    for number, (name, rows) in enumerate(tables.items()):
        written += replace_days(lake.gold(name), rows, days)
        run.progress(number + 1, len(DAILY) + 1)
    as_of = F.timestamp_micros(F.lit(state.as_of_us))
    throughput = lake.gold("throughput").read(run.spark)
    backlog = gold.backlog(lake.silver(run.spark), throughput, as_of).coalesce(1)
    lake.gold("backlog").overwrite(backlog)
    state.gold = through
    state.save(lake)
    return written + lake.gold("backlog").rows()


update.__name__ = "gold"


def _touched(run: Run, since: dict[str, int], through: dict[str, int]) -> tuple[list[str], int]:
    """The days that new transitions bear upon, and the moment of the last one."""
    files = [
        each
        for each in run.lake.bronze.files()
        if each.may_have("position", above=min((since.get(s, -1) for s in through), default=-1))
    ]
    days = {str(each.partition["day"]) for each in files}
    if not files:
        return [], 0
    rows = run.lake.bronze.read(run.spark, files).where(between(since, through))
    # What was done today may have been started yesterday, and counts there.
    began = F.when((F.col("op") == "acked") & (F.unix_micros("started") > 0), day_of("started"))
    found = rows.agg(F.collect_set(began).alias("days"), F.max(F.unix_micros("at"))).collect()[0]
    return sorted(days | set(found["days"])), int(found[1] or 0)


def between(since: dict[str, int], through: dict[str, int]) -> Column:
    """Rows of the feed behind one place of each shard, up to another."""
    place = F.lit(False)
    for shard, end in through.items():
        new = (F.col("position") > since.get(shard, -1)) & (F.col("position") <= end)
        place = place | ((F.col("shard") == shard) & new)
    return place


def _computed(run: Run, name: str, days: Sequence[str]) -> DataFrame:
    lake, spark = run.lake, run.spark
    compute = getattr(gold, name)
    if name in ("lateness", "attempts"):
        return compute(_messages(run, days), days=days)
    wanted = set(days)
    if name == "consumers":
        wanted |= {gold.day_before(day) for day in days}
    files = [each for each in lake.bronze.files() if str(each.partition["day"]) in wanted]
    transitions = lake.bronze.read(spark, files)
    if name == "throughput":
        return compute(transitions, _messages(run, days), days=days)
    return compute(transitions, days=days)


def _messages(run: Run, days: Sequence[str]) -> DataFrame:
    """Messages that may have to do with these days: not those that ended before."""
    if not days:
        return run.lake.silver(run.spark)
    begin = datetime.fromisoformat(days[0]).replace(tzinfo=UTC)
    ended = F.col("finished_at")
    return run.lake.silver(run.spark).where(ended.isNull() | (ended >= F.lit(begin)))


def replace_days(table: Table, rows: DataFrame, days: Sequence[str]) -> int:
    """The rows of some days instead of those that were there, in one moment. Returns how many."""
    rows = rows.withColumn("day", day_of("start").cast("date"))
    with table.staging() as staged:
        schema = table.write_staged(rows.coalesce(1), staged)
        files = table.adopt(staged)
        old = [each for each in table.files() if str(each.partition["day"]) in days]
        table.replace(files, old, schema=schema)
    return sum(each.rows for each in files)
