"""The stream readers as Spark calls them, without Spark: offsets, limits, losses, patience."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.client.transport import OnlyShard
from fasti.errors import FastiError, Gone, Unavailable
from fasti.spark.errors import SparkFastiError
from fasti.spark.log_stream import shared
from fasti.spark.options import Options
from fasti.spark.patience import patiently
from fasti.spark.patience import rows_of as patient_rows
from fasti.spark.progress import behind
from fasti.spark.source import FastiSource
from fasti.spark.streams import Idling, OffsetStream

Topic = Callable[..., str]
Offsets = dict[str, Any]
ALL = ReadAllAvailable()
_SMALL = {"segment_size": "64KiB", "feed_size": "0B", "checkpoint_size": "64KiB"}


def stream(broker: BrokerProcess, **options: str) -> OffsetStream:
    made = FastiSource({"address": broker.address, **options})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, OffsetStream)
    return reader


def read(reader: OffsetStream, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
    # Offsets travel as JSON.
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    tasks = reader.partitions(start, end)
    return [row for task in tasks for batch in reader.read(task) for row in rows_of(batch)]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def batches(reader: OffsetStream, start: Offsets, limit: ReadLimit = ALL) -> Iterator[list[Any]]:
    """All micro-batches until there is nothing more."""
    for _ in itertools.count():
        end = reader.latestOffset(start, limit)
        if end == start:
            return
        yield read(reader, start, end)
        start = end


def joined(found: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(found))


def appended(client: Client, topic: str, *counts: int) -> None:
    producer = client.producer(topic)
    for count in counts:
        producer.send_batch([str(n).encode() for n in range(count)])


def place(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


# Both


def test_a_log_comes_in_shares_and_whole(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    log = topic(kind="log", partitions=3)
    appended(client, log, 100, 10, 1, 100)
    reader = stream(broker, view="log", topic=log)
    found = list(batches(reader, reader.initialOffset(), ReadMaxRows(50)))
    assert [len(each) for each in found] == [50, 50, 50, 50, 11]
    ends = {each.partition: each.end for each in client.log(log).describe()}
    expected = [(number, offset) for number, end in ends.items() for offset in range(end)]
    assert sorted(place(joined(found))) == expected


@pytest.mark.one_shard
def test_changes_come_by_frames_and_at_least_one(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    reader = stream(broker, view="changes", topic=name, columns="position,row,op,id")
    start = reader.initialOffset()
    for count in (10, 300, 10, 10):
        client.producer(name).send_batch([b"x"] * count, delay="1h")
    found = list(batches(reader, start, ReadMaxRows(25)))
    # What came before the topic is passed over; a frame is never torn.
    assert [len(each) for each in found if each] == [11, 300, 20]
    rows = joined(found)
    assert rows == sorted(rows, key=lambda row: (row["position"], row["row"]))
    assert len({row["id"] for row in rows if row["op"] == "produced"}) == 330


@pytest.mark.parametrize("view", ["changes", "log"])
def test_between_two_offsets_it_is_always_the_same(
    view: str, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log", partitions=2)
    appended(client, name, 50, 50)
    reader = stream(broker, view=view, topic=name)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    first = read(reader, start, end)
    appended(client, name, 50)
    assert read(stream(broker, view=view, topic=name), start, end) == first
    assert read(stream(broker, view=view, topic=name, minPartitions="5"), start, end) == first


@pytest.mark.one_shard
@pytest.mark.parametrize("view", ["changes", "log"])
def test_available_now_is_what_is_there_now(
    view: str, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log")
    appended(client, name, 30)
    reader = stream(broker, view=view, topic=name)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    appended(client, name, 30)
    rows = joined(batches(reader, start, ReadMaxRows(1)))
    assert len([row for row in rows if row.get("op", "appended") == "appended"]) == 30
    again = stream(broker, view=view, topic=name)
    again.prepareForTriggerAvailableNow()
    assert len(joined(batches(again, start))) == 60 + (view == "changes")


def test_the_first_offset_stays_and_the_latest_is_told(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log")
    reader = stream(broker, view="log", topic=name, startingOffsets="latest")
    start = reader.initialOffset()
    appended(client, name, 7)
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ReadMaxRows(3))
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert (end["0"], latest["0"]) == (3, 7)


@pytest.mark.one_shard
def test_as_many_tasks_as_are_asked_for_and_few_otherwise(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    # What other tests have left in the feed is not read.
    at = client.feed().last
    name = topic(kind="log", partitions=3)
    appended(client, name, *[10] * 60)
    begin = {"log": "earliest", "changes": json.dumps({at.shard: at.frame})}
    for view in ("log", "changes"):
        reader = stream(broker, view=view, topic=name, startingOffsets=begin[view])
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        many = stream(broker, view=view, topic=name, minPartitions="6")
        assert len(many.partitions(start, end)) >= 6
        few = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(20)))
        assert len(few) == 1


def test_shares_of_partitions() -> None:
    begin, end = {"0": 5, "1": 0, "2": 9}, {"0": 105, "1": 3, "2": 9}
    assert shared(begin, end, 200) == end
    for rows in (1, 2, 10, 102):
        found = shared(begin, end, rows)
        assert sum(found.values()) == sum(begin.values()) + rows
        assert all(begin[n] <= found[n] <= end[n] for n in end)


# Where it begins


def test_a_log_begins_where_one_says(broker: BrokerProcess, client: Client, topic: Topic) -> None:
    name = topic(kind="log", partitions=2)
    appended(client, name, 4, 4)
    said = json.dumps({"0": 3, "1": "latest"})
    begin = stream(broker, view="log", topic=name, startingOffsets=said).initialOffset()
    assert (begin["0"], begin["1"]) == (3, 4)
    for wrong, told in (
        ({"0": 3}, "every partition"),
        ({"0": 5, "1": 0}, "up to 4"),
        ({"0": -1, "1": 0}, "up to 4"),
    ):
        reader = stream(broker, view="log", topic=name, startingOffsets=json.dumps(wrong))
        with pytest.raises(SparkFastiError, match=rf"\[FASTI.invalid_argument\].*{told}"):
            reader.initialOffset()


@pytest.mark.parametrize("view", ["changes", "log"])
def test_it_begins_at_a_time(
    view: str, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log", partitions=2)
    appended(client, name, 4, 4)
    log = client.log(name)
    # By the broker's clock: the client knows it only within bounds, and waits for the lower one.
    with client.reader(name, start="earliest", follow=False) as reader:
        last_us = max(row.created_us for row in reader)
    moment = fasti.client.durations.as_datetime(last_us + 1)
    while client.transport.clock.now_us() <= last_us + 1:
        pass
    appended(client, name, 6)

    def rows(at: datetime) -> int:
        reader = stream(broker, view=view, topic=name, startingTimestamp=at.isoformat())
        found = joined(batches(reader, reader.initialOffset()))
        return len([row for row in found if row.get("op", "appended") == "appended"])

    assert rows(moment) == 6
    assert rows(datetime(2000, 1, 1, tzinfo=UTC)) == 14
    # Later than anything there is: with what comes from now on.
    assert rows(datetime.now(UTC) + timedelta(days=1)) == 0
    assert sum(each.rows for each in log.describe()) == 14


@pytest.mark.one_shard
def test_changes_begin_at_a_position(broker: BrokerProcess, client: Client, topic: Topic) -> None:
    name = topic()
    at = client.feed().last
    client.producer(name).send(b"x", delay="1h").result()
    said = json.dumps({at.shard: at.frame})
    reader = stream(broker, view="changes", topic=name, startingOffsets=said)
    assert reader.initialOffset() == {at.shard: at.frame}
    (rows,) = batches(reader, reader.initialOffset())
    assert [row["op"] for row in rows] == ["produced"]
    for wrong in ({}, {"a": 1, "b": 2}, {at.shard: "x"}):
        reader = stream(broker, view="changes", startingOffsets=json.dumps(wrong))
        with pytest.raises(SparkFastiError, match=r"\[FASTI.invalid_argument\] startingOffsets"):
            reader.initialOffset()


def test_how_far_behind() -> None:
    def lag(*sources: dict[str, Any]) -> int | None:
        return behind(cast(StreamingQuery, SimpleNamespace(lastProgress={"sources": sources})))

    shard, log = "0.9f3c01d2ab45e678", {"log": "0.9f3c01d2ab45e678:4"}
    feed = {"endOffset": {shard: 90}, "latestOffset": json.dumps({shard: 97})}
    rows = {"endOffset": {**log, "0": 5, "1": 9}, "latestOffset": {**log, "0": 8, "1": 9}}
    others = {"endOffset": "12", "latestOffset": None}, {"endOffset": {"t": {"0": 1}}}
    assert lag(feed) == 7
    assert lag(rows) == 3
    assert lag(feed, rows, *others) == 10
    assert lag() == 0
    assert behind(cast(StreamingQuery, SimpleNamespace(lastProgress=None))) is None


# Quiet


def test_news_of_other_topics_make_no_batches(
    broker: BrokerProcess, client: Client, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = topic(), topic()
    reader = stream(broker, view="changes", topic=mine, startingOffsets="latest")
    start = reader.initialOffset()
    client.producer(other).send_batch([b"x"] * 5, delay="1h")
    assert reader.latestOffset(start, ALL) == start
    assert reader.latestOffset(start, ReadMaxRows(10)) == start
    client.producer(mine).send(b"x", delay="1h").result()
    end = reader.latestOffset(start, ALL)
    assert [row["topic"] for row in read(reader, start, end)] == [mine]
    # But a checkpoint isn't left behind for ever.
    client.producer(other).send_batch([b"x"] * 5, delay="1h")
    monkeypatch.setattr("fasti.spark.feed_stream._QUIET_S", 0.0)
    moved = reader.latestOffset(end, ALL)
    assert moved == reader.reportLatestOffset() != end
    assert read(reader, end, moved) == []


class Clock:
    """Time that passes when somebody sleeps."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, length_s: float) -> None:
        self.now += length_s


