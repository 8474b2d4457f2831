"""The threads of producers and consumers over several shards, whose brokers are the test itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fasti.client.consumer import Consumer
from fasti.client.sessions import Sessions
from fasti.client.sharded_producer import ShardedProducer
from fasti.core.layout import Layout
from fasti.errors import (
    Fenced,
    IllegalTransition,
    NoQuorum,
    NotFound,
    Overloaded,
    RowsFailed,
    Unavailable,
    WrongShard,
)
from tests.unit.client.fakes import FakeShards, FakeStream, eventually

SHARDS = 3


@pytest.fixture
def shards() -> FakeShards:
    return FakeShards(Layout(SHARDS, SHARDS))


def answering(stream: FakeStream) -> None:
    """Every batch is accepted at once."""

    def answer(header: object, content: object) -> None:
        rows = getattr(content, "num_rows", 1)
        if "end" not in header:  # type: ignore[operator]
            stream.answer(rows)

    stream.on_send = answer


# Consumers


@pytest.fixture
def consumer(shards: FakeShards) -> Iterator[Consumer]:
    for shard in shards.shards:
        shard.on_open = FakeStream.accept_all
    consumer = Consumer(shards, "t", prefetch=9)
    yield consumer
    consumer.close(timeout="1s")


def begun(consumer: Consumer, shards: FakeShards) -> list[FakeStream]:
    """Its streams, when each shard has credit."""
    consumer.session.start()
    streams = [shard.stream() for shard in shards.shards]
    for stream in streams:
        eventually(lambda stream=stream: credit_of(stream) >= 3)
    return streams


def credit_of(stream: FakeStream) -> int:
    return sum(header.get("count", 0) for header, _ in stream.of("credit"))


def test_messages_of_all_shards_in_due_order(consumer: Consumer, shards: FakeShards) -> None:
    streams = begun(consumer, shards)
    streams[0].lease(1, [1, 2], [100_000, 500_000])
    streams[2].lease(1, [3], [300_000])
    streams[1].lease(1, [4, 5], [200_000, 400_000])
    assert [next(consumer).id for _ in range(5)] == [1, 4, 3, 5, 2]


def test_none_is_early_by_the_clock_of_its_own_broker(
    consumer: Consumer, shards: FakeShards
) -> None:
    """The clock of one broker is behind: its message waits, and holds up no other one."""
    streams = begun(consumer, shards)
    shards.shards[0].clock.at_us = 500_000
    streams[0].lease(1, [1], [600_000])
    streams[1].lease(1, [2], [700_000])
    assert next(consumer).id == 2
    assert consumer.take_now() is None
    shards.shards[0].clock.move_to(600_000)
    assert next(consumer).id == 1


def test_an_ack_goes_to_the_shard_of_its_message(consumer: Consumer, shards: FakeShards) -> None:
    streams = begun(consumer, shards)
    for number, stream in enumerate(streams):
        stream.lease(1, [10 + number], [0])
    for message in [next(consumer) for _ in range(3)]:
        assert message.ack(wait=True).ok
    for number, stream in enumerate(streams):
        [(_, batch)] = stream.of("ack")
        assert batch is not None
        assert batch.column("id").to_pylist() == [10 + number]


def test_the_others_go_on_while_one_shard_is_away(consumer: Consumer, shards: FakeShards) -> None:
    streams = begun(consumer, shards)

    def refuse(stream: FakeStream) -> None:
        raise Unavailable("away")

    streams[1].lease(1, [1], [0])
    held = next(consumer)
    shards.shards[1].on_open = refuse
    streams[1].lose()
    streams[0].lease(1, [2], [0])
    streams[2].lease(1, [3], [0])
    others = [next(consumer), next(consumer)]
    assert {message.id for message in others} == {2, 3}
    for message in others:
        assert message.ack(wait=True).ok

    # It comes back, and knows the lease by another token.
    def resume(stream: FakeStream) -> None:
        stream.accept_all()
        answer = stream.on_send

        def first(header: dict[str, object], batch: object) -> None:
            if header["op"] == "heartbeat":
                stream.lease(7, [1], [0])
            assert answer is not None
            answer(header, batch)  # type: ignore[arg-type]

        stream.on_send = first  # type: ignore[assignment]

    shards.shards[1].on_open = resume
    assert held.ack(wait=True).ok
    stream = shards.shards[1].stream(1)
    [(_, batch)] = stream.of("ack")
    assert batch is not None
    assert batch.column("token").to_pylist() == [7]


@pytest.mark.parametrize("error", [Fenced("another"), NotFound("gone")])
def test_what_ends_one_session_ends_the_consumer(
    consumer: Consumer, shards: FakeShards, error: Fenced | NotFound
) -> None:
    streams = begun(consumer, shards)
    streams[0].lease(1, [1], [0])
    message = next(consumer)
    streams[2].lease(1, [2], [9_000_000])
    streams[1].end(error)
    with pytest.raises(type(error)):
        next(consumer)
    # What was not begun goes back, and what is in hand can be finished.
    eventually(lambda: streams[2].of("release"))
    assert message.ack(wait=True).ok


def test_a_taker_that_waits_is_woken_by_any_shard(consumer: Consumer, shards: FakeShards) -> None:
    streams = begun(consumer, shards)
    taken: list[int] = []
    taker = threading.Thread(target=lambda: taken.append(next(consumer).id))
    taker.start()
    eventually(lambda: consumer.session.holding.takers == 1)
    streams[2].lease(1, [5], [0])
    taker.join()
    assert taken == [5]


def test_a_batch_with_rows_of_several_shards(consumer: Consumer, shards: FakeShards) -> None:
    streams = begun(consumer, shards)
    streams[0].lease(1, [1, 2], [100_000, 400_000])
    streams[1].lease(1, [3], [200_000])
    [batch] = [next(iter(consumer.batches(3, wait="10s")))]
    assert len(batch) == 3
    outcomes = batch.ack(wait=True)
    assert outcomes.all_ok
    assert outcomes.ids.tolist() == batch.table["id"].to_pylist()


def test_a_fork_takes_each_lock_once_and_leaves_the_consumer_to_the_parent(
    consumer: Consumer, shards: FakeShards
) -> None:
    begun(consumer, shards)
    sessions = consumer.session
    assert isinstance(sessions, Sessions)
    things = [sessions, *sessions.sessions]
    locks = [lock for thing in things for lock in thing._fork_locks()]
    assert sessions.lock in locks
    assert len(locks) == len({id(lock) for lock in locks})
    for thing in things:
        thing._forked()
    with pytest.raises(IllegalTransition):
        next(consumer)


# Producers


def test_keys_and_partitions_decide_the_shard(shards: FakeShards) -> None:
    for shard in shards.shards:
        shard.on_open = answering
    producer = ShardedProducer(shards, "t")
    layout = shards.layout_now
    keys = [f"k{n}" for n in range(30)]
    for key in keys:
        producer.send(key.encode(), key=key).result()
    for number in range(SHARDS):
        producer.send(b"p%d" % number, partition=number).result()
    producer.close()
    for number, shard in enumerate(shards.shards):
        rows = [row for stream in shard.streams for row in stream.rows()]
        expected = [key.encode() for key in keys if layout.shard_of_key(key) == number]
        own = [b"p%d" % p for p in range(SHARDS) if layout.shard_of(p) == number]
        assert rows == expected + own
    assert len({shard.streams[0].descriptor["producer"] for shard in shards.shards}) == SHARDS
    assert shards.layouts_asked == 1


def test_a_first_send_waits_for_the_shard_that_knows_the_layout(
    shards: FakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in shards.shards:
        shard.on_open = answering
    away = [NoQuorum("away", retry_after_us=1_000)] * 3
    known = shards.layout

    def layout(topic: str) -> Layout:
        if away:
            raise away.pop()
        return known(topic)

    monkeypatch.setattr(shards, "layout", layout)
    producer = ShardedProducer(shards, "t")
    assert producer.send(b"x", key="k").result("60s").ok
    assert not away
    producer.close()


def test_a_first_send_does_not_wait_for_longer_than_a_call(
    shards: FakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layout(topic: str) -> Layout:
        raise NoQuorum("away", retry_after_us=1_000)

    monkeypatch.setattr(shards, "layout", layout)
    shards.timeout_s = 0.01
    producer = ShardedProducer(shards, "t")
    with pytest.raises(NoQuorum):
        producer.send(b"x", key="k")
    producer.close()


def test_a_lone_sender_keeps_to_one_stream(shards: FakeShards) -> None:
    for shard in shards.shards:
        shard.on_open = answering
    producer = ShardedProducer(shards, "t")
    for _ in range(20):
        producer.send(b"x").result()
    assert sum(len(shard.streams) for shard in shards.shards) == 1
    for _ in range(200):
        producer.send(b"x").result()
    assert [len(shard.streams) for shard in shards.shards] == [1, 1, 1]
    producer.close()


def test_a_shard_that_is_away_gets_no_rows_without_keys(shards: FakeShards) -> None:
    for shard in shards.shards:
        shard.on_open = answering

    def away(stream: FakeStream) -> None:
        raise Unavailable("away")

    shards.shards[1].on_open = away
    producer = ShardedProducer(shards, "t")
    stuck = producer.send(b"stuck", partition=1)
    assert shards.layout_now.shard_of(1) == 1
    box = producer.outbox.sender(1).outbox
    eventually(lambda: box.machine.trouble)
    for _ in range(300):
        producer.send(b"x").result()
    assert not stuck.done
    shards.shards[1].on_open = answering
    assert stuck.result().ok
    producer.close()


def test_the_limits_of_the_buffer_are_for_all_shards(shards: FakeShards) -> None:
    """One shard doesn't answer: the others go on, as far as the buffer that they share goes."""
    for number in (0, 2):
        shards.shards[number].on_open = answering
    producer = ShardedProducer(shards, "t", buffer_rows=10, max_block="50ms")
    for _ in range(9):
        producer.send_batch([b"stuck"], partition=1, wait=False)
    for _ in range(50):
        assert producer.send_batch([b"x"], partition=0).all_ok
    pending = producer.send_batch([b"stuck"], partition=1, wait=False)
    with pytest.raises(Overloaded):
        producer.send_batch([b"x"], partition=0)
    # Room that one shard makes is room for another.
    blocked = ShardedProducer.send_batch
    results: list[bool] = []
    producer.outbox.sender(0).outbox._max_block_s = 30.0
    waiter = threading.Thread(
        target=lambda: results.append(blocked(producer, [b"y"], partition=0).all_ok)
    )
    waiter.start()
    eventually(lambda: producer.outbox.sender(0).outbox._waiting_for_room)
    stream = shards.shards[1].stream()
    eventually(lambda: len(stream.sent) == 8)
    stream.on_send = lambda header, batch: stream.answer(1)
    for _ in range(8):
        stream.answer(1)
    waiter.join()
    assert results == [True]
    assert pending.result(timeout="10s").all_ok
    producer.close()


