"""The audit: what was promised, held against every transition. Every finding is a row.

The change feed (bronze) is followed message by message through the lifecycle that the broker itself
goes by, independently of what silver made of it; then silver and the broker's own counts must agree
with it. A healthy broker has no findings, however busy it is.

| kind | what is wrong |
| --- | --- |
| `gap` | rows of the feed that aren't there: in a frame, or messages whose ids were left out |
| `duplicate` | a row of the feed that is there twice |
| `early` | user code got a message before it was due |
| `double_completion` | a message that was done was acknowledged again |
| `without_lease` | acknowledged, failed or given back without a lease |
| `after_the_end` | delivered after it was done, cancelled or dead |
| `never_produced` | something happened to a message that never came to be |
| `illegal` | any other transition that the lifecycle doesn't have |
| `unaccounted` | a message that silver doesn't have, or has in another state than its transitions say |
| `count` | the broker counts another number of messages in a state than its feed adds up to |

Pure functions from DataFrames to DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fasti.core.lifecycle import TRANSITIONS, Verb
from fasti.model import SEQUENCE_BITS, State

FINDING = (
    "topic string, partition int, id long, kind string, what string, position long, shard string"
)
KINDS = (
    "gap",
    "duplicate",
    "early",
    "double_completion",
    "without_lease",
    "after_the_end",
    "never_produced",
    "illegal",
    "unaccounted",
    "count",
)
# Those that say how things are now; the others stay true for ever.
PASSING = ("unaccounted", "count")
MESSAGE = ["shard", "topic", "partition", "id"]

_VERBS = {
    "produced": Verb.PRODUCE,
    "staged": Verb.STAGE,
    "published": Verb.PUBLISH,
    "stage_dropped": Verb.DROP,
    "replaced": Verb.REPLACE,
    "updated": Verb.UPDATE,
    "reprioritised": Verb.UPDATE,
    "moved": Verb.MOVE,
    "cancelled": Verb.CANCEL,
    "leased": Verb.LEASE,
    "resumed": Verb.RESUME,
    "extended": Verb.EXTEND,
    "released": Verb.RELEASE,
    "nacked": Verb.NACK,
    "expired": Verb.EXPIRE,
    "acked": Verb.ACK,
    "exhausted": Verb.EXHAUST,
    "rejected": Verb.REJECT,
    "redriven": Verb.REDRIVE,
    "purged": Verb.PURGE,
    "lapsed": Verb.LAPSE,
}
_WORDS = {
    State.NONE: "none",
    State.SCHEDULED: "pending",
    State.LEASED: "leased",
    State.DONE: "done",
    State.CANCELLED: "cancelled",
    State.DEAD: "dead",
    State.STAGED: "staged",
}
BORN = ("produced", "staged")
_OF_A_LEASE = ("acked", "nacked", "released", "rejected", "exhausted", "expired", "extended")
_ENDS = ("done", "cancelled", "dead", "purged")


def _state_after() -> dict[str, str]:
    """Each op leads to one state, whatever was before."""
    after = {}
    for op, verb in _VERBS.items():
        (state,) = {target for (_, known), target in TRANSITIONS.items() if known is verb}
        after[op] = _WORDS[state]
    return after | {"purged": "purged", "stage_dropped": "purged"}


STATE_AFTER = _state_after()
LEGAL = sorted(
    f"{_WORDS[state]} {op}"
    for op, verb in _VERBS.items()
    for state, known in TRANSITIONS
    if known is verb
)


def _sequence() -> Column:
    return F.col("id").bitwiseAND(F.lit((1 << SEQUENCE_BITS) - 1))


# Following messages


@dataclass(frozen=True, slots=True)
class FeedTopics:
    """What the feed tells of topics: few rows, read once."""

    # Those whose rows are not messages, as `shard topic`.
    others: frozenset[str]
    # Where each topic was made and deleted, by `shard topic`.
    made: dict[str, list[int]]
    deleted: dict[str, list[int]]
    # Whether there are sinks: what they keep for themselves has places in frames that are not shown.
    sinks: bool = False

    @classmethod
    def of(cls, transitions: DataFrame) -> FeedTopics:
        """Runs a job over the rows that tell of topics."""
        kind = F.get_json_object("details", "$.settings.kind")
        of_topic = F.col("op").isin("topic_created", "topic_deleted")
        rows = (
            transitions.where(of_topic | F.col("op").isin("put", "sink_published"))
            .groupBy(_topic().alias("topic"), "op", F.when(of_topic, kind).alias("kind"))
            .agg(F.collect_set(F.when(of_topic, F.col("position"))).alias("positions"))
            .collect()
        )
        messages = ("timeline", "priority")
        made: dict[str, list[int]] = {}
        deleted: dict[str, list[int]] = {}
        others = set()
        for row in rows:
            if row["op"] == "topic_created":
                made.setdefault(row["topic"], []).extend(row["positions"])
            if row["op"] == "topic_deleted":
                deleted.setdefault(row["topic"], []).extend(row["positions"])
            if row["op"] == "put" or (row["kind"] and row["kind"] not in messages):
                others.add(row["topic"])
        sinks = any(row["op"] == "sink_published" for row in rows)
        return cls(frozenset(others), made, deleted, sinks)

    def generation(self) -> Column:
        """How often the row's topic had been deleted before."""
        if not self.deleted:
            return F.lit(0)
        ends = F.element_at(_map_of(self.deleted), _topic())
        return F.coalesce(F.size(F.filter(ends, lambda at: at < F.col("position"))), F.lit(0))

    def ended(self) -> Column:
        """Whether the row's topic was deleted after it."""
        if not self.deleted:
            return F.lit(False)
        ends = F.element_at(_map_of(self.deleted), _topic())
        return F.coalesce(F.array_max(ends) > F.col("position"), F.lit(False))

    def whole(self) -> Column:
        """Whether the lake saw the row's topic of that `generation` come to be."""
        whole = [
            f"{topic} {sum(at < begun for at in self.deleted.get(topic, []))}"
            for topic, begins in self.made.items()
            for begun in begins
        ]
        return F.concat_ws(" ", _topic(), F.col("generation")).isin(whole)


