"""Gold against plain Python on the same rows: every figure of every period."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fasti.pipeline import gold
from tests.spark.gold_lives import BEGIN, SHARD, TRANSITIONS, World, a_world, frame

GRAINS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def world() -> World:
    return a_world()


def starts(moment: datetime) -> Iterable[tuple[str, datetime]]:
    for grain, length in GRAINS.items():
        yield grain, moment - (moment - EPOCH) % length


def rows_of(frame: DataFrame, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {}
    for row in frame.withColumn("start", F.unix_micros("start")).collect():
        told = row.asDict()
        told["start"] = EPOCH + timedelta(microseconds=told["start"])
        found[tuple(told.pop(name) for name in key)] = told
    return found


def test_lateness(spark: SparkSession, world: World) -> None:
    values = defaultdict(list)
    for each in world.messages:
        if each["state"] == "done":
            for period in starts(each["started_at"]):
                values[each["topic"], *period].append(each["lateness_us"])
                values["*", *period].append(each["lateness_us"])
    expected = {}
    for name, late in values.items():
        late.sort()
        ranks = {"p50_us": 500, "p95_us": 950, "p99_us": 990, "p999_us": 999}
        found = {n: late[math.ceil(len(late) * r / 1000) - 1] for n, r in ranks.items()}
        expected[name] = {"count": len(late), **found, "max_us": late[-1], "early": 0}
    result = rows_of(gold.lateness(world.silver(spark)), "topic", "grain", "start")
    assert result == expected
    assert len(result) > 100


def test_early_ones_are_counted(spark: SparkSession) -> None:
    world = a_world(count=40)
    done = [each for each in world.messages if each["state"] == "done"]
    done[0] |= {"early": 1, "lateness_us": -5}
    days = rows_of(gold.lateness(world.silver(spark)).where("grain = 'day'"), "topic", "start")
    assert sum(each["early"] for (topic, _), each in days.items() if topic == "*") == 1
    assert sum(each["early"] for (topic, _), each in days.items() if topic != "*") == 1


def test_throughput(spark: SparkSession, world: World) -> None:
    expected: dict[Any, Counter[str]] = defaultdict(Counter)

    def count(topic: str, at: datetime, name: str) -> None:
        for period in starts(at):
            expected[topic, *period][name] += 1

    seen = set()
    for each in world.transitions:
        topic, at, op = each["topic"], each["at"], each["op"]
        if op == "leased" and (topic, each["id"]) in seen:
            count(topic, at, "redelivered")
        seen |= {(topic, each["id"])} if op == "leased" else set()
        words = {"produced": "messages_in", "acked": "messages_out", "cancelled": "cancelled"}
        if op in words:
            count(topic, at, words[op])
        if op in ("nacked", "expired", "rejected"):
            count(topic, at, "failed")
        if op == "rejected":
            count(topic, at, "dead")
    result = rows_of(
        gold.throughput(world.bronze(spark), world.silver(spark)), "topic", "grain", "start"
    )
    told = {name: {k: v for k, v in row.items() if v} for name, row in result.items()}
    assert told == {name: dict(counts) for name, counts in expected.items()}
    assert any("redelivered" in row for row in told.values())


def test_logs_come_in_and_go_out(spark: SparkSession) -> None:
    """Rows of a log are not in silver; groups lease and ack them each for themselves."""
    base = {"shard": SHARD, "topic": "log", "partition": 0, "row": 0}
    rows: list[dict[str, Any]] = []

    def tell(op: str, offset: int, group: str | None = None) -> None:
        at = BEGIN + timedelta(seconds=len(rows))
        place = {"id": offset + 1, "offset": offset, "group": group, "position": len(rows) + 1}
        rows.append({**base, **place, "at": at, "op": op, "day": at.date().isoformat()})

    for offset in range(3):
        tell("appended", offset)
    for group in ("a", "b"):
        tell("leased", 0, group)
        tell("expired", 0, group)
        tell("leased", 0, group)
        tell("acked", 0, group)
    silver = World().silver(spark)
    found = gold.throughput(frame(spark, rows, TRANSITIONS), silver).where("grain = 'day'")
    day = found.collect()[0].asDict()
    expected = {"messages_in": 3, "messages_out": 2, "failed": 2, "redelivered": 2, "dead": 0}
    assert {name: day[name] for name in expected} == expected


def test_consumers(spark: SparkSession, world: World) -> None:
    expected: dict[Any, Counter[str]] = defaultdict(Counter)
    holder: dict[tuple[str, int], str] = {}
    for each in world.transitions:
        message, op = (each["topic"], each["id"]), each["op"]
        if op == "leased":
            holder[message] = each["consumer"]
        if op in ("leased", "acked", "nacked", "expired", "released", "rejected"):
            for period in starts(each["at"]):
                counts = expected[each["topic"], holder[message], *period]
                counts[op] += 1
                counts["errors"] += op in ("nacked", "expired", "rejected")
                if each.get("started"):
                    busy = each["at"] - each["started"]
                    counts["busy_us"] += busy // timedelta(microseconds=1)
    result = rows_of(gold.consumers(world.bronze(spark)), "topic", "consumer", "grain", "start")
    told = {name: {k: v for k, v in row.items() if v} for name, row in result.items()}
    assert told == {name: {k: v for k, v in row.items() if v} for name, row in expected.items()}


def test_retries_and_attempts(spark: SparkSession, world: World) -> None:
    expected: Counter[Any] = Counter()
    for each in world.transitions:
        if each["op"] in ("nacked", "expired", "released", "rejected"):
            for period in starts(each["at"]):
                expected[each["topic"], each["op"], each.get("reason") or "", *period] += 1
    names = ("topic", "op", "reason", "grain", "start")
    result = rows_of(gold.retries(world.bronze(spark)), *names)
    assert {name: row["count"] for name, row in result.items()} == expected

    taken: Counter[Any] = Counter()
    for me in world.messages:
        if me["state"] == "done":
            for period in starts(me["finished_at"]):
                taken[me["topic"], me["leases"] - me["releases"], *period] += 1
    found = rows_of(gold.attempts(world.silver(spark)), "topic", "attempts", "grain", "start")
    assert {name: row["count"] for name, row in found.items()} == taken


@pytest.mark.parametrize("name", ["lateness", "throughput", "consumers", "retries", "attempts"])
def test_a_day_alone_is_as_that_day_among_all(spark: SparkSession, world: World, name: str) -> None:
    """Midnight lies in the middle of what happened, and leases go over it."""
    inputs = {
        "lateness": (world.silver(spark),),
        "throughput": (world.bronze(spark), world.silver(spark)),
        "consumers": (world.bronze(spark),),
        "retries": (world.bronze(spark),),
        "attempts": (world.silver(spark),),
    }[name]
    compute = getattr(gold, name)
    day = (BEGIN + timedelta(days=1)).date().isoformat()

    def collected(rows: DataFrame) -> list[Any]:
        return sorted(map(str, rows.collect()))

    every = compute(*inputs).where(F.date_format("start", "yyyy-MM-dd") == day)
    alone = compute(*inputs, days=[day])
    assert collected(alone) == collected(every)
    assert collected(alone)


def test_the_forecast(spark: SparkSession, world: World) -> None:
    as_of = BEGIN + timedelta(hours=4)
    throughput = gold.throughput(world.bronze(spark), world.silver(spark))
    best: dict[str, int] = {}
    for each in throughput.where("grain = 'minute'").collect():
        best[each["topic"]] = max(best.get(each["topic"], 0), each["messages_out"])
    pending: dict[Any, list[datetime]] = defaultdict(list)
    for me in world.messages:
        if me["state"] == "pending":
            for grain, start in starts(me["due_last"]):
                if grain != "minute" or start < as_of + timedelta(days=1):
                    pending[me["topic"], grain, start].append(me["due_last"])
    result = rows_of(
        gold.backlog(world.silver(spark), throughput, F.lit(as_of)), "topic", "grain", "start"
    )
    assert result.keys() == pending.keys()
    for (topic, grain, start), row in result.items():
        due = pending[topic, grain, start]
        capacity = best[topic] * (GRAINS[grain] // timedelta(minutes=1))
        assert row["pending"] == len(due)
        assert row["overdue"] == sum(each <= as_of for each in due)
        assert row["capacity"] == capacity
        assert row["over"] == (len(due) > capacity)


def test_the_queue_that_is_coming(spark: SparkSession) -> None:
    """Hour by hour as somebody with a pencil would do it, also over hours without anything due."""
    hours = {0: 500, 1: 50, 2: 10, 5: 300, 6: 130, 20: 60}
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    messages = spark.createDataFrame(
        [
            ("t", "pending", begin + timedelta(hours=hour))
            for hour, count in hours.items()
            for _ in range(count)
        ],
        "topic string, state string, due_last timestamp",
    )
    shown = [("t", "minute", begin - timedelta(hours=1), 2)]
    throughput = spark.createDataFrame(
        shown, "topic string, grain string, start timestamp, messages_out long"
    )
    queue, expected = 0, {}
    for hour in range(21):
        queue = max(0, queue + hours.get(hour, 0) - 120)
        if hour in hours:
            expected[begin + timedelta(hours=hour)] = queue
    found = gold.backlog(messages, throughput, F.lit(begin)).where("grain = 'hour'")
    assert {start: row["queued"] for (start,), row in rows_of(found, "start").items()} == expected


def test_without_anything_shown_there_is_no_warning(spark: SparkSession) -> None:
    messages = spark.createDataFrame(
        [("t", "pending", BEGIN)], "topic string, state string, due_last timestamp"
    )
    throughput = spark.createDataFrame(
        [], "topic string, grain string, start timestamp, messages_out long"
    )
    row = gold.backlog(messages, throughput, F.lit(BEGIN)).collect()[0]
    assert (row["capacity"], row["over"], row["queued"]) == (None, False, None)
