"""What follows a broker of four shards: changes, readers of logs, watches; whole, and over a SIGKILL."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app
from fasti.client.client import Client
from fasti.client.position import Position
from fasti.errors import Gone, InvalidArgument
from tests.integration.serve_rig import SMALL

SHARDS, PROCESSES = 4, 2
WAIT = "60s"
# When nothing more is expected, it is not waited for long.
QUIET = "2s"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("followed") / "data"
    with BrokerProcess(data, shards=SHARDS, processes=PROCESSES, settings=SMALL) as made:
        yield made


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(broker.address) as made:
        yield made


def put(client: Client, topic: str, rows: dict[str, Any], batch: int = 0) -> None:
    """Rows by a sink: into any kind of topic, each to its shard."""
    operation = {"log": "append", "kv": "put"}.get(client.topic(topic).settings.kind, "produce")
    sink = client.sink(topic, f"sink of {topic}", operation)
    with sink.stage(batch, 0, 0) as stage:
        stage.write(pa.record_batch(rows))
    assert sink.publish(batch, [stage.staged.name]).outcomes == {"ok": len(rows["payload"])}


def keyed(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {"payload": [b"%d" % n for n in numbers], "key": [f"k{n}" for n in numbers]}


def due(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "due_us": [4_000_000_000_000_000] * len(rows["payload"])}


def born(table: pa.Table) -> list[str]:
    """The keys of messages that came to be."""
    rows = table.select(["op", "key"]).to_pylist()
    return [row["key"] for row in rows if row["op"] == "staged"]


def test_the_feed_is_read_whole_in_order_of_each_shard(client: Client) -> None:
    client.create_topic("whole")
    put(client, "whole", due(keyed(0, 200)))
    changes = client.changes(topic="whole")
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    keys: list[str] = []
    for table in changes:
        (feed,) = set(table["shard"].to_pylist())
        rows = zip(table["position"].to_pylist(), table["row"].to_pylist(), strict=True)
        places[feed] += rows
        keys += born(table)
    assert sorted(keys) == sorted(f"k{n}" for n in range(200))
    assert len(places) == SHARDS
    for rows in places.values():
        assert rows == sorted(set(rows))
    assert changes.position == client.feed().last
    assert sorted(changes.position.frames) == sorted(places)
    # And on from there: nothing of it again.
    put(client, "whole", due(keyed(200, 50)), batch=1)
    later = client.changes(topic="whole", start=str(changes.position))
    assert sorted(key for table in later for key in born(table)) == sorted(
        f"k{n}" for n in range(200, 250)
    )
    assert changes.position < later.position


def test_a_place_is_one_in_every_shard(client: Client) -> None:
    last = client.feed().last.frames
    feeds = list(last)
    with pytest.raises(InvalidArgument, match=f"each of its {SHARDS} shards"):
        client.changes(start=Position(feeds[0], 0))
    elsewhere = {**last}
    del elsewhere[feeds[2]]
    elsewhere["2.0123456789abcdef"] = 1
    with pytest.raises(Gone):
        client.changes(start=Position.of(elsewhere))


def test_changes_are_followed_over_a_sigkill(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("followed")
    keys: list[str] = []
    with client.changes(start="latest", topic="followed", follow=True, timeout=WAIT) as changes:
        put(client, "followed", due(keyed(0, 100)))
        while len(keys) < 100:
            keys += born(next(changes))
        broker.kill()
        broker.start()
        put(client, "followed", due(keyed(100, 100)), batch=1)
        while len(keys) < 200:
            keys += born(next(changes))
    assert sorted(keys) == sorted(f"k{n}" for n in range(200))


@pytest.mark.parametrize("kill", [0, 1])
def test_changes_go_on_while_one_process_is_away(
    broker: BrokerProcess, client: Client, kill: int
) -> None:
    topic = f"partly-{kill}"
    client.create_topic(topic)
    keys: list[str] = []
    with client.changes(start="latest", topic=topic, follow=True, timeout=WAIT) as changes:
        put(client, topic, due(keyed(0, 100)))
        while len(keys) < 100:
            keys += born(next(changes))
        broker.process(kill).kill()
        put(client, topic, due(keyed(100, 100)), batch=1)
        while len(keys) < 200:
            keys += born(next(changes))
    assert sorted(keys) == sorted(f"k{n}" for n in range(200))


def offsets_of(rows: list[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for partition, offset in rows:
        found[partition].append(offset)
    return found


def test_a_log_is_read_and_followed_over_its_shards(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("events", kind="log", partitions=8)
    put(client, "events", keyed(0, 300))
    reader = client.reader("events")
    payloads = {message.payload for message in reader}
    assert payloads == {b"%d" % n for n in range(300)}
    ends = {part.partition: part.end for part in client.log("events").describe()}
    assert reader.position == ends
    assert sum(ends.values()) == 300
    found: list[tuple[int, int]] = []
    with client.reader("events", start=reader.position, follow=True, timeout=WAIT) as following:
        put(client, "events", keyed(300, 100), batch=1)
        for _ in range(100):
            message = next(following)
            found.append((message.partition, message.offset))
        broker.kill()
        broker.start()
        put(client, "events", keyed(400, 100), batch=2)
        for _ in range(100):
            message = next(following)
            found.append((message.partition, message.offset))
        behind = following.position
    for partition, offsets in offsets_of(found).items():
        assert offsets == list(range(ends[partition], ends[partition] + len(offsets)))
    assert sum(behind.values()) == 500
    (one,) = {part.partition for part in client.log("events").describe() if part.partition == 5}
    rows = list(client.reader("events", start=1, partition=one))
    assert [message.offset for message in rows] == list(range(1, behind[one]))
    with pytest.raises(InvalidArgument, match="name the partition"):
        list(client.reader("events", start=1))


def test_a_watch_sees_every_key_in_order_and_goes_on_by_its_position(
    broker: BrokerProcess, client: Client
) -> None:
    client.create_topic("profiles", kind="kv")
    entries = client.kv("profiles")
    begin = entries.position()
    assert sorted(begin) == list(range(SHARDS))
    seen: dict[str, list[bytes]] = defaultdict(list)
    with entries.watch(timeout=WAIT) as watch:
        for number in range(3):
            put(client, "profiles", {**keyed(0, 40), "payload": [b"%d" % number] * 40}, number)
        for _ in range(120):
            change = next(watch)
            seen[change.key].append(change.value or b"")
        behind = watch.position
        broker.kill()
        broker.start()
        put(client, "profiles", {**keyed(0, 40), "payload": [b"3"] * 40}, 3)
        for _ in range(40):
            change = next(watch)
            seen[change.key].append(change.value or b"")
    assert seen == {f"k{n}": [b"0", b"1", b"2", b"3"] for n in range(40)}
    with entries.watch(position=behind, timeout=QUIET) as again:
        assert sorted(change.key for change in again) == sorted(f"k{n}" for n in range(40))


def run(broker: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--address", broker.address])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_lines_of_the_command_line_say_where_to_go_on(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("printed")
    put(client, "printed", due(keyed(0, 40)))
    lines = run(broker, "changes", "--topic", "printed", "--json")
    assert len({line["shard"] for line in lines}) == SHARDS
    half = lines[len(lines) // 2]
    rest = run(broker, "changes", "--topic", "printed", "--json", "--from", half["position"])
    # Rows of one frame have one position: going on is behind all of them.
    place = Position.parse(half["position"]).frames[half["shard"]]
    here = lines[: len(lines) // 2 + 1]
    for line in lines[len(lines) // 2 + 1 :]:
        own = Position.parse(line["position"]).frames[line["shard"]]
        if (line["shard"], own) == (half["shard"], place):
            here.append(line)
    assert [line["position"] for line in rest] == [line["position"] for line in lines[len(here) :]]
    client.create_topic("rows", kind="log", partitions=4)
    put(client, "rows", keyed(0, 20))
    assert len(run(broker, "log", "read", "rows", "--json")) == 20


def test_tasks_of_an_event_loop_follow_the_same(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("tasks")
    client.create_topic("task entries", kind="kv")
    begin = client.feed().last
    put(client, "tasks", due(keyed(0, 50)))

    async def follow() -> tuple[list[str], list[str], Position]:
        async with fasti.aio.connect(broker.address) as mine:
            async with mine.kv("task entries").watch(timeout=WAIT) as watch:
                assert sorted(await mine.kv("task entries").position()) == list(range(SHARDS))
                entries = {**keyed(0, 10)}
                await asyncio.to_thread(put, client, "task entries", entries)
                seen = [(await anext(watch)).key for _ in range(10)]
                assert isinstance(watch.position, dict)
            keys: list[str] = []
            changes = await mine.changes(start=begin, topic="tasks")
            async for table in changes:
                keys += born(table)
            return keys, seen, changes.position

    keys, seen, position = asyncio.run(follow())
    assert sorted(keys) == sorted(f"k{n}" for n in range(50))
    assert sorted(seen) == sorted(f"k{n}" for n in range(10))
    assert len(position.frames) == SHARDS
