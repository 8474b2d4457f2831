"""Readers of logs, over a broker process and over one inside this process, sync and asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import Closed, Gone, InvalidArgument, NotFound
from tests.integration.log_rig import fill
from tests.integration.serve_rig import emptied


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    with emptied(shared):
        yield shared


def places(messages: object) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]  # type: ignore[attr-defined]


def every_place(partitions: int, rows: int, first: int = 0) -> list[tuple[int, int]]:
    return [(p, offset) for p in range(partitions) for offset in range(first, rows)]


def test_it_reads_what_is_there_partition_by_partition(client: Client) -> None:
    fill(client, partitions=3)
    found = list(client.reader("events"))
    assert places(found) == every_place(3, 10)
    assert [message.payload for message in found] == [b"%d:%d" % p for p in places(found)]
    assert {message.topic for message in found} == {"events"}


def test_a_row_has_all_that_was_sent(client: Client) -> None:
    client.create_topic("events", kind="log")
    before = datetime.now(UTC) - timedelta(seconds=1)
    sent = client.producer("events").send(
        b"hello",
        key="order-1",
        headers={"lang": "en"},
        content_type="text/plain",
        subject="orders.eu",
    )
    sent.result()
    (row,) = client.reader("events")
    assert (row.payload, row.key, row.headers) == (b"hello", "order-1", {"lang": "en"})
    assert (row.content_type, row.subject) == ("text/plain", "orders.eu")
    assert row.id == sent.result().id
    assert before < row.created < datetime.now(UTC) + timedelta(seconds=1)
    assert "LogMessage 0 of partition 0" in repr(row)


def test_it_begins_where_it_is_told(client: Client) -> None:
    fill(client, partitions=2)
    assert places(client.reader("events", start="latest")) == []
    assert places(client.reader("events", start=7, partition=1)) == [(1, 7), (1, 8), (1, 9)]
    assert places(client.reader("events", start={0: 8, 1: 9})) == [(0, 8), (0, 9), (1, 9)]
    assert places(client.reader("events", start={1: 9})) == [(1, 9)]
    assert places(client.reader("events", partition=1)) == every_place(2, 10)[10:]
    assert places(client.reader("events", start=datetime.now(UTC) + timedelta(days=1))) == []
    past = datetime.now(UTC) - timedelta(days=1)
    assert places(client.reader("events", start=past)) == every_place(2, 10)


def test_a_time_finds_the_first_row_appended_then(client: Client) -> None:
    client.create_topic("events", kind="log")
    producer = client.producer("events")
    for number in range(3):
        assert producer.send_batch([b"%d" % number] * 5).all_ok
    rows = list(client.reader("events"))
    moments = sorted({row.created_us for row in rows})
    for at_us in moments:
        first = next(row.offset for row in rows if row.created_us == at_us)
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at_us)
        found = client.reader("events", start=at)
        assert next(found).offset == first == client.log("events").offset_at(at, 0)
    later = rows[-1].created + timedelta(microseconds=1)
    assert client.log("events").offset_at(later) == {0: 15}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"start": "newest"}, "start"),
        ({"start": -1}, "start"),
        ({"start": 3}, "partition"),
        ({"start": 11, "partition": 0}, "offset"),
        ({"partition": 9}, "partition"),
        ({"start": {7: 0}}, "partition"),
        ({"start": {0: 1}, "partition": 0}, "partition"),
        ({"start": datetime(2026, 1, 1)}, "start"),  # noqa: DTZ001
    ],
)
def test_it_refuses_places_that_are_none(
    client: Client, arguments: dict[str, object], field: str
) -> None:
    fill(client, partitions=2)
    with pytest.raises(InvalidArgument) as refused:
        list(client.reader("events", **arguments))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_other_topics_have_no_rows_to_read(client: Client) -> None:
    client.create_topic("emails")
    with pytest.raises(InvalidArgument, match="timeline"):
        list(client.reader("emails"))
    with pytest.raises(NotFound):
        list(client.reader("nothing", follow=True))


def test_batches_are_tables_of_at_most_so_many_rows(client: Client) -> None:
    fill(client, partitions=2, rows=25)
    tables = list(client.reader("events").batches(10))
    assert [table.num_rows for table in tables] == [10, 10, 5, 10, 10, 5]
    assert tables[0].column_names == [
        "partition",
        "offset",
        "created_us",
        "key",
        "headers",
        "content_type",
        "subject",
        "payload",
    ]
    offsets = [offset for table in tables for offset in table.column("offset").to_pylist()]
    assert offsets == [*range(25), *range(25)]


def test_its_position_is_where_another_goes_on(client: Client) -> None:
    fill(client, partitions=2)
    reader = client.reader("events")
    assert reader.position == {}
    head = [next(reader) for _ in range(13)]
    assert reader.position == {0: 10, 1: 3}
    rest = list(client.reader("events", start=reader.position))
    assert places(head + rest) == every_place(2, 10)
    # And so does the reader itself, by rows or by tables.
    assert [table.num_rows for table in reader.batches(4)] == [4, 3]
    client.producer("events").send(b"more", partition=0).result()
    assert places(reader) == [(0, 10)]


def test_following_goes_on_with_what_is_appended(client: Client) -> None:
    fill(client, partitions=2)
    got: list[tuple[int, int]] = []
    enough = threading.Event()
    with client.reader("events", follow=True) as reader:

        def read() -> None:
            for message in reader:
                got.append((message.partition, message.offset))
                if len(got) == 20:
                    halfway.set()
                if len(got) == 50:
                    enough.set()

        halfway = threading.Event()
        thread = threading.Thread(target=read)
        thread.start()
        assert halfway.wait(60)
        producer = client.producer("events")
        for number in range(30):
            producer.send(b"x", partition=number % 2)
        assert enough.wait(60)
        reader.close()
        thread.join(60)
        assert not thread.is_alive()
    for partition in range(2):
        assert [offset for p, offset in got if p == partition] == list(range(25))
    assert reader.position == {0: 25, 1: 25}
    with pytest.raises(Closed):
        iter(reader)


def test_following_from_the_end_sees_only_what_is_new(client: Client) -> None:
    fill(client)
    short = client.reader("events", start="latest", follow=True, timeout="50ms")
    assert list(short) == []
    assert short.position == {0: 10}
    with client.reader("events", start="latest", follow=True, timeout="60s") as reader:
        client.producer("events").send(b"new").result()
        assert (next(reader).payload, reader.position) == (b"new", {0: 11})


def test_rows_that_were_dropped_are_gone_and_it_says_so(client: Client) -> None:
    fill(client)
    log = client.log("events")
    assert log.truncate(4)[0].earliest == 4
    for follow in (False, True):
        with pytest.raises(Gone) as gone:
            list(client.reader("events", start=2, partition=0, follow=follow, timeout="60s"))
        assert gone.value.details["earliest"] == 4
        assert gone.value.details["partition"] == 0
        assert next(client.reader("events", follow=follow, timeout="60s")).offset == 4
    behind = client.reader("events", start={0: 6})
    assert next(behind).offset == 6
    log.truncate("end")
    assert [each.rows for each in log.describe()] == [0]
    assert list(client.reader("events")) == []


def test_it_reads_on_over_a_checkpoint(client: Client) -> None:
    fill(client, partitions=2)
    reader = client.reader("events")
    first = [next(reader) for _ in range(5)]
    client.checkpoint()
    client.producer("events").send_batch([b"0:10"], partition=0)
    client.checkpoint()
    assert places(first + list(reader)) == every_place(2, 10)
    assert len(list(client.reader("events"))) == 21


def test_a_large_payload_and_many_small_frames(client: Client) -> None:
    client.create_topic("events", kind="log")
    producer = client.producer("events")
    large = [bytes([n]) * 900_000 for n in range(40)]
    assert producer.send_batch(large).all_ok
    for number in range(50):
        producer.send(b"%d" % number).result()
    found = list(client.reader("events"))
    assert [message.payload for message in found[:40]] == large
    assert [message.payload for message in found[40:]] == [b"%d" % n for n in range(50)]


def test_the_client_closes_readers_that_wait(broker: BrokerProcess) -> None:
    client = fasti.connect(broker.address)
    client.create_topic("closing", kind="log")
    reader = client.reader("closing", follow=True)
    reader.begin()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (list(reader), ended.set()))
    thread.start()
    client.close()
    assert ended.wait(60)
    thread.join()


def test_deleting_the_topic_ends_those_who_follow(client: Client) -> None:
    fill(client)
    reader = client.reader("events", follow=True)
    assert [next(reader).offset for _ in range(10)] == list(range(10))
    client.delete_topic("events")
    with pytest.raises(NotFound):
        next(reader)


def test_readers_of_an_event_loop(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(read_in_a_loop(broker.address, tmp_path))


async def endless(reader: Any) -> AsyncIterator[Any]:
    """What a closed reader still gives out."""
    with suppress(StopAsyncIteration):
        while True:
            yield await anext(reader)


async def read_in_a_loop(address: str, tmp_path: Path) -> None:
    for place in (address, f"embedded:{tmp_path}"):
        async with fasti.aio.connect(place) as client:
            await client.create_topic("loop", kind="log", partitions=2)
            producer = client.producer("loop")
            for partition in range(2):
                await producer.send_batch([b"x"] * 10, partition=partition)
            found = [message async for message in client.reader("loop")]
            assert places(found) == every_place(2, 10)
            tables = [table async for table in client.reader("loop").batches(7)]
            assert [table.num_rows for table in tables] == [7, 3, 7, 3]
            async with client.reader("loop", start="latest", follow=True) as reader:
                waiting = asyncio.ensure_future(anext(reader))
                # A task that is cancelled while it waits has taken nothing.
                await asyncio.sleep(0)
                waiting.cancel()
                await producer.send(b"one", partition=1)
                message = await anext(reader)
                assert (message.payload, message.partition, message.offset) == (b"one", 1, 10)
                assert reader.position == {0: 10, 1: 11}
            assert [message async for message in endless(reader)] == []
            log = client.log("loop")
            assert [each.end for each in await log.describe()] == [10, 11]
            assert [each.earliest for each in await log.truncate(5, partition=0)] == [5, 0]
            assert await log.offset_at(datetime.now(UTC) + timedelta(days=1)) == {0: 10, 1: 11}
            await client.delete_topic("loop")
