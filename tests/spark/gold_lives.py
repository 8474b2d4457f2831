"""Made-up lives of messages: the transitions that the feed would tell, and silver's row of each.

Independent of the pipeline: plain Python, so that what Spark computes can be held against it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

BEGIN = datetime(2026, 3, 1, 22, 30, tzinfo=UTC)
SHARD = "00000000000000aa"
TRANSITIONS = (
    "shard string, position long, row int, at timestamp, op string, topic string, partition int, "
    "id long, offset long, version long, due timestamp, started timestamp, token long, "
    "lease_us long, consumer string, group string, reason string, stage string, details string, "
    "day string"
)
MESSAGES = (
    "shard string, topic string, partition int, id long, group string, produced_at timestamp, "
    "due_first timestamp, due_last timestamp, leases long, releases long, nacks long, "
    "completions long, first_leased_at timestamp, started_at timestamp, finished_at timestamp, "
    "lateness_us long, early int, state string, reason string, last_position long, topic_since long"
)


def names(schema: str) -> list[str]:
    """The columns of a schema given as text."""
    return [each.strip().split(" ")[0] for each in schema.split(",")]


@dataclass
class World:
    """Messages that live one after the other and beside each other, over some hours."""

    seed: int = 0
    transitions: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def tell(self, message: dict[str, Any], at: datetime, op: str, **columns: Any) -> None:
        """One transition. Positions are given when all is told, by time."""
        place = {name: message[name] for name in ("shard", "topic", "partition", "id", "group")}
        self.transitions.append({**place, "at": at, "op": op, "row": 0, **columns})

    def live(self, topic: str, id: int) -> None:
        """A message that is produced and tried until something becomes of it."""
        draw = self.random
        produced = BEGIN + timedelta(seconds=draw.uniform(0, 3 * 3600))
        due = produced + timedelta(seconds=draw.choice([0, 0, 1, 3600, 86400 * 3]))
        me: dict[str, Any] = dict.fromkeys(names(MESSAGES))
        me |= {"shard": SHARD, "topic": topic, "partition": 0, "id": id, "produced_at": produced}
        me |= {"due_first": due, "due_last": due, "leases": 0, "releases": 0, "nacks": 0}
        me |= {"completions": 0, "early": 0, "state": "pending"}
        self.messages.append(me)
        self.tell(me, produced, "produced", due=due, version=1)
        if draw.random() < 0.1:
            end = produced + (due - produced) / 2
            me |= {"state": "cancelled", "finished_at": end}
            self.tell(me, end, "cancelled")
        while me["state"] == "pending" and draw.random() < 0.8:
            self.attempt(me)

    def attempt(self, me: dict[str, Any]) -> None:
        """A lease, and what became of it."""
        draw = self.random
        due = max(me["due_last"], me["produced_at"])
        leased = due + timedelta(microseconds=draw.choice([10, 50, 50, 900, 5_000_000]))
        started = leased + timedelta(microseconds=draw.randrange(1, 2000))
        ended = started + timedelta(seconds=draw.expovariate(0.01))
        consumer = draw.choice(["anna", "bert", "carl"])
        me["leases"] += 1
        me["first_leased_at"] = me["first_leased_at"] or leased
        self.tell(me, leased, "leased", consumer=consumer, token=me["leases"], lease_us=30_000_000)
        op = draw.choice(["acked", "acked", "acked", "nacked", "expired", "released", "rejected"])
        if op == "expired":
            me["due_last"] = ended
            self.tell(me, ended, op)
            return
        me["started_at"] = started
        me["lateness_us"] = (started - due) // timedelta(microseconds=1)
        if op in ("acked", "rejected"):
            me |= {"state": "done" if op == "acked" else "dead"}
            me |= {"finished_at": ended} if op == "acked" else {"reason": "no <b>way</b>"}
            me["completions"] += op == "acked"
            self.tell(me, ended, op, started=started, reason=me["reason"])
            return
        me["releases" if op == "released" else "nacks"] += 1
        me["due_last"] = ended + timedelta(seconds=draw.choice([1, 60]))
        reason = draw.choice(["timeout", "refused"]) if op == "nacked" else None
        self.tell(me, ended, op, started=started, due=me["due_last"], reason=reason)

    def finish(self) -> World:
        """Ids and positions, in the order of time, and the days."""
        self._number()
        self.transitions.sort(key=lambda each: (each["at"], each["id"]))
        last: dict[tuple[str, int], int] = {}
        for position, each in enumerate(self.transitions, 1):
            each["position"] = position
            each["day"] = each["at"].date().isoformat()
            last[each["topic"], each["id"]] = position
        for me in self.messages:
            me["last_position"] = last[me["topic"], me["id"]]
        return self

    def _number(self) -> None:
        """Ids grow with the time at which messages are produced."""
        given: dict[str, int] = {}
        numbers = {}
        for me in sorted(self.messages, key=lambda each: each["produced_at"]):
            given[me["topic"]] = given.get(me["topic"], 0) + 1
            numbers[me["topic"], me["id"]] = given[me["topic"]]
        for row in (*self.transitions, *self.messages):
            row["id"] = numbers[row["topic"], row["id"]]

    def bronze(self, spark: SparkSession) -> DataFrame:
        """The transitions."""
        return frame(spark, self.transitions, TRANSITIONS)

    def silver(self, spark: SparkSession) -> DataFrame:
        """The messages."""
        return frame(spark, self.messages, MESSAGES)


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    """Rows as a DataFrame; what a row doesn't have is null."""
    kinds = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")
    return spark.createDataFrame(pa.Table.from_pylist(rows, kinds))


def a_world(seed: int = 1, count: int = 300) -> World:
    """Two topics."""
    world = World(seed)
    for number in range(1, count + 1):
        world.live("mail" if number % 3 else "bills", number)
    return world.finish()
