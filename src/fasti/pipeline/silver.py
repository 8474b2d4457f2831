"""Silver: one row per message, its life from the first transition to the last.

A message is `open` until it is done, cancelled or purged. What is new is folded together with the
rows of open messages only: a row of the last run comes back as a transition `carried`, which brings
what was summed up so far. So the cost grows with what is new and what is open, not with history.

Pure functions from DataFrames to DataFrames, made of built-in expressions; nothing here knows where
tables lie. Moments are timestamps, lengths of time are whole microseconds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

KEY = ["shard", "topic", "partition", "id", "group"]

# What a message is after each op; ops that are not here leave it as it was.
_STATE_AFTER = {
    "produced": "pending",
    "published": "pending",
    "staged": "staged",
    "replaced": "pending",
    "moved": "pending",
    "leased": "leased",
    "resumed": "leased",
    "released": "pending",
    "nacked": "pending",
    "expired": "pending",
    "redriven": "pending",
    "acked": "done",
    "cancelled": "cancelled",
    "rejected": "dead",
    "exhausted": "dead",
    "lapsed": "dead",
    "purged": "purged",
}
FINAL = ("done", "cancelled", "purged")

_STARTED = ("acked", "nacked", "released", "rejected", "exhausted")
_COUNTS = {
    "moves": ("moved",),
    "updates": ("updated", "replaced", "reprioritised"),
    "leases": ("leased",),
    "nacks": ("nacked",),
    "expiries": ("expired",),
    "releases": ("released",),
    "redrives": ("redriven",),
    "completions": ("acked",),
}
_TIMES = ("scheduled_us", "ready_us", "leased_us", "dead_us")


def transitions_of_messages(changes: DataFrame) -> DataFrame:
    """Those rows of the change feed that tell of a message in a timeline or priority topic."""
    ops = [*_STATE_AFTER, "updated", "reprioritised", "extended"]
    return changes.where(F.col("id").isNotNull() & F.col("offset").isNull() & F.col("op").isin(ops))


def with_published(changes: DataFrame, staged: DataFrame) -> DataFrame:
    """A row `published` for each message of a stage that was published, beside the stage's own.

    `staged` are the messages that were staged before, with their stage.
    """
    published = changes.where("op = 'published'").select(
        "shard",
        "stage",
        F.col("position").alias("_position"),
        F.col("at").alias("_at"),
        F.from_json(F.get_json_object("details", "$.skipped"), "array<bigint>").alias("_skipped"),
    )
    columns = [*KEY, "stage"]
    new = changes.where("op = 'staged'").select(*columns, "due")
    waiting = new.unionByName(staged.select(*columns, F.col("due_last").alias("due")))
    landed = (
        waiting.join(F.broadcast(published), ["shard", "stage"])
        .where(~F.coalesce(F.array_contains("_skipped", F.col("id")), F.lit(False)))
        .select(
            *KEY,
            F.lit("published").alias("op"),
            F.col("_position").alias("position"),
            F.lit(0).alias("row"),
            F.col("_at").alias("at"),
            "due",
        )
    )
    return changes.unionByName(landed, allowMissingColumns=True)


def carried(open_messages: DataFrame) -> DataFrame:
    """Rows of the last run as transitions."""
    return open_messages.select(
        *KEY,
        F.lit("carried").alias("op"),
        F.col("last_position").alias("position"),
        F.lit(-1).alias("row"),
        F.col("last_at").alias("at"),
        F.struct("*").alias("_before"),
    )


def fold(changes: DataFrame, open_messages: DataFrame) -> DataFrame:
    """New transitions and open messages → each of those messages as it is now."""
    before = carried(open_messages)
    events = changes.withColumn("_before", F.lit(None).cast(before.schema["_before"].dataType))
    rows = events.unionByName(before, allowMissingColumns=True)
    ordered = Window.partitionBy(*KEY).orderBy("position", "row")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    state = _mapped(F.col("op"), _STATE_AFTER)
    rows = (
        rows.withColumn("_state", F.coalesce(state, F.col("_before.state")))
        .withColumn("_state", F.last("_state", ignorenulls=True).over(so_far))
        .withColumn("_due", F.coalesce("due", F.col("_before.due_last")))
        .withColumn("_due", F.last("_due", ignorenulls=True).over(so_far))
        .withColumn("_then", F.lag("at").over(ordered))
        .withColumn("_was", F.lag("_state").over(ordered))
        .withColumn("_was_due", F.lag("_due").over(ordered))
    )
    return _summed(_timed(rows))


def _mapped(column: Column, words: dict[str, str]) -> Column:
    pairs = [F.lit(word) for pair in words.items() for word in pair]
    return F.element_at(F.create_map(*pairs), column)


def _us(column: Column) -> Column:
    return F.unix_micros(column)


def _timed(rows: DataFrame) -> DataFrame:
    """How long each message was in each state between two of its transitions."""
    begin, end = _us(F.col("_then")), _us(F.col("at"))
    due = F.least(F.greatest(_us(F.col("_was_due")), begin), end)
    was = F.col("_was")
    lengths = {
        "scheduled_us": F.when(was == "pending", due - begin),
        "ready_us": F.when(was == "pending", end - due),
        "leased_us": F.when(was == "leased", end - begin),
        "dead_us": F.when(was == "dead", end - begin),
    }
    for name, length in lengths.items():
        rows = rows.withColumn(f"_{name}", F.coalesce(length, F.lit(0)))
    return rows


def _summed(rows: DataFrame) -> DataFrame:
    place = F.struct("position", "row")

    def last_of(value: Column | str, *ops: str) -> Column:
        value = F.col(value) if isinstance(value, str) else value
        wanted = value if not ops else F.when(F.col("op").isin(*ops), value)
        return F.max_by(wanted, F.when(wanted.isNotNull(), place))

    def first_of(value: Column | str, *ops: str) -> Column:
        value = F.col(value) if isinstance(value, str) else value
        wanted = value if not ops else F.when(F.col("op").isin(*ops), value)
        return F.min_by(wanted, F.when(wanted.isNotNull(), place))

    def kept(name: str, otherwise: Column) -> Column:
        """What was known before, else what is found now."""
        return F.coalesce(F.max(F.col(f"_before.{name}")), otherwise)

    def renewed(name: str, found: Column) -> Column:
        """What is found now, else what was known before."""
        return F.coalesce(found, F.max(F.col(f"_before.{name}")))

    def counted(name: str, ops: tuple[str, ...]) -> Column:
        new = F.count_if(F.col("op").isin(*ops))
        return (F.coalesce(F.max(F.col(f"_before.{name}")), F.lit(0)) + new).alias(name)

    born = ("produced", "published", "staged")
    return (
        rows.groupBy(*KEY)
        .agg(
            kept("key", first_of("key")).alias("key"),
            kept("owner", first_of("owner")).alias("owner"),
            renewed("stage", last_of("stage")).alias("stage"),
            renewed("priority", last_of("priority")).alias("priority"),
            kept("produced_at", first_of("at", *born)).alias("produced_at"),
            kept("due_first", first_of("due")).alias("due_first"),
            renewed("due_last", last_of("due")).alias("due_last"),
            renewed("version", last_of("version")).alias("version"),
            *(counted(name, ops) for name, ops in _COUNTS.items()),
            kept("first_leased_at", first_of("at", "leased")).alias("first_leased_at"),
            renewed("last_leased_at", last_of("at", "leased")).alias("last_leased_at"),
            renewed("started_at", last_of("started", *_STARTED)).alias("started_at"),
            # Lateness is judged by the due time that counted when it was started.
            renewed("started_due", last_of(F.col("_was_due"), *_STARTED)).alias("started_due"),
            F.array_distinct(
                F.concat(
                    F.coalesce(F.max(F.col("_before.consumers")), F.array().cast("array<string>")),
                    F.collect_set("consumer"),
                )
            ).alias("consumers"),
            renewed("reason", last_of("reason")).alias("reason"),
            last_of("_state").alias("state"),
            *(
                (F.coalesce(F.max(F.col(f"_before.{name}")), F.lit(0)) + F.sum(f"_{name}")).alias(
                    name
                )
                for name in _TIMES
            ),
            kept("early", F.lit(None).cast("int")).alias("_early_before"),
            F.max("position").alias("last_position"),
            F.max("at").alias("last_at"),
        )
        .transform(_finished)
    )


def _finished(messages: DataFrame) -> DataFrame:
    final = F.col("state").isin(*FINAL)
    began = F.greatest(_us(F.col("started_due")), _us(F.col("produced_at")))
    early = (F.col("started_at") < F.col("started_due")).cast("int")
    return (
        messages.withColumn("finished_at", F.when(final, F.col("last_at")))
        .withColumn("lateness_us", _us(F.col("started_at")) - began)
        .withColumn("early", F.greatest(F.coalesce(early, F.lit(0)), F.col("_early_before")))
        .drop("_early_before")
    )
