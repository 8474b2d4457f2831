"""Silver: parts of lives put together in any way are what a naive fold says."""

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.lives import SHARD, Feed, Row, as_expected, as_table, at, folded, stories

from fasti.pipeline import silver, silver_stage, topics
from fasti.pipeline.bronze import remember_shard, transaction
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Pipeline, run

pytestmark = pytest.mark.timeout(300)


def shown(messages: DataFrame | pa.Table) -> dict[Any, Row]:
    """By name, as the naive fold has them."""
    found = {}
    table = messages if isinstance(messages, pa.Table) else messages.toArrow()
    for row in table.to_pylist():
        name = (row["topic"], row["topic_since"], row["id"])
        assert name not in found, "one row per message"
        found[name] = {**row, "consumers": row["consumers"] or []}
    return found


def by_name(messages: pa.Table) -> pa.Table:
    return messages.sort_by([(name, "ascending") for name in silver.NAME])


def assert_equal(messages: DataFrame | pa.Table, rows: list[Row]) -> None:
    expected = {name: as_expected(message) for name, message in folded(rows).items()}
    found = shown(messages)
    assert found.keys() == expected.keys()
    for name, message in expected.items():
        told = {column: found[name][column] for column in message}
        assert told == message, name


def with_numbers(rows: list[Row]) -> pa.Table:
    """Transitions as the fold gets them."""
    since = {row["topic"]: row["position"] for row in rows if row["op"] == "topic_created"}
    numbers = {topic: number for number, topic in enumerate(since)}
    schema = pa.schema(list(silver.TRANSITIONS.items()))
    filled = [
        {**row, "topic_no": numbers[row["topic"]], "topic_since": since[row["topic"]]}
        for row in rows
        if row.get("id") is not None
    ]
    return pa.Table.from_pylist(filled, schema)


@pytest.mark.parametrize("seed", range(30))
def test_parts_can_be_put_together_in_any_order_of_batches(seed: int) -> None:
    rng = random.Random(seed)
    rows = stories(seed, messages=60)
    transitions = with_numbers(rows)
    whole = silver.merged(silver.parts_of(transitions))
    assert_equal(whole, rows)

    last = rows[-1]["position"]
    bounds = [0, *sorted(rng.sample(range(2, last), rng.randint(1, 7))), last]
    position = pc.field("position")
    pieces = [
        silver.merged(silver.parts_of(transitions.filter((position > low) & (position <= high))))
        for low, high in itertools.pairwise(bounds)
    ]
    while len(pieces) > 1:
        # Any two neighbours, in any order.
        at = rng.randrange(len(pieces) - 1)
        both = pa.concat_tables(rng.sample(pieces[at : at + 2], 2))
        pieces[at : at + 2] = [silver.merged(both)]
    assert_equal(pieces[0], rows)
    assert by_name(pieces[0]) == by_name(whole)


def test_nothing_of_nothing() -> None:
    empty = silver.parts_of(with_numbers([]))
    assert silver.merged(empty).num_rows == 0


class Bronze:
    """A lake whose bronze is written by hand, in as many commits as wanted."""

    def __init__(self, root: Path, format: Any = "delta") -> None:
        self.lake = Lake(root, format)
        remember_shard(self.lake, SHARD)

    def bring(self, rows: list[Row]) -> None:
        self.lake.bronze.append(as_table(rows), (transaction(SHARD), rows[-1]["position"]))

    def run(self, spark: SparkSession) -> int:
        # Nobody listens there: silver needs a broker only for kinds of topics that it can't know.
        pipeline = Pipeline(self.lake, [silver_stage.silver_messages], "127.0.0.1:1")
        return run(pipeline, spark).rows["silver"]


@pytest.fixture
def bronze(tmp_path: Path) -> Bronze:
    return Bronze(tmp_path)


