"""Producers and consumers over four shards of an embedded broker, in threads and in a loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.client.client import Client
from fasti.errors import CrossShard, Fenced, NotFound
from fasti.model import SEQUENCE_BITS

SHARDS = 4


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with fasti.connect(f"embedded:{tmp_path}/data", shards=SHARDS) as client:
        yield client


def shards_of(client: Client, topic: str, ids: list[int]) -> set[int]:
    layout = client.transport.layout(topic)
    return {layout.shard_of(id >> SEQUENCE_BITS) for id in ids}


def test_sends_with_keys_keep_their_order(client: Client) -> None:
    client.create_topic("t", partitions=8)
    with client.producer("t") as producer:
        receipts = [
            producer.send(b"%d" % n, headers={"name": f"k{n % 10}"}, key=f"k{n % 10}-{n // 10}")
            for n in range(500)
        ]
    ids = [receipt.result().id for receipt in receipts]
    assert len(set(ids)) == 500
    assert shards_of(client, "t", ids) == set(range(SHARDS))
    taken = []
    with client.consumer("t", timeout="10s") as consumer:
        for message in consumer:
            taken.append(int(message.payload))
            message.ack()
            if len(taken) == 500:
                break
    assert sorted(taken) == list(range(500))


def test_order_per_key_in_a_log(client: Client) -> None:
    """In a log keys only choose the partition: each key's messages come in the order of their sends."""
    client.create_topic("log", kind="log", partitions=8)
    with client.producer("log") as producer:
        for n in range(400):
            producer.send(b"%d" % n, key=f"k{n % 7}")
    by_key: dict[str | None, list[int]] = defaultdict(list)
    with client.consumer("log", group="g", timeout="10s") as consumer:
        for count, message in enumerate(consumer, start=1):
            by_key[message.key].append(int(message.payload))
            message.ack()
            if count == 400:
                break
    assert sum(map(len, by_key.values())) == 400
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_sends_without_keys_are_spread(client: Client) -> None:
    client.create_topic("t", partitions=4)
    with client.producer("t") as producer:
        receipts = [producer.send(b"x") for _ in range(12_000)]
        ids = [receipt.result().id for receipt in receipts]
    assert shards_of(client, "t", ids) == set(range(SHARDS))
    layout = client.transport.layout("t")
    counts = Counter(layout.shard_of(id >> SEQUENCE_BITS) for id in ids)
    assert min(counts.values()) >= 1_000


def test_the_outcomes_of_a_batch_are_in_the_order_of_its_rows(client: Client) -> None:
    client.create_topic("t", partitions=8)
    keys = [f"key-{n}" for n in range(300)]
    producer = client.producer("t")
    outcomes = producer.send_batch([key.encode() for key in keys], key=keys, delay="1h")
    assert outcomes.all_ok
    again = producer.send_batch(
        pa.table({"payload": [b"again"] * 3, "key": [keys[7], "new", keys[250]]}), delay="1h"
    )
    assert again.status == ["conflict", "ok", "conflict"]
    for row in (0, 7, 150, 299):
        found = client.messages("t").get(key=keys[row])
        assert found is not None
        assert found["id"] == outcomes.ids[row]


def test_a_batch_without_keys_goes_in_whole_pieces(client: Client) -> None:
    client.create_topic("t", partitions=4)
    producer = client.producer("t")
    ids = [producer.send_batch([b"x"] * 10).ids.tolist() for _ in range(SHARDS)]
    assert all(len(shards_of(client, "t", batch)) == 1 for batch in ids)
    assert shards_of(client, "t", [id for batch in ids for id in batch]) == set(range(SHARDS))


def test_an_atomic_batch_over_shards_is_refused(client: Client) -> None:
    client.create_topic("t", partitions=8)
    keys = [f"key-{n}" for n in range(20)]
    producer = client.producer("t")
    with pytest.raises(CrossShard, match="width=1"):
        producer.send_batch([b"x"] * 20, key=keys, atomic=True)
    assert producer.send_batch([b"x"] * 20, atomic=True).all_ok
    client.create_topic("narrow", partitions=8, width=1)
    assert client.producer("narrow").send_batch([b"x"] * 20, key=keys, atomic=True).all_ok