def test_rows_that_went_to_the_wrong_shard_are_routed_anew(shards: FakeShards) -> None:
    shards.layout_now = Layout(SHARDS, SHARDS, width=1)
    home = shards.layout_now.shard_of(0)

    def wrong(stream: FakeStream) -> None:
        stream.on_send = lambda header, batch: stream.refuse(WrongShard("not here"))

    for number, shard in enumerate(shards.shards):
        shard.on_open = answering if number != home else wrong
    producer = ShardedProducer(shards, "t")
    producer._get_ready()
    # The topic is made anew, elsewhere.
    shards.layout_now = Layout(SHARDS, 8)
    shards.shards[home].on_open = answering_unless_first(wrong)
    keys = [f"k{n}" for n in range(40)]
    outcomes = producer.send_batch([key.encode() for key in keys], key=keys)
    assert outcomes.all_ok
    producer.flush()
    assert producer.failed == 0
    found = {
        row.decode(): number
        for number, shard in enumerate(shards.shards)
        for stream in shard.streams
        if stream.on_send is not None
        for row in stream.rows()
        if not (number == home and stream is shard.streams[0])
    }
    assert found == {key: shards.layout_now.shard_of_key(key) for key in keys}
    producer.close()


def answering_unless_first(first: object) -> object:
    seen: list[FakeStream] = []

    def opened(stream: FakeStream) -> None:
        seen.append(stream)
        if len(seen) == 1:
            first(stream)  # type: ignore[operator]
        else:
            answering(stream)

    return opened


def test_a_failure_over_all_shards_is_told_once(shards: FakeShards) -> None:
    def full(stream: FakeStream) -> None:
        def answer(header: dict[str, object], content: object) -> None:
            if "end" not in header:
                stream.answer(1, status=[["conflict", 1]])

        stream.on_send = answer

    for shard in shards.shards:
        shard.on_open = full
    failures: list[str] = []
    producer = ShardedProducer(shards, "t", on_failure=lambda failure: failures.append("one"))
    for number in range(SHARDS):
        producer.send(b"x", partition=number)
    with pytest.raises(RowsFailed):
        producer.flush()
    assert producer.failed == producer.unread_failures == SHARDS
    producer.close()
