"""Gold `backlog`: what is pending, by when it falls due: the forecast.

Each row is a period that has pending messages, per topic: by the hour and the day for all of them, by the
minute for the next day. `as_of` is the moment of the last transition that silver knows; what was due
by then is `overdue`. `leased` messages are worked on and not pending.

The forecast is held against what the consumers of the topic have shown they can do: `capacity` is what
they acknowledged in their best minute of the last 7 days, for as long as the period is. It is a lower
bound, for consumers can't show more than there is to do; null where nothing was acknowledged yet. `over` says that
more falls due than that, and `queued` how much would be left over at the end of the period, with what the
periods before it left: the queue that is coming.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fasti.model import DAY_US, MINUTE_US
from fasti.pipeline.gold.periods import GRAINS, PERIOD, each_grain, start_of

_SHOWN_US = 7 * DAY_US


def backlog(messages: DataFrame, throughput: DataFrame, as_of: Column) -> DataFrame:
    """Silver's messages and gold's throughput → topic, grain, start, pending, overdue, capacity ...

    `as_of` is a moment as a column, the same in all rows: `F.lit(datetime)` or
    `F.timestamp_micros(F.lit(n))`.
    """
    now_us = F.unix_micros(as_of)
    due_us = F.unix_micros("due_last")
    minutes = (
        messages.where("state = 'pending'")
        .groupBy("topic", start_of("due_last", MINUTE_US).alias("start"))
        .agg(F.count("*").alias("pending"), F.count_if(due_us <= now_us).alias("overdue"))
    )
    near = (F.col("grain") != "minute") | (F.unix_micros("start") < now_us + DAY_US)
    periods = (
        each_grain(minutes)
        .where(near)
        .groupBy("topic", *PERIOD)
        .agg(F.sum("pending").alias("pending"), F.sum("overdue").alias("overdue"))
        .withColumn("as_of", as_of)
    )
    per_minute = (
        throughput.where("grain = 'minute'")
        .where(F.unix_micros("start") >= now_us - _SHOWN_US)
        .groupBy("topic")
        .agg(F.max("messages_out").alias("per_minute"))
        .where("per_minute > 0")
    )
    return _queued(periods.join(F.broadcast(per_minute), "topic", "left"))


def _queued(periods: DataFrame) -> DataFrame:
    """How much is left over at the end of each period, if no more than `capacity` goes out in one.

    A queue that takes `a` in and `c` out, w = max(0, w + a − c), is its balance less the lowest balance
    so far; in periods that aren't here nothing falls due, and the balance only sinks.
    """
    length = F.lit(GRAINS["day"])
    for grain, length_us in GRAINS.items():
        length = F.when(F.col("grain") == grain, F.lit(length_us)).otherwise(length)
    order = Window.partitionBy("topic", "grain").orderBy("start")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # What is overdue has to be done now: time that has passed does nothing for it.
    begin = F.greatest(
        F.unix_micros("start"), F.unix_micros("as_of") - F.unix_micros("as_of") % length
    )
    first = F.min(begin).over(
        order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )
    passed = (begin - first) / length + 1
    capacity = (F.col("per_minute") * length / MINUTE_US).cast("long")
    balance = F.sum("pending").over(so_far) - capacity * passed
    before = balance - F.col("pending") + capacity
    lowest = F.least(F.lit(0.0), balance, F.min(before).over(so_far))
    return periods.select(
        "topic",
        *PERIOD,
        "as_of",
        "pending",
        "overdue",
        capacity.alias("capacity"),
        F.coalesce(F.col("pending") > capacity, F.lit(False)).alias("over"),
        (balance - lowest).cast("long").alias("queued"),
    )