def test_a_missing_topic_is_told_by_the_receipt(client: Client) -> None:
    with pytest.raises(NotFound):
        client.producer("missing").send(b"x", key="k").result()


def test_a_topic_that_was_made_anew_on_other_shards(client: Client) -> None:
    client.create_topic("t", partitions=4)
    producer = client.producer("t")
    keys = [f"key-{n}" for n in range(50)]
    assert producer.send_batch([b"x"] * 50, key=keys).all_ok
    client.delete_topic("t")
    client.create_topic("t", partitions=3, home="elsewhere")
    outcomes = producer.send_batch([b"y"] * 50, key=keys)
    assert outcomes.all_ok
    receipts = [producer.send(b"z", key=f"other-{n}") for n in range(50)]
    assert all(receipt.result().ok for receipt in receipts)
    producer.flush()
    assert producer.failed == 0
    layout = client.transport.layout("t")
    for key, id in zip(keys, outcomes.ids.tolist(), strict=True):
        assert layout.shard_of_key(key) == layout.shard_of(id >> SEQUENCE_BITS)


def test_ack_nack_and_delivery_again(client: Client) -> None:
    client.create_topic("t", partitions=8, retry=fasti.Backoff("1ms", factor=1), max_attempts=5)
    with client.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(200)], key=[f"k{n}" for n in range(200)])
    attempts: dict[int, list[int]] = defaultdict(list)
    finished = 0
    with client.consumer("t", timeout="10s") as consumer:
        for message in consumer:
            number = int(message.payload)
            attempts[number].append(message.attempts)
            if number % 3 == 0 and message.attempts == 1:
                message.nack("again")
                continue
            assert message.ack(wait=True).ok
            finished += 1
            if finished == 200:
                break
    assert all(found == ([1, 2] if number % 3 == 0 else [1]) for number, found in attempts.items())
    assert client.messages("t").count()["done"] == 200


def test_batches_over_shards(client: Client) -> None:
    client.create_topic("t", partitions=8)
    with client.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(3_000)], key=[f"k{n}" for n in range(3_000)])
    seen: list[int] = []
    with client.consumer("t", timeout="10s") as consumer:
        for batch in consumer.batches(1_000):
            payloads = [int(payload) for payload in batch.table["payload"].to_pylist()]
            odd = [number % 2 == 1 for number in payloads]
            outcomes = batch.ack(pa.array(odd), wait=True)
            assert outcomes.all_ok
            ids = batch.table["id"].to_numpy()[odd]
            assert outcomes.ids.tolist() == ids.tolist()
            rest = batch.ack(wait=True)
            assert rest.all_ok
            seen += payloads
            if len(seen) == 3_000:
                break
    assert sorted(seen) == list(range(3_000))


def test_the_same_name_on_another_consumer_ends_the_first(client: Client) -> None:
    client.create_topic("t", partitions=4)
    with client.producer("t") as producer:
        producer.send_batch([b"x"] * 8, key=[f"k{n}" for n in range(8)])
    first = client.consumer("t", name="worker")
    held = first.take(1, timeout="10s")
    assert held
    second = client.consumer("t", name="worker", timeout="10s")
    taken = [next(second) for _ in range(8)]
    with pytest.raises(Fenced):
        list(first)
    assert len({message.id for message in taken}) == 8
    for message in taken:
        assert message.ack(wait=True).ok
    second.close()


def test_stop_gives_back_what_was_not_begun(client: Client) -> None:
    client.create_topic("t", partitions=4)
    with client.producer("t") as producer:
        producer.send_batch([b"x"] * 40, key=[f"k{n}" for n in range(40)])
    consumer = client.consumer("t", prefetch=20)
    message = next(consumer)
    consumer.stop()
    assert list(consumer) == []
    message.ack()
    consumer.close()
    with client.consumer("t", timeout="10s", prefetch=64) as other:
        rest = [next(other) for _ in range(39)]
        assert {message.attempts for message in rest} == {1}
        for message in rest:
            message.ack()


