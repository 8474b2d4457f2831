"""Silver: one row per message, its life from the first transition to the last.

Everything here is a *part* of a life: what is known of a message between two places in the feed. One
transition is the smallest part, a whole life the largest; `merged` puts the parts of each message
together, and it doesn't matter which ones were put together before. So new transitions need not be
joined with all messages that are still open: what is new becomes parts of its own, see
`silver_stage`.

A part knows what it can't know: the state before its first transition, and since when; whether a
start, which is judged by the due time of then, is still to be judged. `merged` fills that in.

Pure functions from DataFrames to DataFrames, made of built-in expressions; nothing here knows where
tables lie. Moments are timestamps, lengths of time are whole microseconds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

# What a message is after each op; ops that are not here leave it as it was.
STATE_AFTER = {
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
    # Of a stage's message that nobody published, or whose key was taken then.
    "stage_dropped": "purged",
    "skipped": "purged",
    # Of whatever was still open.
    "topic_deleted": "purged",
}
OPS = [*STATE_AFTER, "updated", "reprioritised", "extended"]
FINAL = ("done", "cancelled", "purged")

_REASONS = {
    "topic_deleted": "topic deleted",
    "stage_dropped": "stage dropped",
    "skipped": "key taken",
}
_STARTED = ("acked", "nacked", "released", "rejected", "exhausted")
_BORN = ("produced", "published")
_FIRST = ("produced", "staged")
_RESETS = ("produced", "published", "replaced", "redriven")
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

# A message's name: its topic, by a number that is never used again, and its id in there.
NAME = ["id", "topic_no"]
# The columns of `messages`, for readers.
COLUMNS = [
    "shard",
    "topic",
    "topic_since",
    "partition",
    "id",
    "key",
    "owner",
    "state",
    "reason",
    "produced_at",
    "due_first",
    "due_last",
    "version",
    "priority",
    "stage",
    *_COUNTS,
    "attempts",
    "consumers",
    "first_leased_at",
    "last_leased_at",
    "started_at",
    "started_due",
    "finished_at",
    "lateness_us",
    "early",
    *_TIMES,
    "seen_from_start",
    "first_position",
    "last_position",
    "last_at",
]
# What parts have besides, for `merged`.
_INNER = ["topic_no", "first_place", "known_at", "state_at", "unjudged", "resets"]
PARTS = [*COLUMNS, *_INNER]


def place_of(position: Column, row: Column) -> Column:
    """The place in the feed as one number that grows."""
    return F.shiftleft(position, 24) + row


def parts_of(transitions: DataFrame) -> DataFrame:
    """Each transition as a part. They have `topic_no` and `topic_since` besides the feed's columns."""
    op = F.col("op")

    def when(ops: tuple[str, ...], value: Column | str) -> Column:
        return F.when(op.isin(*ops), F.col(value) if isinstance(value, str) else value)

    def flag(ops: tuple[str, ...]) -> Column:
        return op.isin(*ops).cast("long")

    state = _mapped(op, STATE_AFTER)
    at = F.col("at")
    # Nobody knows when user code got it: the feed says 0.
    begun = F.when(F.unix_micros("started") > 0, F.col("started"))
    started = when(_STARTED, begun)
    no_time = F.lit(None).cast("timestamp")
    values = {
        "state": state,
        "reason": F.coalesce(_mapped(op, _REASONS), F.col("reason")),
        "produced_at": when(_BORN, "at"),
        "due_first": F.col("due"),
        "due_last": F.col("due"),
        **{name: flag(ops) for name, ops in _COUNTS.items()},
        "attempts": flag(("leased",)) - flag(("released",)),
        "consumers": F.when(F.col("consumer").isNotNull(), F.array("consumer")),
        "first_leased_at": when(("leased",), "at"),
        "last_leased_at": when(("leased",), "at"),
        "started_at": started,
        "started_due": no_time,
        "finished_at": no_time,
        "lateness_us": F.lit(None).cast("long"),
        "early": F.lit(0).cast("long"),
        **{name: F.lit(0).cast("long") for name in _TIMES},
        "seen_from_start": op.isin(*_FIRST),
        "first_position": F.col("position"),
        "last_position": F.col("position"),
        "last_at": at,
        "first_place": place_of(F.col("position"), F.col("row")),
        "known_at": F.when(state.isNotNull(), at),
        "state_at": F.when(state.isNotNull(), at),
        "unjudged": started,
        "resets": op.isin(*_RESETS),
    }
    same: tuple[str, ...] = (
        "shard",
        "topic",
        "topic_since",
        "partition",
        "id",
        "key",
        "owner",
        "version",
    )
    same += ("priority", "stage", "topic_no")
    columns = {**{name: F.col(name) for name in same}, **values}
    yields = (op == "topic_deleted").alias("_yields")
    return transitions.select(*(columns[name].alias(name) for name in PARTS), yields)


