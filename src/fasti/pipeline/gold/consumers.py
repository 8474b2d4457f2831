"""Gold `consumers`: work and errors of each consumer, per topic and minute, hour and day.

An attempt counts in the period in which it ended, a lease in the period in which it was given. `errors`
are attempts that came to nothing: nacked, lease expired, rejected, or the last one allowed; `released`
were given back without one. `busy_us` is the time from when user code got the messages to when they were
finished, added up: it can exceed the period where several are worked on at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fasti.model import MINUTE_US
from fasti.pipeline.gold.periods import added_up, start_of, within
from fasti.pipeline.gold.throughput import FAILED

_ENDS = ("acked", "released", *FAILED)
COUNTS = ("leased", "acked", "nacked", "expired", "rejected", "released", "errors", "busy_us")


def consumers(transitions: DataFrame, days: Sequence[str] | None = None) -> DataFrame:
    """Bronze → topic, consumer, grain, start and a column for each of the counts."""
    ended = within(attempts(transitions, days), "at", days)

    def count(*ops: str) -> Column:
        return F.count_if(F.col("op").isin(*ops))

    busy = F.when(F.unix_micros("started") > 0, F.unix_micros("at") - F.unix_micros("started"))
    minutes = ended.groupBy("topic", "consumer", start_of("at", MINUTE_US).alias("start")).agg(
        count("leased").alias("leased"),
        count("acked").alias("acked"),
        count("nacked").alias("nacked"),
        count("expired").alias("expired"),
        count("rejected", "exhausted").alias("rejected"),
        count("released").alias("released"),
        count(*FAILED).alias("errors"),
        F.coalesce(F.sum(F.greatest(busy, F.lit(0))), F.lit(0)).alias("busy_us"),
    )
    return added_up(minutes, ["topic", "consumer"], COUNTS)


def attempts(transitions: DataFrame, days: Sequence[str] | None = None) -> DataFrame:
    """Leases and their ends, each with the consumer whose lease it is.

    Only a lease's row names the consumer, so it is looked for on the day before too. Where it can't be
    found the name is empty.
    """
    wanted = None if days is None else sorted({*days, *map(day_before, days)})
    rows = within(transitions, "at", wanted).where(F.col("op").isin("leased", *_ENDS))
    message = Window.partitionBy("shard", "topic", "partition", "id", "group")
    so_far = message.orderBy("position", "row").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    holder = F.last("consumer", ignorenulls=True).over(so_far)
    return rows.select(
        "topic", "at", "op", "started", F.coalesce(holder, F.lit("")).alias("consumer")
    )


def day_before(day: str) -> str:
    """The day before, as text."""
    return str(date.fromisoformat(day) - timedelta(days=1))
