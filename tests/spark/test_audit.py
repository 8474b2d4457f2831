"""The audit finds each kind of wrong that can be made by hand, and nothing in what is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from fasti.pipeline import audit
from tests.spark.gold_lives import BEGIN, MESSAGES, SHARD, TRANSITIONS, World, frame

CREATED = {
    "shard": SHARD,
    "position": 0,
    "row": 0,
    "at": BEGIN,
    "op": "topic_created",
    "details": '{"settings": {"kind": "timeline"}}',
    "day": "2026-03-01",
}


def healthy() -> World:
    """Lives of all sorts; the feed has their topics from the beginning."""
    world = World(3)
    for number in range(1, 41):
        world.live("mail", number)
    for number in range(1, 21):
        world.live("bills", number)
    world.finish()
    for row in world.transitions:
        row["position"] += 1
    world.transitions.insert(0, {**CREATED, "topic": "mail", "position": 0})
    world.transitions.insert(1, {**CREATED, "topic": "bills", "position": 1})
    return world


HEALTHY = healthy()


def findings(spark: SparkSession, world: World) -> list[dict[str, Any]]:
    found = audit.audit(
        frame(spark, world.transitions, TRANSITIONS), frame(spark, world.messages, MESSAGES)
    )
    return [row.asDict() for row in found.orderBy("position").collect()]


def first(world: World, op: str, after: int = 0) -> dict[str, Any]:
    return next(r for r in world.transitions if r["op"] == op and r["position"] > after)


def append(world: World, like: dict[str, Any], op: str) -> dict[str, Any]:
    """One more transition of the same message, after all others."""
    last = world.transitions[-1]
    world.transitions.append({**like, "op": op, "position": last["position"] + 1, "due": None})
    return world.transitions[-1]


def row_of(world: World, like: dict[str, Any]) -> dict[str, Any]:
    return next(m for m in world.messages if (m["topic"], m["id"]) == (like["topic"], like["id"]))


def test_nothing_is_found_where_nothing_is_wrong(spark: SparkSession) -> None:
    assert {m["state"] for m in HEALTHY.messages} == {"pending", "done", "cancelled", "dead"}
    assert findings(spark, HEALTHY) == []


def _acked_again(world: World) -> tuple[str, dict[str, Any]]:
    return "double_completion", append(world, first(world, "acked"), "acked")


def _acked_without_lease(world: World) -> tuple[str, dict[str, Any]]:
    acked = first(world, "acked")
    leased = [
        r for r in world.transitions if r["op"] == "leased" and r["id"] == acked["id"]
        and r["topic"] == acked["topic"]
    ]  # fmt: skip
    world.transitions.remove(leased[-1])
    return "without_lease", acked


def _leased_after_cancel(world: World) -> tuple[str, dict[str, Any]]:
    cancelled = first(world, "cancelled")
    row_of(world, cancelled)["state"] = "leased"
    return "after_the_end", append(world, cancelled, "leased")


def _leased_after_done(world: World) -> tuple[str, dict[str, Any]]:
    acked = first(world, "acked")
    row_of(world, acked)["state"] = "leased"
    return "after_the_end", append(world, acked, "leased")


def _cancelled_after_done(world: World) -> tuple[str, dict[str, Any]]:
    acked = first(world, "acked")
    row_of(world, acked)["state"] = "cancelled"
    return "illegal", append(world, acked, "cancelled")


def _out_of_nowhere(world: World) -> tuple[str, dict[str, Any]]:
    like = {**first(world, "cancelled"), "id": 999}
    world.messages.append({**row_of(world, first(world, "cancelled")), "id": 999})
    return "never_produced", append(world, like, "cancelled")


def _early(world: World) -> tuple[str, dict[str, Any]]:
    row = first(world, "acked")
    leases = [
        r for r in world.transitions if (r["topic"], r.get("id")) == (row["topic"], row["id"])
    ]
    due = max(r["due"] for r in leases if r.get("due") is not None)
    row["started"] = due - timedelta(microseconds=1)
    return "early", row


def _a_row_is_missing(world: World) -> tuple[str, dict[str, Any]]:
    row = world.transitions[20]
    row["row"] = 1
    return "gap", row


def _a_row_is_there_twice(world: World) -> tuple[str, dict[str, Any]]:
    row = first(world, "produced", after=10)
    world.transitions.insert(30, {**row, "op": "renewed", "id": None})
    return "duplicate", row


def _a_message_is_missing(world: World) -> tuple[str, dict[str, Any]]:
    """As if the feed had never told of it."""
    world.transitions[:] = [
        r for r in world.transitions if (r["topic"], r.get("id")) != ("mail", 7)
    ]
    world.messages[:] = [m for m in world.messages if (m["topic"], m["id"]) != ("mail", 7)]
    after = [
        r for r in world.transitions
        if r["op"] == "produced" and r["topic"] == "mail" and r["id"] == 8
    ]  # fmt: skip
    return "gap", after[0]


def _the_first_message_is_missing(world: World) -> tuple[str, dict[str, Any]]:
    world.transitions[:] = [
        r for r in world.transitions if (r["topic"], r.get("id")) != ("mail", 1)
    ]
    world.messages[:] = [m for m in world.messages if (m["topic"], m["id"]) != ("mail", 1)]
    found = [r for r in world.transitions if r["op"] == "produced" and r["topic"] == "mail"]
    return "gap", next(r for r in found if r["id"] == 2)


def _silver_lost_one(world: World) -> tuple[str, dict[str, Any]]:
    row = first(world, "cancelled")
    world.messages.remove(row_of(world, row))
    return "unaccounted", row


def _silver_says_something_else(world: World) -> tuple[str, dict[str, Any]]:
    row = first(world, "cancelled")
    row_of(world, row)["state"] = "done"
    return "unaccounted", row


DOCTORS: list[Callable[[World], tuple[str, dict[str, Any]]]] = [
    _acked_again,
    _acked_without_lease,
    _leased_after_cancel,
    _leased_after_done,
    _cancelled_after_done,
    _out_of_nowhere,
    _early,
    _a_row_is_missing,
    _a_row_is_there_twice,
    _a_message_is_missing,
    _the_first_message_is_missing,
    _silver_lost_one,
    _silver_says_something_else,
]


def test_what_is_wrong_is_found(spark: SparkSession) -> None:
    """Every kind in a world of its own, and all worlds in one lake, because a job takes its time."""
    lake, expected, base = World(), {}, 0
    for doctor in DOCTORS:
        world = copy.deepcopy(HEALTHY)
        kind, row = doctor(world)
        name = doctor.__name__
        for each in (*world.transitions, *world.messages):
            each["topic"] = f"{name} {each['topic']}"
        for each in world.transitions:
            each["position"] += base
        lake.transitions += world.transitions
        lake.messages += world.messages
        expected[name] = (kind, row)
        base = max(each["position"] for each in world.transitions) + 1
    found = findings(spark, lake)
    by_name = {
        name: [each for each in found if each["topic"].startswith(name)] for name in expected
    }
    assert {name: [each["kind"] for each in rows] for name, rows in by_name.items()} == {
        name: [kind] for name, (kind, _) in expected.items()
    }
    assert {kind for kind, _ in expected.values()} == set(audit.KINDS) - {"count"}
    for name, (_, row) in expected.items():
        finding = by_name[name][0]
        assert (finding["topic"], finding["position"]) == (row["topic"], row["position"])
        assert finding["id"] == (None if "frame" in finding["what"] else row["id"])


def test_a_hole_is_told_once_however_often_what_is_new_is_looked_at(spark: SparkSession) -> None:
    world = copy.deepcopy(HEALTHY)
    _, told = _a_message_is_missing(world)
    everything = frame(spark, world.transitions, TRANSITIONS)
    topics = audit.FeedTopics.of(everything)
    known = audit.beginnings(everything, topics)
    for after in (0, told["position"] + 5):
        new = everything.where(f"position > {after}")
        assert new.where("op = 'produced' and topic = 'mail'").count()
        found = audit.gaps(new, topics, known, everything).collect()
        assert [(row["kind"], row["position"]) for row in found] == [("gap", told["position"])]


def test_a_lake_that_began_later_than_the_topic(spark: SparkSession) -> None:
    """What was produced before isn't known, and nothing wrong is said of it."""
    world = copy.deepcopy(HEALTHY)
    middle = world.transitions[len(world.transitions) // 2]["position"]
    world.transitions[:] = [row for row in world.transitions if row["position"] > middle]
    assert findings(spark, world) == []


def test_a_topic_that_was_made_again(spark: SparkSession) -> None:
    """The same ids again are other messages."""
    world = copy.deepcopy(HEALTHY)
    last = world.transitions[-1]["position"]
    for op in ("topic_deleted", "topic_created"):
        last += 1
        world.transitions.append({**CREATED, "op": op, "topic": "mail", "position": last})
    for me in world.messages:
        me["topic_since"] = 1
    again = World(9)
    for number in range(1, 9):
        again.live("mail", number)
    again.finish()
    for row in again.transitions:
        world.transitions.append({**row, "position": row["position"] + last})
    world.messages += [{**each, "topic_since": last} for each in again.messages]
    assert findings(spark, world) == []


def test_stages(spark: SparkSession) -> None:
    """Messages of stages live when they are published; those that are dropped never did."""
    world = World(1)
    rows = world.transitions
    rows.append({**CREATED, "topic": "t", "position": 1})

    def tell(op: str, position: int, id: int, **more: Any) -> None:
        base = {"shard": SHARD, "topic": "t", "partition": 0, "row": 0, "at": BEGIN}
        due = BEGIN if op == "staged" else None
        rows.append({**base, "op": op, "position": position, "id": id, "due": due, **more})

    for number in (1, 2, 3):
        tell("staged", 1 + number, number, stage="s")
    tell("published", 5, 1, stage="s")
    tell("published", 5, 2, stage="s", row=1)
    tell("stage_dropped", 5, 3, stage="s", row=2, reason="skipped")
    tell("leased", 6, 1, consumer="anna")
    tell("acked", 7, 1, started=BEGIN)
    for number, state in ((1, "done"), (2, "pending"), (3, "purged")):
        place = {"shard": SHARD, "topic": "t", "partition": 0, "id": number}
        world.messages.append({**place, "state": state})
    assert findings(spark, world) == []
    tell("leased", 8, 3)
    world.messages[-1]["state"] = "leased"
    assert [each["kind"] for each in findings(spark, world)] == ["after_the_end"]