def _topic() -> Column:
    return F.concat_ws(" ", "shard", "topic")


def _map_of(positions: dict[str, list[int]]) -> Column:
    pairs = [
        part
        for topic, ends in positions.items()
        for part in (F.lit(topic), F.array(*map(F.lit, ends)))
    ]
    return F.create_map(*pairs)


def relevant(transitions: DataFrame, topics: FeedTopics) -> DataFrame:
    """Rows of messages in timeline and priority topics, each with its topic's `generation`.

    Entries of key-value topics have transitions of their own, and rows of logs are not messages. A
    topic that is deleted and made again under its name begins a new generation.
    """
    rows = transitions.where(
        F.col("id").isNotNull() & F.col("offset").isNull() & F.col("op").isin(*_VERBS)
    )
    if topics.others:
        rows = rows.where(~_topic().isin(*topics.others))
    return rows.withColumn("generation", topics.generation()).withColumn("ended", topics.ended())


def lives(transitions: DataFrame, topics: FeedTopics) -> DataFrame:
    """Each transition of a message with the state and the due time that the message had before it."""
    columns = [*MESSAGE, "position", "row", "at", "op", "due", "started"]
    rows = relevant(transitions, topics).select(*columns, "generation", "ended")
    message = Window.partitionBy(*MESSAGE, "generation")
    order = message.orderBy("position", "row")
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    pairs = [F.lit(word) for pair in STATE_AFTER.items() for word in pair]
    return (
        rows.withColumn("state", F.element_at(F.create_map(*pairs), F.col("op")))
        .withColumn("was", F.coalesce(F.lag("state").over(order), F.lit("none")))
        .withColumn("was_due", F.last("due", ignorenulls=True).over(earlier))
    )