def merged(parts: DataFrame) -> DataFrame:
    """The parts of each message as one. They follow each other in the feed, whatever lies between."""
    if "_yields" not in parts.columns:
        parts = parts.withColumn("_yields", F.lit(False))
    order = Window.partitionBy(*NAME).orderBy("first_place")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def latest(column: str) -> Column:
        return F.last(column, ignorenulls=True).over(before)

    rows = parts.select(
        *PARTS,
        "_yields",
        latest("state").alias("_was"),
        latest("state_at").alias("_since"),
        latest("due_last").alias("_due"),
        F.coalesce(F.sum("attempts").over(before), F.lit(0)).alias("_attempts"),
        F.lead("first_place").over(order).isNull().alias("_last"),
    )
    rows = rows.transform(_filled)
    return (
        rows.select("_last", *(_running(name, so_far).alias(name) for name in PARTS))
        .where("_last")
        .transform(_finished)
    )


def _filled(rows: DataFrame) -> DataFrame:
    """What a part couldn't know without those before it."""
    # The end of a topic is nothing to messages that were finished before.
    counts = ~(F.col("_yields") & F.coalesce(F.col("_was").isin(*FINAL), F.lit(False)))
    told = ("state", "reason", "state_at", "known_at", "last_position", "last_at")
    rows = rows.withColumns({name: F.when(counts, F.col(name)) for name in told})
    begin, end = F.unix_micros("_since"), F.unix_micros("known_at")
    # Without a due time it was ready: what has expired was due before.
    due = F.least(F.greatest(F.coalesce(F.unix_micros("_due"), begin), begin), end)
    was = F.col("_was")
    gaps = {
        "scheduled_us": F.when(was == "pending", due - begin),
        "ready_us": F.when(was == "pending", end - due),
        "leased_us": F.when(was == "leased", end - begin),
        "dead_us": F.when(was == "dead", end - begin),
    }
    early = (F.col("unjudged") < F.col("_due")).cast("int")
    return rows.withColumns(
        {
            **{name: F.col(name) + F.coalesce(gap, F.lit(0)) for name, gap in gaps.items()},
            "started_due": F.when(
                F.col("started_at").isNotNull(), F.coalesce("started_due", F.col("_due"))
            ),
            "early": F.col("early") + F.coalesce(early, F.lit(0)),
            "unjudged": F.when(F.col("_due").isNull(), F.col("unjudged")),
            "_attempts": F.when(F.col("resets"), F.col("_attempts")),
        }
    )


_ADDED = {*_COUNTS, *_TIMES, "early"}
_FROM_FIRST = {
    *("shard", "topic", "topic_since", "partition", "id", "topic_no", "key", "owner", "stage"),
    *("produced_at", "due_first", "first_leased_at", "first_position", "first_place"),
    *("known_at", "unjudged", "seen_from_start"),
}


def _running(name: str, so_far: WindowSpec) -> Column:
    """A column of all parts up to this one."""
    if name in NAME:
        return F.col(name)
    if name in _ADDED:
        return F.sum(name).over(so_far).cast("long")
    if name in _FROM_FIRST:
        return F.first(name, ignorenulls=True).over(so_far)
    if name == "attempts":
        # Those since it was last produced anew: all, less those before.
        before = F.last("_attempts", ignorenulls=True).over(so_far)
        return (F.sum(name).over(so_far) - F.coalesce(before, F.lit(0))).cast("long")
    if name == "resets":
        return F.max(name).over(so_far)
    if name == "started_due":
        # Of the last start, also if nobody knows when that was due.
        return F.last(
            F.when(F.col("started_at").isNotNull(), F.struct(name)), ignorenulls=True
        ).over(so_far)[name]
    if name == "consumers":
        return F.array_sort(F.array_distinct(F.flatten(F.collect_list(name).over(so_far))))
    return F.last(name, ignorenulls=True).over(so_far)


def _finished(messages: DataFrame) -> DataFrame:
    """What follows from the rest."""
    final = F.col("state").isin(*FINAL)
    began = F.greatest(F.unix_micros("started_due"), F.unix_micros("produced_at"))
    return messages.withColumns(
        {
            "finished_at": F.when(final, F.col("state_at")),
            "lateness_us": F.unix_micros("started_at") - began,
        }
    ).select(*PARTS)


def _mapped(column: Column, words: dict[str, str]) -> Column:
    pairs = [F.lit(word) for pair in words.items() for word in pair]
    return F.element_at(F.create_map(*pairs), column)
