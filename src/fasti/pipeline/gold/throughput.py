"""Gold `throughput`: what came in and went out, per topic and minute, hour and day.

Each count stands in the period in which it happened:

- `messages_in`: messages that came to be, and rows appended to logs. What was staged counts once it is
  published.
- `messages_out`: acks. In a log each group acks for itself.
- `failed`: attempts that came to nothing: nacked, lease expired, rejected, or the last one allowed.
  What was released counts no attempt, so it isn't here.
- `redelivered`: leases beyond a message's first.
- `dead`: rejected, out of attempts, or lapsed.
- `cancelled`: cancelled by a client.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fasti.model import MINUTE_US
from fasti.pipeline.gold.periods import added_up, start_of, within

FAILED = ("nacked", "expired", "rejected", "exhausted")
DEAD = ("rejected", "exhausted", "lapsed")
COUNTS = ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled")


def throughput(
    transitions: DataFrame,
    messages: DataFrame,
    days: Sequence[str] | None = None,
    logs: bool = True,
) -> DataFrame:
    """Bronze and silver → topic, grain, start and a column for each of the counts.

    `logs=False` says that there are no rows of logs, which saves a look at them.
    """
    happened = within(transitions, "at", days).where(F.col("topic").isNotNull())

    def count(*ops: str) -> Column:
        return F.count_if(F.col("op").isin(*ops))

    from_bronze = happened.groupBy("topic", start_of("at", MINUTE_US).alias("start")).agg(
        count("appended").alias("messages_in"),
        count("acked").alias("messages_out"),
        count(*FAILED).alias("failed"),
        count("leased").alias("redelivered"),
        count(*DEAD).alias("dead"),
        count("cancelled").alias("cancelled"),
    )
    minutes = from_bronze.unionByName(_of_messages(messages, days), allowMissingColumns=True)
    if logs:
        groups = _first_of_groups(transitions, days)
        minutes = minutes.unionByName(groups, allowMissingColumns=True)
    counted = added_up(minutes, ["topic"], COUNTS)
    filled = counted.fillna(0, list(COUNTS))
    return filled.where(" or ".join(f"{name} <> 0" for name in COUNTS))


def _of_messages(messages: DataFrame, days: Sequence[str] | None) -> DataFrame:
    """Messages that came to be, and first leases, by the minute.

    All leases, less the first of each message, are redeliveries: no row has to look for others.
    """
    born = F.when(F.col("state") != "staged", F.col("produced_at"))
    one, none = F.lit(1), F.lit(0)
    births_and_leases = F.array(
        F.struct(born.alias("at"), one.alias("messages_in"), none.alias("redelivered")),
        F.struct(
            F.col("first_leased_at").alias("at"),
            none.alias("messages_in"),
            (-one).alias("redelivered"),
        ),
    )
    moments = within(messages.select("topic", F.inline(births_and_leases)), "at", days)
    return moments.groupBy("topic", start_of("at", MINUTE_US).alias("start")).agg(
        F.sum("messages_in").alias("messages_in"), F.sum("redelivered").alias("redelivered")
    )


def _first_of_groups(transitions: DataFrame, days: Sequence[str] | None) -> DataFrame:
    """First leases of rows of logs, which silver doesn't have.

    A row that is leased again on a later day counts as new there.
    """
    leased = within(transitions, "at", days).where("op = 'leased' and offset is not null")
    row = ["shard", "topic", "partition", "id", "group"]
    first = leased.groupBy(*row, F.floor(F.unix_micros("at") / F.lit(86_400_000_000))).agg(
        F.min("at").alias("at")
    )
    return first.groupBy("topic", start_of("at", MINUTE_US).alias("start")).agg(
        (-F.count("*")).alias("redelivered")
    )