# Findings


def broken(followed: DataFrame, beginnings: DataFrame) -> DataFrame:
    """Transitions that the lifecycle doesn't have, and deliveries before due; in one pass.

    Of messages that are older than the lake (see `beginnings`) the first state isn't known.
    """
    op, was = F.col("op"), F.col("was")
    illegal = ~F.concat(was, F.lit(" "), op).isin(*LEGAL)
    # Where it is not known when it began, that is 0.
    early = (F.unix_micros("started") > 0) & (F.col("started") < F.col("was_due"))
    rows = followed.where(illegal | early).join(
        F.broadcast(beginnings), ["shard", "topic", "generation", "partition"], "left"
    )
    known = (was != "none") | F.coalesce(_sequence() >= F.col("first"), F.lit(False))
    findings = F.array_compact(
        F.array(
            F.when(illegal & known, F.struct(_illegal_kind(), _illegal_what())),
            F.when(early, F.struct(F.lit("early").alias("kind"), _early_what())),
        )
    )
    return rows.select("topic", "partition", "id", F.inline(findings), "position", "shard")


def _illegal_kind() -> Column:
    op, was = F.col("op"), F.col("was")
    return (
        F.when((op == "acked") & (was == "done"), "double_completion")
        .when((op == "leased") & was.isin(*_ENDS), "after_the_end")
        .when(was == "none", "never_produced")
        .when(op.isin(*_OF_A_LEASE), "without_lease")
        .otherwise("illegal")
        .alias("kind")
    )


def _illegal_what() -> Column:
    before = F.when(F.col("was") == "none", "not there").otherwise(F.col("was"))
    return F.concat(F.col("op"), F.lit(" when it was "), before).alias("what")


def _early_what() -> Column:
    before = F.unix_micros("was_due") - F.unix_micros("started")
    words = (F.lit("started "), before.cast("string"), F.lit(" µs before it was due"))
    return F.concat(*words).alias("what")


def beginnings(transitions: DataFrame, topics: FeedTopics) -> DataFrame:
    """What each partition of a topic was given: the first sequence that must be there, the last, how many.

    The first is 1 where the lake saw the topic come to be. Otherwise the lake began later, and what
    was produced before it isn't known; nothing is said of partitions where nothing was produced.
    """
    born = F.col("op").isin(*BORN)
    counts = (
        relevant(transitions, topics)
        .groupBy("shard", "topic", "generation", "partition")
        .agg(
            F.min(F.when(born, _sequence())).alias("lowest"),
            F.max(F.when(born, _sequence())).alias("last"),
            F.count_if(born).alias("count"),
        )
    )
    first = F.when(topics.whole(), F.lit(1)).otherwise(F.col("lowest")).cast("long")
    return counts.withColumn("first", first).drop("lowest")


def gaps(
    transitions: DataFrame,
    topics: FeedTopics,
    beginnings: DataFrame,
    everything: DataFrame | None = None,
) -> DataFrame:
    """Rows that are missing in their frame or there twice, and ids that no message was given.

    Where `transitions` are only those that are new, `everything` is what `beginnings` are of: which
    ids were given before is known only there. Partitions without holes are not looked at.
    """
    frames = _odd_frames(transitions)
    place = [F.lit(None).cast("int").alias("partition"), F.lit(None).cast("long").alias("id")]
    frames = frames.select("*", *place)
    missing = F.concat(
        (F.col("last") + 1 - F.col("rows")).cast("string"), F.lit(" rows of this frame are missing")
    )
    twice = F.concat(
        (F.col("n") - F.col("rows")).cast("string"), F.lit(" rows of this frame are there twice")
    )
    incomplete = frames.where("rows <> last + 1" if not topics.sinks else "false")
    holed = _findings(incomplete, F.lit("gap"), missing)
    doubled = _findings(frames.where("n <> rows"), F.lit("duplicate"), twice)
    return holed.unionByName(doubled).unionByName(
        _holes(transitions if everything is None else everything, topics, beginnings)
    )


