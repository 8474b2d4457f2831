"""Gold `lateness`: how late messages were, per topic and minute, hour and day.

A message counts once, when it is done, in the period in which user code got it for the last time
(`started_at`), with its lateness then: started − max(due, produced). Percentiles are exact, by nearest
rank: p99 is the smallest lateness that at least 99 % of the messages don't exceed. They can't be made
from each other's, so each grain has its own from all of its messages. `early` are messages that user
code got before they were due, at whichever attempt: it must be 0. The topic `*` stands for all topics
together.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fasti.model import MINUTE_US
from fasti.pipeline.gold.periods import PERIOD, each_grain, start_of, within

# No topic can have this name.
ALL = "*"
# In thousandths, so that ranks are compared in whole numbers.
PERCENTILES = {"p50_us": 500, "p95_us": 950, "p99_us": 990, "p999_us": 999}


def lateness(messages: DataFrame, days: Sequence[str] | None = None) -> DataFrame:
    """Silver's messages → topic, grain, start, count, p50_us ... max_us, early."""
    done = within(messages.where("state = 'done'"), "started_at", days)
    # Equal ones of a minute together: far fewer rows are sorted, and nothing is lost.
    values = (
        done.select(
            "topic",
            start_of("started_at", MINUTE_US).alias("start"),
            "lateness_us",
            F.coalesce("early", F.lit(0)).alias("early"),
        )
        .groupBy("topic", "start", "lateness_us")
        .agg(F.count("*").alias("n"), F.sum("early").alias("early"))
    )
    values = values.unionByName(values.withColumn("topic", F.lit(ALL)))
    name = ["topic", *PERIOD]
    period = Window.partitionBy(*name)
    so_far = period.orderBy("lateness_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = (
        each_grain(values)
        .groupBy(*name, "lateness_us")
        .agg(F.sum("n").alias("n"), F.sum("early").alias("early"))
        .withColumn("rank", F.sum("n").over(so_far))
        .withColumn("total", F.sum("n").over(period))
    )
    return ranked.groupBy(*name).agg(
        F.sum("n").alias("count"),
        *(_value_at(share).alias(column) for column, share in PERCENTILES.items()),
        F.max("lateness_us").alias("max_us"),
        F.sum("early").cast("long").alias("early"),
    )


def _value_at(thousandths: int) -> Column:
    reached = F.col("rank") * 1000 >= F.col("total") * thousandths
    return F.min(F.when(reached, F.col("lateness_us")))
