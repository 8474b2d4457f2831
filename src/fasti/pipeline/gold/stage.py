"""Gold as tables: days that something new happened on are computed anew, all others stay.

How far gold is stands beside the tables, in `gold/state.json`, written when all of them are. A run
that is killed before that computes the same days again, and each table changes days in one commit: what
is done twice counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fasti.model import DAY_US, MINUTE_US
from fasti.pipeline import gold
from fasti.pipeline.bronze import shards
from fasti.pipeline.gold.periods import day_of
from fasti.pipeline.state import LakeState
from fasti.pipeline.tables import Table

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import StageRun

# A topic has at most about fifteen hundred rows a day in a table.
_FEW_DAYS_OF_TOPICS = 500
_TIDY_EVERY = 50
_AT_ONCE = 3
DAILY = ("lateness", "throughput", "consumers", "retries", "attempts")


def silver_position(lake: Lake) -> dict[str, int]:
    """How far silver is in each shard's feed."""
    positions = {shard: lake.messages.position(f"bronze:{shard}") for shard in shards(lake)}
    return {shard: position for shard, position in positions.items() if position is not None}


def update(run: StageRun) -> int:
    """Brings gold up to silver. Returns how many rows were written."""
    lake, state = run.lake, LakeState.of(run.lake)
    through = silver_position(lake)
    broker_us = run.option("as_of_us", lambda: 0)()
    written = 0
    if through != state.gold or not all(lake.gold(name).exists() for name in DAILY):
        days, last_us = _touched(run, state.gold, through)
        written = _write_days(run, days)
        state.as_of_us = max(state.as_of_us, last_us, broker_us)
    elif broker_us < state.as_of_us + MINUTE_US:
        return 0
    # Where nothing happens, messages still become overdue.
    state.as_of_us = max(state.as_of_us, broker_us)
    written += _write_backlog(run, state.as_of_us)
    state.gold = through
    state.save(lake)
    for name in (*DAILY, "backlog"):
        # Every run leaves files behind that count no longer.
        if (lake.gold(name).version() or 0) % _TIDY_EVERY == 0:
            lake.gold(name).vacuum(24)
    return written


def _write_days(run: StageRun, days: Sequence[str]) -> int:
    """Computes these days of all tables, several at a time: planning one takes longer than its rows."""
    small = run.lake.topics.rows() * len(days) <= _FEW_DAYS_OF_TOPICS
    rows = {name: _computed(run, name, days) for name in DAILY}
    rows = {
        name: frame.withColumn("day", day_of("start").cast("date")) for name, frame in rows.items()
    }
    if not small:
        return sum(replace_days(run.lake.gold(name), rows[name], days) for name in DAILY)
    written = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tables = pool.map(lambda name: rows[name].toArrow(), DAILY)
        for number, (name, table) in enumerate(zip(DAILY, tables, strict=True), 1):
            written += replace_days(run.lake.gold(name), table, days)
            run.progress(number, len(DAILY) + 1)
    return written


def _write_backlog(run: StageRun, as_of_us: int) -> int:
    """The forecast, whole."""
    as_of = F.timestamp_micros(F.lit(as_of_us))
    throughput = run.lake.gold("throughput").read(run.spark)
    rows = gold.backlog(run.messages(), throughput, as_of)
    small = run.lake.topics.rows() <= _FEW_DAYS_OF_TOPICS
    table = run.lake.gold("backlog")
    table.overwrite(rows.toArrow() if small else rows.repartition(1))
    return table.rows()


def _touched(
    run: StageRun, since: dict[str, int], through: dict[str, int]
) -> tuple[list[str], int]:
    """The days that new transitions bear upon, and the moment of the last one. Without Spark."""
    lowest = min((since.get(shard, -1) for shard in through), default=-1)
    table = run.lake.bronze
    files = [file for file in table.files() if file.may_have("position", above=lowest)]
    days = {str(file.partition["day"]) for file in files}
    if not files:
        return [], 0
    new = ds.dataset([str(table.path / file.path) for file in files], format="parquet")
    last_us = 0
    for batch in new.to_batches(columns=["at", "op", "started"]):
        last = pc.max(batch.column("at").cast(pa.int64())).as_py()
        last_us = max(last_us, last or 0)
        # What was done today may have been started yesterday, and counts there.
        done = pc.filter(batch.column("started"), pc.equal(batch.column("op"), "acked"))
        days |= _days_of(done.cast(pa.int64()).drop_null())
    return sorted(days), last_us


def _days_of(micros: pa.Array) -> set[str]:
    known = micros.to_numpy()
    numbers = np.unique(known[known > 0] // DAY_US)
    return {str(np.datetime64(int(number), "D")) for number in numbers}


def between(since: dict[str, int], through: dict[str, int]) -> Column:
    """Rows of the feed behind one place of each shard, up to another."""
    place = F.lit(False)
    for shard, end in through.items():
        new = (F.col("position") > since.get(shard, -1)) & (F.col("position") <= end)
        place = place | ((F.col("shard") == shard) & new)
    return place


def _computed(run: StageRun, name: str, days: Sequence[str]) -> DataFrame:
    lake, spark = run.lake, run.spark
    compute = getattr(gold, name)
    if name in ("lateness", "attempts"):
        return compute(_messages(run, days), days=days)
    wanted = set(days)
    if name == "consumers":
        wanted |= {gold.day_before(day) for day in days}
    files = [file for file in lake.bronze.files() if str(file.partition["day"]) in wanted]
    transitions = lake.bronze.read(spark, files)
    if name == "throughput":
        logs = any("offset" in file.low for file in files)
        return compute(transitions, _messages(run, days), days=days, logs=logs)
    return compute(transitions, days=days)


def _messages(run: StageRun, days: Sequence[str]) -> DataFrame:
    """Messages that may have to do with these days: not those that ended before."""
    if not days:
        return run.messages()
    begin = datetime.fromisoformat(days[0]).replace(tzinfo=UTC)
    ended = F.col("finished_at")
    return run.messages().where(ended.isNull() | (ended >= F.lit(begin)))


def replace_days(table: Table, rows: DataFrame | pa.Table, days: Sequence[str]) -> int:
    """The rows of some days instead of those that were there, in one moment. Returns how many."""
    with table.staging() as staged:
        whole = rows if isinstance(rows, pa.Table) else rows.repartition("day")
        schema = table.write_staged(whole, staged)
        files = table.adopt(staged)
        old = [file for file in table.files() if str(file.partition["day"]) in days]
        table.replace(files, old, schema=schema)
    return sum(file.rows for file in files)