def _odd_frames(transitions: DataFrame) -> DataFrame:
    """Frames whose rows are not 0, 1, 2, ...: how many there are, how many different ones, the last."""
    row = F.col("row").cast("long")
    # By sums, which need no sorting; only frames where they are wrong are looked at closely.
    sums = transitions.groupBy("shard", "position").agg(
        F.count("*").alias("n"),
        F.max(row).alias("last"),
        F.sum(row).alias("sum"),
        F.sum(row * row).alias("squares"),
    )
    wrong = sums.where(
        "n <> last + 1 or sum * 2 <> last * n or squares * 6 <> last * n * (2 * last + 1)"
    )
    odd = transitions.join(F.broadcast(wrong.select("shard", "position")), ["shard", "position"])
    return odd.groupBy("shard", "position").agg(
        F.count("*").alias("n"),
        F.countDistinct("row").alias("rows"),
        F.max("row").alias("last"),
        F.min("topic").alias("topic"),
    )


def _holes(transitions: DataFrame, topics: FeedTopics, beginnings: DataFrame) -> DataFrame:
    """Ids grow by one: what lies between two that were given must have been given too."""
    partition = ["shard", "topic", "generation", "partition"]
    holed = beginnings.where("last - first + 1 <> count").select(*partition, "first")
    born = relevant(transitions, topics).where(F.col("op").isin(*BORN))
    born = born.join(F.broadcast(holed), partition).select(
        *partition, "id", "position", "first", _sequence().alias("sequence")
    )
    order = Window.partitionBy(*partition).orderBy("sequence", "position")
    before = F.coalesce(F.lag("sequence").over(order), F.col("first") - 1)
    jumps = born.withColumn("before", before).where("sequence > before + 1")
    count = (F.col("sequence") - F.col("before") - 1).cast("string")
    what = F.concat(count, F.lit(" messages before this one are missing"))
    return _findings(jumps, F.lit("gap"), what)


def unaccounted(followed: DataFrame, messages: DataFrame, topics: FeedTopics) -> DataFrame:
    """Messages that silver lacks or has in another state than their last transition led to.

    `followed` must be whole lives. Of topics that were deleted nothing is said.
    """
    place = F.struct("position", "row")
    last = (
        followed.where(~F.col("ended"))
        .groupBy(*MESSAGE)
        .agg(F.max_by("state", place).alias("state"), F.max("position").alias("position"))
    )
    if topics.deleted:
        # Those of a topic of the same name that was before are others.
        since = F.element_at(_map_of(topics.deleted), _topic())
        messages = messages.where(
            F.coalesce(F.array_max(since) < F.col("topic_since"), F.lit(True))
        )
    known = messages.select(*MESSAGE, F.col("state").alias("silver"))
    wrong = last.join(known, MESSAGE, "left").where(
        F.col("silver").isNull() | (F.col("silver") != F.col("state"))
    )
    has = F.coalesce(F.concat(F.lit("has it as "), F.col("silver")), F.lit("doesn't have it"))
    what = F.concat(F.lit("it is "), F.col("state"), F.lit(", and silver "), has)
    return _findings(wrong, F.lit("unaccounted"), what)


def _findings(rows: DataFrame, kind: Column, what: Column) -> DataFrame:
    return rows.select(
        "topic",
        "partition",
        "id",
        kind.alias("kind"),
        what.alias("what"),
        "position",
        "shard",
    )


def audit(transitions: DataFrame, messages: DataFrame | None = None) -> DataFrame:
    """All findings in bronze, and in silver if it is given."""
    topics = FeedTopics.of(transitions)
    known = beginnings(transitions, topics)
    followed = lives(transitions, topics)
    findings = broken(followed, known).unionByName(gaps(transitions, topics, known))
    if messages is not None:
        findings = findings.unionByName(unaccounted(followed, messages, topics))
    return findings