def test_calls_and_their_answers(client: Client) -> None:
    client.create_topic("prices", partitions=8)
    stop = threading.Event()

    def serve() -> None:
        with client.consumer("prices") as consumer:
            while not stop.is_set():
                for message in consumer.take(8, timeout="100ms"):
                    message.reply(b"answer to " + message.payload, wait=False)

    server = threading.Thread(target=serve)
    server.start()
    try:
        for n in range(40):
            answer = client.call("prices", b"%d" % n, key=f"k{n}", timeout="20s")
            assert answer.payload == b"answer to %d" % n
    finally:
        stop.set()
        server.join()


def test_a_transaction_with_a_message_in_hand(client: Client) -> None:
    client.create_topic("orders", partitions=8)
    client.create_topic("receipts", partitions=8)
    client.producer("orders").send(b"x", key="user-7").result()
    with client.consumer("orders", timeout="10s") as consumer:
        message = next(consumer)
        with client.transaction() as tx:
            tx.ack(message)
            tx.send("receipts", b"thanks", key="user-7")
        assert message.finished
    assert client.messages("orders").count()["leased"] == 0
    assert client.messages("receipts").count()["ready"] == 1


def test_an_app_handles_messages_of_all_shards(client: Client) -> None:
    app = fasti.App(client)
    handled: set[int] = set()
    all_handled = threading.Event()

    @app.on("jobs", concurrency=3)
    def handle(number: int) -> None:
        handled.add(number)
        if len(handled) == 200:
            all_handled.set()

    with app:
        for n in range(200):
            handle.later(n, key=f"k{n}")
        assert all_handled.wait(30)


def test_in_a_loop(tmp_path: Path) -> None:
    async def play() -> None:
        async with await fasti.aio.connect(f"embedded:{tmp_path}/data", shards=SHARDS) as client:
            await client.create_topic("t", partitions=8)
            producer = client.producer("t")
            receipts = [await producer.send(b"%d" % n, key=f"k{n}") for n in range(300)]
            assert all([(await receipt).ok for receipt in receipts])
            pending = await producer.send_batch(
                [b"%d" % n for n in range(300, 600)], key=[f"k{n}" for n in range(300, 600)]
            )
            assert pending.all_ok
            await producer.flush()
            seen: list[int] = []
            async with client.consumer("t", timeout="10s") as consumer:
                async for message in consumer:
                    seen.append(int(message.payload))
                    message.ack()
                    if len(seen) == 200:
                        break
                async for batch in consumer.batches(100):
                    seen += [int(payload) for payload in batch.table["payload"].to_pylist()]
                    outcomes = await batch.ack(wait=True)
                    assert outcomes is not None
                    assert outcomes.all_ok
                    if len(seen) == 600:
                        break
            assert sorted(seen) == list(range(600))

    asyncio.run(play())


def test_an_app_in_a_loop_answers_calls(tmp_path: Path) -> None:
    async def play() -> None:
        async with await fasti.aio.connect(f"embedded:{tmp_path}/data", shards=SHARDS) as client:
            app = fasti.aio.App(client)

            @app.on("next", concurrency=4)
            async def following(number: int) -> int:
                return number + 1

            async with app:
                calls = [client.call("next", b"%d" % n, timeout="20s") for n in range(40)]
                answers = await asyncio.gather(*calls)
            assert [int(answer.payload) for answer in answers] == list(range(1, 41))

    asyncio.run(play())


def test_a_timetable_of_an_app(client: Client) -> None:
    app = fasti.App(client)
    called = threading.Event()

    @app.cron("* * * * * *")
    def tick() -> None:
        called.set()

    with app:
        assert called.wait(30)
