"""The service asks its placement for every shard: two shards behind one service, by topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fasti.broker.caller import EMBEDDED
from fasti.broker.metrics.counts import Metrics
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.client.client import Client
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.errors import Gone
from fasti.protocol.feed_name import FeedName
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles

SETTINGS = ShardSettings(segment_bytes=1 << 18, memory_bytes=64 << 20, leases_max=4096)


class ByName:
    """Topics whose names begin with `far` are on the second shard."""

    def __init__(self, near: Shard, far: Shard) -> None:
        self.catalogue, self.far = near, far
        self.settings, self.clock = near.settings, near.clock

    def shard_of(self, topic: str, partition: int = 0) -> Shard:
        return self.far if topic.startswith("far") else self.catalogue

    def shards(self) -> Sequence[Shard]:
        return self.catalogue, self.far


@pytest.fixture
def placement(tmp_path: Path) -> Iterator[ByName]:
    near, far = (
        Shard(FileStorage(LocalFiles(tmp_path / name)), SETTINGS, name=name)
        for name in ("near", "far")
    )
    yield ByName(near, far)
    near.close(checkpoint=False)
    far.close(checkpoint=False)


@pytest.fixture
def service(placement: ByName) -> Iterator[Service]:
    made = Service(placement, Metrics())
    yield made
    made.close()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(EmbeddedTransport(service=service)) as made:
        yield made


def names(shard: Shard) -> set[str]:
    return {name for name in shard.engine.state.by_name if not name.startswith("_")}


def test_a_topic_lives_on_its_shard_alone(placement: ByName, client: Client) -> None:
    for name in ("near", "far"):
        client.create_topic(name)
        client.producer(name).send(b"x", key="k").result()
        with client.consumer(name) as consumer:
            message = next(iter(consumer))
            assert bytes(message.payload) == b"x"
            message.ack()
        client.producer(name).send(b"later", key="k", delay="1h").result()
        assert client.messages(name).get(key="k")["state"] == "scheduled"
        assert len(client.messages(name).list()) == 1
        client.messages(name).cancel(key="k")
        client.pause_topic(name)
    assert (names(placement.catalogue), names(placement.far)) == ({"near"}, {"far"})
    assert {topic.name: topic.paused for topic in client.topics()} == {"near": True, "far": True}
    client.delete_topic("far")
    assert (names(placement.catalogue), names(placement.far)) == ({"near"}, set())


def test_every_kind_is_read_where_it_is(placement: ByName, client: Client) -> None:
    client.create_topic("far-log", kind="log")
    client.producer("far-log").send(b"row").result()
    with client.reader("far-log", follow=False) as reader:
        assert [bytes(row.payload) for row in reader] == [b"row"]
    client.create_topic("far-kv", kind="kv")
    entries = client.kv("far-kv")
    entries.put("a", b"1")
    assert entries.get("a").value == b"1"
    assert [batch.column("key").to_pylist() for batch in entries.scan()] == [["a"]]
    client.create_topic("far-cron", kind="cron")
    client.create_topic("far-jobs")
    client.schedules("far-cron").put("hourly", target="far-jobs", cron="0 * * * *")
    assert client.schedules("far-cron").get("hourly").target == "far-jobs"
    client.bindings("far-jobs").add("a.>", "far-log")
    client.producer("far-jobs").send(b"routed", subject="a.b").result()
    assert names(placement.catalogue) == set()


def test_calls_about_everything_go_over_all_shards(
    placement: ByName, service: Service, client: Client
) -> None:
    client.create_topic("near")
    client.create_topic("far")
    assert set(service.topics()) == {"near", "far"}
    assert client.health()["ready"]
    client.transport.call("checkpoint", {})
    assert [shard.store.manifest.position > 0 for shard in placement.shards()] == [True, True]
    text = service.call(EMBEDDED, "metrics", {"version": 1})[0]["text"]
    assert 'topic="near"' in text
    assert 'topic="far"' in text
    placement.far.close(checkpoint=False)
    assert not client.health()["ready"]


def test_a_transaction_is_decided_where_its_first_part_is(
    placement: ByName, client: Client
) -> None:
    client.create_topic("far")
    client.create_topic("far-too")
    with client.transaction() as transaction:
        transaction.send("far", b"x")
        transaction.send("far-too", b"y")
    assert [topic.counts["ready"] for topic in client.topics()] == [1, 1]


def test_a_feed_is_read_by_the_name_of_its_shard_and_of_its_life(
    placement: ByName, client: Client
) -> None:
    client.create_topic("far")
    name = placement.far.feed_name
    assert (name.shard, str(name)) == ("far", f"far.{name.incarnation}")
    rows = list(client.transport.read({"call": "changes", "shard": str(name)}))
    assert "far" in [topic for batch in rows for topic in batch.column("topic").to_pylist()]
    other_life = str(FeedName("far", "0" * 16))
    with pytest.raises(Gone, match=f"this is shard {name}. Its journal was begun anew") as gone:
        client.transport.call("feed", {"shard": other_life, "after": 0})
    assert gone.value.details["shard"] == str(name)
    with pytest.raises(Gone, match="do not belong here: this is shard near") as gone:
        client.transport.call("feed", {"shard": "elsewhere.0000000000000000", "after": 0})
    assert "begun anew" not in gone.value.message
    with pytest.raises(Gone, match="older version"):
        client.transport.call("feed", {"shard": "0" * 16, "after": 0})
