"""Silver: parts of lives put together in any way are what a naive fold says."""

import itertools
import random
import re
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from fasti.pipeline import silver, silver_open, silver_stage, topics
from fasti.pipeline.bronze import remember_shard, transaction
from fasti.pipeline.files import DataFile
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Workflow, run
from fasti.pipeline.stages import SILVER
from tests.spark.lives import SHARD, Feed, Row, as_expected, as_table, at, folded, stories
from tests.spark.plain_delta import assert_every_version_is_true, assert_tables_are_true
from tests.spark.plain_delta import states as plain_states

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

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        remember_shard(self.lake, SHARD)

    def bring(self, rows: list[Row]) -> None:
        self.lake.bronze.append(as_table(rows), (transaction(SHARD), rows[-1]["position"]))

    def run(self, spark: SparkSession) -> int:
        # Nobody listens there: silver needs a broker only for kinds of topics that it can't know.
        workflow = Workflow(self.lake, [SILVER], "127.0.0.1:1")
        return run(workflow, spark).rows["silver"]


@pytest.fixture
def bronze(tmp_path: Path) -> Bronze:
    return Bronze(tmp_path)


def cut(rows: list[Row], pieces: int) -> list[list[Row]]:
    """At positions, never within one."""
    last = rows[-1]["position"]
    bounds = [last * n // pieces for n in range(pieces + 1)]
    spans = itertools.pairwise(bounds)
    return [[r for r in rows if low < r["position"] <= high] for low, high in spans]


@pytest.fixture
def many_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open messages are never few, and a file has few of them."""
    monkeypatch.setattr(silver_open, "FEW_ROWS", -1)
    monkeypatch.setattr(silver_open, "SMALL_FILES_MAX", 6)
    monkeypatch.setattr(silver_stage, "divide", lambda files, _: silver_open.divide(files, -1))
    monkeypatch.setattr(silver_stage, "FOLD_ROWS", 16)
    monkeypatch.setattr(silver_open, "FILE_ROWS", 16)


@pytest.mark.usefixtures("many_open")
def test_step_by_step_it_is_the_same(
    bronze: Bronze, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stories(seed=3, messages=60)
    for n, piece in enumerate(pieces := cut(rows, 4)):
        bronze.bring(piece)
        assert bronze.run(spark) == len(piece)
        assert_tables_are_true(bronze.lake)
        if n in (1, len(pieces) - 1):
            assert_equal(bronze.lake.silver(spark), list(itertools.chain(*pieces[: n + 1])))
    assert assert_every_version_is_true(bronze.lake) == len(pieces) + 1
    assert bronze.run(spark) == 0
    # Many messages are told apart in shares, without a broadcast that takes the driver's memory.
    monkeypatch.setattr(silver_stage, "_NAMES_SENT", 0)
    names = bronze.lake.silver(spark).select("id")
    assert silver_stage.few_or_hashed(names, 60).count() == names.distinct().count()


@pytest.mark.usefixtures("many_open")
def test_a_file_stays_in_which_nothing_goes_on(bronze: Bronze, spark: SparkSession) -> None:
    feed = Feed(random.Random(1))
    message = {"topic": "a", "partition": 0, "version": 1}
    feed.tell("topic_created", topic="a", details='{"settings": {"kind": "timeline"}}')
    ranges = [range(low, low + 20) for low in (1, 21, 41)]
    for numbers in ranges:
        for number in numbers:
            feed.tell("produced", **message, id=number, due=at(10))
        bronze.bring(feed.rows)
        bronze.run(spark)
        feed.rows.clear()
    ids = {each.path: (each.low["id"], each.high["id"]) for each in bronze.lake.messages.files()}
    feed.tell("leased", **message, id=25, consumer="c")
    feed.tell("acked", **message, id=25, started=at(20))
    bronze.bring(feed.rows)
    bronze.run(spark)
    after = {each.path for each in bronze.lake.messages.files()}
    gone = [bounds for path, bounds in ids.items() if path not in after]
    assert gone
    assert all(low <= 25 <= high for low, high in gone)
    assert len(gone) < len(ids)
    assert_tables_are_true(bronze.lake)
    assert bronze.lake.messages.rows() == 60
    assert plain_states(bronze.lake) == {("a", "pending"): 59, ("a", "done"): 1}


@pytest.mark.parametrize("seed", range(20))
def test_names_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Few topics and ids, so that one name has the topic of another and the id of a third.
    spans = (4, 30) if seed % 2 else (2**40, 2**62)
    sought, looked_in = ([rng.integers(0, span, 40) for span in spans] for _ in range(2))
    looked_in = [np.concatenate([a, b[:10]]) for a, b in zip(looked_in, sought, strict=True)]
    found = silver_open.MessageNames(*sought).among(
        pa.RecordBatch.from_arrays([pa.array(each) for each in looked_in], ["topic_no", "id"])
    )
    names = set(zip(*(each.tolist() for each in sought), strict=True))
    expected = [name in names for name in zip(*(each.tolist() for each in looked_in), strict=True)]
    assert found.tolist() == expected
    assert any(expected)


@pytest.mark.parametrize("few", [True, False])
def test_a_topic_made_anew_has_other_messages(
    bronze: Bronze, spark: SparkSession, few: bool, request: pytest.FixtureRequest
) -> None:
    if not few:
        request.getfixturevalue("many_open")
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
    assert_tables_are_true(bronze.lake)


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


def test_which_files_are_folded_with_a_step() -> None:
    def files(*rows: int) -> list[DataFile]:
        return [DataFile(str(n), 1, each) for n, each in enumerate(rows)]

    assert silver_open.divide([], 10) == ([], [])
    few = files(1_000, 10)
    assert silver_open.divide(few, 10) == (few, [])
    many = files(*[50_000] * 400)
    assert silver_open.divide(many, 1_000_000) == ([], many)
    assert silver_open.divide(many, 30_000_000) == (many, [])
    # Small ones are made into large ones when there are many.
    assert silver_open.divide([*many, *few], 10) == ([], [*many, *few])
    small = files(*[500] * 32)
    assert silver_open.divide([*many, *small], 10) == (small, many)


def test_files_of_open_messages_are_not_joined(tmp_path: Path) -> None:
    """They have the size at which few rows are written again."""
    table = Lake(tmp_path).messages
    for number in range(1, 5):
        ended = date(2026, 1, 1) if number % 2 else None
        row = {"id": number, "level": 0 if ended else 1, "day": ended}
        table.append(pa.Table.from_pylist([row], silver_stage.SCHEMA))
    assert table.compact() == 2
    assert [silver_open.is_open(each) for each in table.files()].count(True) == 2
    assert sorted(table.arrow(["id"]).column("id").to_pylist()) == [1, 2, 3, 4]


def test_the_reference_names_all_columns() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/lake.md").read_text()
    _, messages, known = page.split("\n## ")[1:]
    named = set(re.findall(r"`([a-z_]+)`", messages))
    assert {*silver.PARTS.names, "level", "day"} <= named
    assert set(topics.SCHEMA.names) <= set(re.findall(r"`([a-z_]+)`", known))