def test_an_idle_stream_asks_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("fasti.spark.streams.time", clock)
    idling = Idling()
    for expected in (0, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1):
        before = clock.now
        idling.wait()
        assert clock.now - before == pytest.approx(expected)
        idling.note_question(news=False)
    # Whoever asks seldom doesn't wait, and nobody does as long as there are news.
    clock.sleep(10)
    before = clock.now
    idling.wait()
    idling.note_question(news=True)
    idling.wait()
    assert clock.now == before


# Losses


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that keeps hardly anything of the feed."""
    with BrokerProcess(tmp_path / "data", settings=_SMALL) as process:
        yield process


def grown(client: Client, name: str) -> None:
    for _ in range(20):
        client.producer(name).send_batch([bytes(1000)] * 30, delay="1h")
    client.checkpoint()


@pytest.mark.one_shard
def test_changes_that_are_gone_are_told_or_passed_over(
    forgetful: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with fasti.connect(forgetful.address) as client:
        client.create_topic("t")
        reader = stream(forgetful, view="changes")
        start = reader.initialOffset()
        grown(client, "t")
        first = client.feed().first.frame
        assert first > 0
        told = rf"\[FASTI.gone\] .*after position 0, up to {first},.*feed_age.*feed_size.*raise"
        end = {client.feed().last.shard: first + 1}
        for ask in (
            lambda: reader.latestOffset(start, ALL),
            lambda: stream(forgetful, view="changes").partitions(start, end),
        ):
            with pytest.raises(SparkFastiError, match=told):
                ask()
        lenient = stream(forgetful, view="changes", failOnDataLoss="false")
        for limit in (ALL, ReadMaxRows(30)):
            end = lenient.latestOffset(start, limit)
            rows = read(lenient, start, end)
            assert {row["position"] for row in rows} == set(
                range(first + 1, end[client.feed().last.shard] + 1)
            )
        assert "data loss" in caplog.text


@pytest.mark.one_shard
def test_what_goes_between_plan_and_read_is_passed_over_too(forgetful: BrokerProcess) -> None:
    with fasti.connect(forgetful.address) as client:
        client.create_topic("t")
        lenient = stream(forgetful, view="changes", failOnDataLoss="false")
        start = lenient.initialOffset()
        appended(client, "t", 3, 3)
        planned = lenient.partitions(start, lenient.latestOffset(start, ALL))
        client.create_topic("log", kind="log")
        appended(client, "log", 10)
        log = stream(forgetful, view="log", topic="log", failOnDataLoss="false")
        begin = log.initialOffset()
        (rows,) = log.partitions(begin, log.latestOffset(begin, ALL))
        client.log("log").truncate(before=4)
        grown(client, "t")
        assert [batch for task in planned for batch in lenient.read(task)] == []
        assert [row["offset"] for batch in log.read(rows) for row in rows_of(batch)] == [
            *range(4, 10)
        ]
        strict = stream(forgetful, view="changes")
        with pytest.raises(SparkFastiError, match=r"\[FASTI.gone\]"):
            list(strict.read(planned[0]))


def test_rows_that_are_gone_are_told_or_passed_over(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log", partitions=2)
    appended(client, name, 10, 10)
    reader = stream(broker, view="log", topic=name)
    start = reader.initialOffset()
    client.log(name).truncate(before=4, partition=1)
    told = (
        r"\[FASTI.gone\] Rows 0 to 3 of partition 1 of .* dropped.*segment_age and retained_bytes"
    )
    with pytest.raises(SparkFastiError, match=told):
        reader.latestOffset(start, ALL)
    lenient = stream(broker, view="log", topic=name, failOnDataLoss="false")
    (rows,) = batches(lenient, start)
    assert sorted(place(rows)) == [(0, n) for n in range(10)] + [(1, n) for n in range(4, 10)]


def test_a_log_that_was_made_again_is_another(
    broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log")
    appended(client, name, 10)
    reader = stream(broker, view="log", topic=name)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(5))
    client.delete_topic(name)
    with pytest.raises(SparkFastiError, match=r"\[FASTI.not_found\]"):
        reader.latestOffset(end, ALL)
    client.create_topic(name, kind="log")
    appended(client, name, 8)
    with pytest.raises(SparkFastiError, match=r"\[FASTI.gone\].*deleted and made again"):
        reader.latestOffset(end, ALL)
    lenient = stream(broker, view="log", topic=name, failOnDataLoss="false")
    assert read(lenient, start, end) == []
    (rows,) = batches(lenient, end)
    assert place(rows) == [(0, n) for n in range(8)]


@pytest.mark.one_shard
def test_positions_of_other_data_mean_nothing(
    broker: BrokerProcess, client: Client, topic: Topic, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "other") as other, fasti.connect(other.address) as its:
        its.create_topic("t")
        reader = stream(other, view="changes")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
    for ask in (
        lambda: stream(broker, view="changes").latestOffset(start, ALL),
        lambda: stream(broker, view="changes").partitions(start, end),
    ):
        with pytest.raises(SparkFastiError, match=r"\[FASTI.gone\].*has another one.*restored"):
            ask()
    name = topic()
    lenient = stream(broker, view="changes", topic=name, failOnDataLoss="false")
    assert read(lenient, start, end) == []
    found = joined(batches(lenient, end))
    assert [row["op"] for row in found] == ["topic_created"]


@pytest.mark.one_shard
def test_a_position_ahead_of_the_feed_is_told(broker: BrokerProcess, client: Client) -> None:
    last = client.feed().last
    ahead = {last.shard: last.frame + 100}
    with pytest.raises(SparkFastiError, match=r"\[FASTI.gone\].*ends with position"):
        stream(broker, view="changes").latestOffset(ahead, ALL)
    lenient = stream(broker, view="changes", failOnDataLoss="false")
    assert position(lenient.latestOffset(ahead, ALL)) >= last.frame


def position(offsets: Offsets) -> int:
    (frame,) = offsets.values()
    return int(frame)


# Patience


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        with fasti.connect(process.address) as client:
            client.create_topic("log", kind="log")
            appended(client, "log", 10)
        reader = stream(process, view="log", topic="log")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        (task,) = reader.partitions(start, end)
        process.kill()
        impatient = stream(process, view="log", topic="log", timeout="0.5s")
        # On a busy machine its time may be over in the middle of a try.
        with pytest.raises(SparkFastiError, match=r"\[FASTI.(unavailable|timed_out)\]"):
            impatient.latestOffset(start, ALL)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(reader.latestOffset, start, ALL)
            process.start()
            assert asked.result() == end
        assert sum(batch.num_rows for batch in reader.read(task)) == 10


class Broken(OnlyShard):
    """A way to a broker that breaks after each batch."""

    def __init__(self, error: FastiError, most: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self._error, self._most = error, most
        self.transport = self

    def read(self, ticket: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        self.asked.append(ticket)
        name, field = ("offset", "offset") if ticket["call"] == "log" else ("position", "after")
        begin = ticket[field] + (field == "after")
        yield pa.RecordBatch.from_pydict({name: [begin, begin + 1]})
        if len(self.asked) < self._most:
            raise self._error


@pytest.mark.parametrize(
    "ticket",
    [
        {"call": "changes", "after": 0, "through": 9},
        {"call": "log", "partition": 0, "offset": 1, "end_offset": 9},
    ],
    ids=["changes", "log"],
)
def test_a_read_goes_on_behind_the_last_row(ticket: dict[str, Any]) -> None:
    broken = Broken(Unavailable("away"), 3)
    batches = patient_rows(lambda: cast(Client, broken), ticket)
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == [*range(1, 7)]
    assert len(broken.asked) == 3


def test_a_read_that_nobody_can_go_on_with_fails() -> None:
    for ticket, error in (
        ({"call": "list", "after": 0}, Unavailable("away")),
        ({"call": "changes", "after": 0}, Gone("gone")),
    ):
        broken = Broken(error, 3)
        with pytest.raises(type(error)):
            list(patient_rows(lambda: cast(Client, broken), ticket))  # noqa: B023
        assert len(broken.asked) == 1


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("fasti.spark.patience.time", clock)
    tries: list[float] = []

    def ask() -> None:
        tries.append(clock.now)
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        patiently(ask, 10.0)
    assert len(tries) > 5
    # Pauses grow to two seconds: one more would have been too long.
    assert 108.0 < tries[-1] <= 110.0


def test_options_are_checked_first(broker: BrokerProcess) -> None:
    with pytest.raises(SparkFastiError, match=r"\[FASTI.invalid_argument\].*can't be streamed"):
        stream(broker, topic="t")
    with pytest.raises(SparkFastiError, match=r"timeout.*a length of time"):
        stream(broker, view="changes", timeout="soon")
    assert Options.reading({"view": "changes"}, stream=True)["timeout"] == 60.0