def cut(rows: list[Row], pieces: int) -> list[list[Row]]:
    """At positions, never within one."""
    last = rows[-1]["position"]
    bounds = [last * n // pieces for n in range(pieces + 1)]
    spans = itertools.pairwise(bounds)
    return [[r for r in rows if low < r["position"] <= high] for low, high in spans]


def test_step_by_step_it_is_the_same(
    bronze: Bronze, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Everything is large, and three levels are many.
    monkeypatch.setattr(silver_stage, "SMALL_ROWS", 0)
    monkeypatch.setattr(silver_stage, "LEVELS_MAX", 3)
    monkeypatch.setattr(silver_stage, "to_merge", _eager(silver_stage.to_merge))
    rows = stories(seed=3, messages=120)
    levels = set()
    for n, piece in enumerate(pieces := cut(rows, 6)):
        bronze.bring(piece)
        assert bronze.run(spark) == len(piece)
        levels.add(len(silver_stage.open_levels(bronze.lake.messages.files())))
        if n in (2, len(pieces) - 1):
            assert_equal(bronze.lake.silver(spark), list(itertools.chain(*pieces[: n + 1])))
    assert max(levels) == 3
    assert len(silver_stage.open_levels(bronze.lake.messages.files())) > 1
    # Many messages are told apart in shares, without a broadcast that takes the driver's memory.
    monkeypatch.setattr(silver_stage, "_NAMES_SENT", 0)
    assert_equal(bronze.lake.silver(spark), rows)
    monkeypatch.setattr(silver_stage, "FOLD_ROWS", 10)
    assert_equal(bronze.lake.silver(spark), rows)
    assert bronze.run(spark) == 0


def _eager(to_merge: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """Only the depth decides: steps of this test are all of one size."""
    return lambda sizes, new: to_merge(sizes, min(new, sum(sizes.values()) - 1))


def test_a_topic_made_anew_has_other_messages(bronze: Bronze, spark: SparkSession) -> None:
    feed = Feed(random.Random(1))
    made = {"topic": "a", "details": '{"settings": {"kind": "timeline"}}'}
    message = {"topic": "a", "partition": 0, "version": 1}
    feed.tell("topic_created", **made)
    for number in (1, 2, 3):
        feed.tell("produced", **message, id=number, due=at(10))
    feed.tell("leased", **message, id=2, consumer="c")
    feed.tell("acked", **message, id=2, started=at(20))
    bronze.bring(feed.rows)
    bronze.run(spark)

    before = len(feed.rows)
    feed.tell("leased", **message, id=3, consumer="c")
    feed.tell("topic_deleted", topic="a")
    feed.tell("topic_created", **made)
    feed.tell("produced", **message, id=1, due=at(99))
    feed.tell("leased", **message, id=1, consumer="d")
    bronze.bring(feed.rows[before:])
    bronze.run(spark)
    assert_equal(bronze.lake.silver(spark), feed.rows)
    states = {row["state"] for row in shown(bronze.lake.silver(spark)).values()}
    assert states == {"purged", "done", "leased"}


def test_what_lies_before_the_feed_is_not_invented(spark: SparkSession, tmp_path: Path) -> None:
    bronze, feed = Bronze(tmp_path), Feed(random.Random(3))
    name = {"topic": "old", "partition": 0, "id": 9}
    feed.tell("acked", **name, started=at(1))
    feed.tell("moved", **{**name, "id": 10}, due=at(500), version=4)
    bronze.bring(feed.rows)
    bronze.run(spark)
    found = shown(bronze.lake.silver(spark))
    assert {row["seen_from_start"] for row in found.values()} == {False}
    assert {row["produced_at"] for row in found.values()} == {None}
    assert {row["state"] for row in found.values()} == {"done", "pending"}


def test_logs_and_entries_are_no_messages(spark: SparkSession, tmp_path: Path) -> None:
    bronze, feed = Bronze(tmp_path), Feed(random.Random(4))
    for kind in ("log", "kv", "timeline"):
        feed.tell("topic_created", topic=kind, details=f'{{"settings": {{"kind": "{kind}"}}}}')
    feed.tell("appended", topic="log", partition=0, id=1, offset=0)
    feed.tell("leased", topic="log", partition=0, id=1, offset=0, group="g", consumer="c")
    feed.tell("put", topic="kv", partition=0, id=1, version=1)
    feed.tell("replaced", topic="kv", partition=0, id=1, version=2)
    feed.tell("produced", topic="timeline", partition=0, id=1, version=1, due=at(0))
    feed.tell("renewed", topic="timeline", consumer="c")
    bronze.bring(feed.rows)
    bronze.run(spark)
    assert [name[0] for name in shown(bronze.lake.silver(spark))] == ["timeline"]


def test_which_levels_are_put_together() -> None:
    assert silver_stage.to_merge({}, 10) == []
    assert silver_stage.to_merge({1: 1_000, 2: 10}, 10) == [1, 2]
    assert silver_stage.to_merge({1: 20_000_000}, 1_000_000) == []
    many = dict.fromkeys(range(2, 9), 1000000)
    assert silver_stage.to_merge({1: 20_000_000, **many}, 1_000_000) == [8, 7, 6, 5, 4, 3, 2]
    assert silver_stage.to_merge({1: 9_000_000, **many}, 1_000_000)[-1] == 1


def test_the_reference_names_all_columns() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/lake.md").read_text()
    _, messages, known = page.split("\n## ")[1:]
    named = set(re.findall(r"`([a-z_]+)`", messages))
    assert {*silver.PARTS.names, "level", "day"} <= named
    assert set(topics.SCHEMA.names) <= set(re.findall(r"`([a-z_]+)`", known))
