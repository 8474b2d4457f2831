"""Following logs inside the broker: who is woken, who is refused, and what a slow reader costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fasti.broker.caller import EMBEDDED
from fasti.broker.feed import Feed
from fasti.broker.log import follow as log_follow
from fasti.client.client import Client
from fasti.core.log.commands import ReadLog
from fasti.core.log.events import LogAppended
from fasti.core.replies import Frame
from fasti.errors import Gone, Overloaded, Unavailable
from fasti.runtime import SystemRuntime
from fasti.testing import VirtualBroker


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> Client:
    made = broker.client()
    made.create_topic("events", kind="log", partitions=2, segment_age="1h")
    return made


def follower(broker: VirtualBroker, **place: Any) -> Any:
    return broker.service.exchange(
        EMBEDDED, {"version": 1, "call": "follow", "topic": "events", **place}
    )


def appended(topic: int) -> Frame:
    return Frame(1, [LogAppended(0, topic, 0, 0, 1, [0])], None)  # type: ignore[arg-type]


# The feed


def test_a_topic_that_grows_wakes_those_who_follow_it() -> None:
    feed = Feed(SystemRuntime())
    followed, other = feed.follow(7), feed.follow(8)
    seen, unseen = followed.seen, other.seen
    feed.durable([appended(7)])
    assert followed.wait(seen, 0, lambda: False) is True
    assert (followed.grown(0, seen), followed.grown(1, seen)) == (True, False)
    assert other.wait(unseen, 0, lambda: False) is False
    assert other.wait(unseen, 60, lambda: True) is True
    feed.reset()
    assert other.wait(unseen, 0, lambda: False) is True
    assert other.grown(5, unseen) is True
    # Waking those who wait is no growth.
    seen = followed.seen
    followed.wake()
    assert followed.wait(seen, 0, lambda: False) is False


def test_what_grows_between_looking_and_waiting_is_not_missed() -> None:
    feed = Feed(SystemRuntime())
    followed = feed.follow(7)
    woken = threading.Event()
    seen = followed.seen
    thread = threading.Thread(target=lambda: followed.wait(seen, 30, lambda: False) and woken.set())
    feed.durable([appended(7)])
    thread.start()
    assert woken.wait(60)
    thread.join()


def test_who_follows_is_counted() -> None:
    feed = Feed(SystemRuntime())
    first = feed.follow(7)
    feed.follow(7)
    feed.unfollow(first)
    feed.follow(9)
    assert feed.watchers == 2


# Followers


def test_followers_are_counted_and_refused_by_the_broker() -> None:
    from fasti.testing.virtual import _SETTINGS

    limits = replace(_SETTINGS.limits, watchers_max=1)
    with VirtualBroker(settings=replace(_SETTINGS, limits=limits)) as broker:
        broker.client().create_topic("events", kind="log")
        session = follower(broker)
        with pytest.raises(Overloaded):
            follower(broker)
        broker.service.leave(session)
        assert broker.shard.feed.watchers == 0
        broker.service.leave(follower(broker))


def test_it_says_idle_when_nothing_comes(
    broker: VirtualBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follow, "IDLE_S", 0.001)
    session = follower(broker)
    assert session.next() == ({"kind": "idle", "now_us": broker.clock.now_us()}, None)
    client.producer("events").send_batch([b"x"] * 3, partition=1)
    while (written := session.next())[0]["kind"] == "idle":
        pass
    header, batch = written
    assert (header["kind"], header["partition"], header["end"]) == ("rows", 1, 3)
    assert batch.column("offset").to_pylist() == [0, 1, 2]
    session.finish()
    assert session.next() is None
    broker.service.leave(session)


def test_only_partitions_that_have_grown_are_looked_at(
    broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = broker.client()
    client.create_topic("wide", kind="log", partitions=200)
    session = broker.service.exchange(EMBEDDED, {"version": 1, "call": "follow", "topic": "wide"})
    producer = client.producer("wide")
    producer.send(b"first", partition=7).result()
    assert session.next()[0]["partition"] == 7
    reads: list[int] = []
    command = broker.service.command

    def counted(asked: Any) -> Any:
        if isinstance(asked, ReadLog):
            reads.append(asked.partition)
        return command(asked)

    monkeypatch.setattr(broker.service, "command", counted)
    for partition in (150, 3):
        producer.send(b"more", partition=partition).result()
        assert session.next()[0]["partition"] == partition
    # The rest of the first round, and then one for each.
    assert reads.count(150) + reads.count(3) <= 4
    assert len(reads) < 2 * 200
    reads.clear()
    producer.send(b"more", partition=150).result()
    assert session.next()[0]["partition"] == 150
    assert set(reads) <= {3, 150}
    broker.service.leave(session)


def test_a_reader_that_retention_overtakes_is_told(broker: VirtualBroker, client: Client) -> None:
    producer = client.producer("events")
    producer.send_batch([b"old"] * 5, partition=0)
    session = follower(broker, offsets={"0": 2})
    broker.advance("2h")
    producer.send_batch([b"new"] * 5, partition=0)
    assert client.log("events").describe()[0].earliest == 5
    header, batch = session.next()
    assert batch is None
    assert header["error"]["code"] == "gone"
    assert header["error"]["details"]["earliest"] == 5
    assert session.next() is None
    broker.service.leave(session)
    # One that was told to begin at the earliest row has lost nothing.
    assert [row.payload for row in client.reader("events")] == [b"new"] * 5


def test_retention_by_age_and_the_groups_that_were_too_slow(
    broker: VirtualBroker, client: Client
) -> None:
    client.producer("events").send_batch([b"old"] * 5, partition=0)
    groups = client.groups("events")
    groups.create("slow")
    broker.advance("59m")
    assert groups.lag("slow") == 5
    broker.advance("2m")
    group = groups.describe("slow")
    assert (group.lag, group.behind) == (0, 5)
    with pytest.raises(Gone, match="slow"):
        next(client.consumer("events", group="slow"))
    assert groups.reset("slow", to="earliest").behind == 0
    client.producer("events").send(b"new", partition=0).result()
    with client.consumer("events", group="slow", timeout="60s") as consumer:
        message = next(consumer)
        assert (message.payload, message.offset) == (b"new", 5)
        message.ack()
    broker.settle()


def test_a_long_read_ends_when_the_broker_stops(broker: VirtualBroker, client: Client) -> None:
    producer = client.producer("events")
    for partition in range(2):
        producer.send_batch([b"x"] * 5, partition=partition)
    ticket = {"version": 1, "call": "log", "topic": "events"}
    _, batches = broker.service.read(EMBEDDED, ticket)
    assert next(batches).num_rows == 5
    broker.service.begin_stopping()
    with pytest.raises(Unavailable):
        next(batches)


def test_a_broker_that_stops_tells_those_who_follow(broker: VirtualBroker, client: Client) -> None:
    session = follower(broker)
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(session.next()))
    thread.start()
    broker.service.begin_stopping()
    thread.join(60)
    ((header, batch),) = told
    assert (header["error"]["code"], batch) == ("closed", None)
    broker.service.leave(session)
