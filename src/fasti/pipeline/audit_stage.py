"""The audit as a stage: messages that something new happened to, and the broker's own counts.

A run looks at the whole lives of those messages to which something happened since the last audit; what
it finds is added to the findings before. With the option `full` it looks at everything again.

Counts are compared exactly, while traffic goes on: the broker counts first, and says at which position
of its feed (`BrokerCounts`, the first stage of a run). Then bronze and silver are brought up to now, which
lies behind that position. Messages that silver saw last before it are counted as silver has them; the
few to which something happened since are followed in bronze up to that position.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fasti.client.topics import Topic
from fasti.pipeline import audit
from fasti.pipeline.bronze import shards
from fasti.pipeline.gold.stage import between, silver_position
from fasti.pipeline.silver_stage import few_or_hashed
from fasti.pipeline.state import LakeState
from fasti.pipeline.topics import QUEUES

if TYPE_CHECKING:
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import StageRun

FINDINGS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """How many messages of a topic a shard has in which state, at a position of its feed."""

    topic: str
    shard: str
    position: int
    states: dict[str, int]


class BrokerCounts:
    """The first stage of a run: what the broker counts now, and its clock. Made for one workflow."""

    def __init__(self) -> None:
        self.counts: list[TopicCounts] = []
        self.at_us = 0

    def update(self, run: StageRun) -> int:
        """Asks the broker. Returns of how many topics."""
        transport = run.client.transport
        self.at_us = int(transport.clock.now_us())
        # Of each shard by itself: a position is one in its feed.
        self.counts = []
        for number in range(transport.shard_count):
            header, _ = transport.shard(number).call("topics", {})
            known = [
                Topic.of_reply(row["topic"], {"shard": header.get("shard"), **row})
                for row in header["topics"]
            ]
            self.counts += [
                TopicCounts(
                    topic.name, topic.position.shard, topic.position.frame, _in_words(topic.counts)
                )
                for topic in known
                if topic.settings.kind in QUEUES and topic.position is not None
            ]
        return len({count.topic for count in self.counts})


def _in_words(counts: dict[str, int]) -> dict[str, int]:
    """As silver has them."""
    others = {state: counts[state] for state in ("leased", "dead", "done", "cancelled", "staged")}
    return {"pending": counts["scheduled"] + counts["ready"], **others}


class Audit:
    """The last stage. With no `BrokerCounts` the broker isn't asked."""

    def __init__(self, counts: BrokerCounts | None = None) -> None:
        self._counts = counts

    def update(self, run: StageRun) -> int:
        """Returns how many findings there are in all."""
        lake, state = run.lake, LakeState.of(run.lake)
        table = lake.gold("audit")
        through = silver_position(lake)
        if not through:
            return 0
        full = bool(run.option("full")) or not state.audit or not table.exists()
        if not full and through == state.audit:
            return table.rows()
        since = {} if full else state.audit
        findings = _audit(run, since, through)
        lasting = _lasting(run, full)
        counts = self._counts.counts if self._counts is not None else []
        differing, compared = compare(run, [count for count in counts if count.shard in through])
        if lasting is not None:
            findings = findings.unionByName(lasting)
        if differing:
            findings = findings.unionByName(run.spark.createDataFrame(differing, audit.FINDING))
        table.overwrite(findings.dropDuplicates().limit(FINDINGS_MAX).toArrow())
        state.audit, state.compared = through, compared
        state.audited_us = time.time_ns() // 1000
        state.transitions, state.messages = lake.bronze.rows(), lake.messages.rows()
        state.save(lake)
        return table.rows()


def _audit(run: StageRun, since: dict[str, int], through: dict[str, int]) -> DataFrame:
    """What is wrong with messages that something happened to between two places."""
    lake, spark = run.lake, run.spark
    everything = lake.bronze.read(spark).where(between({}, through))
    if not since:
        return audit.audit(everything, run.messages())
    new = _behind(lake, spark, since).where(between(since, through))
    topics = audit.FeedTopics.of(everything)
    known = audit.beginnings(everything, topics)
    touched = touched_by(everything, new)
    followed = audit.lives(touched, topics)
    gaps = audit.gaps(new, topics, known, everything)
    findings = audit.broken(followed, known).unionByName(gaps)
    return findings.unionByName(audit.unaccounted(followed, run.messages(), topics))


