"""Gold `retries` and `attempts`: what failed and why, and how many attempts it took.

`retries` counts transitions per topic, minute, hour and day, by what happened and the reason that was
given: nacked, expired and released came back; rejected, exhausted and lapsed are dead; redriven were
dead and live again; purged were removed. Reasons are people's texts: the first 200 letters count.

`attempts` counts messages that are done, in the period in which they were, by how many attempts it took.
What was released counts no attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fasti.model import MINUTE_US
from fasti.pipeline.gold.periods import added_up, start_of, within

OPS = (
    "nacked",
    "expired",
    "released",
    "rejected",
    "exhausted",
    "lapsed",
    "redriven",
    "purged",
)
_REASON_LETTERS_MAX = 200


def retries(transitions: DataFrame, days: Sequence[str] | None = None) -> DataFrame:
    """Bronze → topic, op, reason, grain, start, count."""
    rows = within(transitions, "at", days).where(F.col("op").isin(*OPS))
    reason = F.substring(F.coalesce("reason", F.lit("")), 1, _REASON_LETTERS_MAX)
    minutes = rows.groupBy(
        "topic", "op", reason.alias("reason"), start_of("at", MINUTE_US).alias("start")
    ).agg(F.count("*").alias("count"))
    return added_up(minutes, ["topic", "op", "reason"], ["count"])


def attempts(messages: DataFrame, days: Sequence[str] | None = None) -> DataFrame:
    """Silver → topic, attempts, grain, start, count."""
    done = within(messages.where("state = 'done'"), "finished_at", days)
    taken = (F.col("leases") - F.col("releases")).cast("int")
    minutes = done.groupBy(
        "topic", taken.alias("attempts"), start_of("finished_at", MINUTE_US).alias("start")
    ).agg(F.count("*").alias("count"))
    return added_up(minutes, ["topic", "attempts"], ["count"])