def _behind(lake: Lake, spark: Any, since: dict[str, int]) -> DataFrame:
    lowest = min((since.get(shard, -1) for shard in shards(lake)), default=-1)
    files = [file for file in lake.bronze.files() if file.may_have("position", above=lowest)]
    return lake.bronze.read(spark, files)


def touched_by(transitions: DataFrame, new: DataFrame) -> DataFrame:
    """The whole lives of those messages of which `new` tells, and all rows that tell of no message."""
    names = new.where("id is not null and offset is null").select(*audit.MESSAGE)
    keys = few_or_hashed(names, new.count())
    mine = transitions.where("id is not null").join(keys, audit.MESSAGE, "left_semi")
    return mine.unionByName(transitions.where("id is null"))


def _lasting(run: StageRun, full: bool) -> DataFrame | None:
    """Findings of before that stay true."""
    table = run.lake.gold("audit")
    if full or not table.exists():
        return None
    return table.read(run.spark).where(~F.col("kind").isin(*audit.PASSING))


# The broker's counts


def compare(
    run: StageRun, counts: Sequence[TopicCounts]
) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Findings where counts differ, and the topics that were compared, with their positions.

    A topic that is older than the lake can't be compared: what was produced before isn't known.
    """
    lake = run.lake
    made = {
        (row["shard"], row["topic"]): row["topic_since"]
        for row in lake.topics.arrow().to_pylist()
        if row["topic_since"] > 0 and row["until"] is None
    }
    known = [count for count in counts if (count.shard, count.topic) in made]
    if not known:
        return [], {}
    rows = [(c.shard, c.topic, made[c.shard, c.topic], c.position) for c in known]
    places = run.spark.createDataFrame(
        rows, "shard string, topic string, topic_since long, counted long"
    )
    positions = [count.position for count in known]
    counted = _count(run, F.broadcast(places), min(positions))
    differing = []
    for count in known:
        for state, number in count.states.items():
            mine = counted.get((count.shard, count.topic, state), 0)
            if mine != number:
                what = f"the broker counts {number} {state}, and its feed adds up to {mine}"
                place = (count.position, count.shard)
                differing.append((count.topic, None, None, "count", what, *place))
    return differing, _compared(known)


def _compared(counts: Sequence[TopicCounts]) -> dict[str, Any]:
    """Each topic with the position at which it was counted; in several feeds with each."""
    places: dict[str, dict[str, int]] = {}
    for count in counts:
        places.setdefault(count.topic, {})[count.shard] = count.position
    return {
        topic: next(iter(by_feed.values())) if len(by_feed) == 1 else by_feed
        for topic, by_feed in places.items()
    }


def _count(run: StageRun, places: DataFrame, lowest: int) -> dict[tuple[str, str, str], int]:
    """How many messages are in which state at each topic's place: (shard, topic, state) → number."""
    lake, spark = run.lake, run.spark
    settled = (
        run.messages()
        .join(places, ["shard", "topic", "topic_since"])
        .where("last_position <= counted")
    )
    counts = [settled.groupBy("shard", "topic", "state").count()]
    files = [file for file in lake.bronze.files() if file.may_have("position", above=lowest)]
    if files:
        later = lake.bronze.read(spark, files).join(places, ["shard", "topic"])
        later = later.where("position > counted")
        since = lake.bronze.read(spark).join(places, ["shard", "topic"])
        mine = touched_by(since.where("position >= topic_since"), later)
        topics = audit.FeedTopics(frozenset(), {}, {})
        lives = audit.lives(mine, topics).join(places, ["shard", "topic"])
        lives = lives.where("position <= counted")
        last = F.max_by("state", F.struct("position", "row")).alias("state")
        states = lives.groupBy(*audit.MESSAGE).agg(last)
        counts.append(states.groupBy("shard", "topic", "state").count())
    totals: dict[tuple[str, str, str], int] = {}
    for frame in counts:
        for row in frame.collect():
            name = (row["shard"], row["topic"], row["state"])
            totals[name] = totals.get(name, 0) + row["count"]
    return totals
