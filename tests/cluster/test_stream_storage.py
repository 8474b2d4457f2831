"""Whole shards on NATS: what one broker was told, the next one has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.errors import Fenced, InvalidArgument
from tests.cluster.nats_rig import new_cluster
from tests.cluster.stream_rig import PATIENT
from tests.integration.shard_rig import NOW_US, SETTINGS, make_topic, produce, shown

SMALL = {"journal_bytes": 64 << 20, "reserve_bytes": 8 << 20, "blocks_bytes": 64 << 20}


@pytest.fixture
def settings(nats: NatsConnection, tmp_path: Path) -> Iterator[StreamSettings]:
    name = new_cluster()
    yield StreamSettings(
        name, **SMALL, grace_s=0, timeouts=PATIENT, cache_directory=tmp_path, cache_bytes=8 << 20
    )
    for kind in "jbp":
        nats.delete_stream(f"{name}-{kind}-0")


def open_shard(nats: NatsConnection, settings: StreamSettings, broker: str) -> Shard:
    return Shard(StreamStorage(nats, settings, 0, broker, f"{broker}:1"), SETTINGS)


def lease_and_ack(shard: Shard, count: int) -> set[int]:
    """The ids of messages that were leased and acked."""
    session = shard.open_session()
    session.lease("t", "consumer", count)
    acked: set[int] = set()
    while len(acked) < count:
        delivery = session.receive(60)
        assert delivery is not None
        ids = delivery.leased.ids
        tokens = np.full(len(ids), delivery.leased.token)
        assert shard.call(co.Ack("t", ids, tokens), 10).all_ok
        acked |= set(ids.tolist())
    session.close()
    return acked


def test_a_shard_goes_from_broker_to_broker_and_nothing_is_lost(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = open_shard(nats, settings, "first")
    make_topic(shard)
    payloads = [b"payload %d" % number * 50 for number in range(300)]
    ids = produce(shard, *payloads[:200])
    acked = lease_and_ack(shard, 50)
    shard.checkpoint()
    ids += produce(shard, *payloads[200:])
    acked |= lease_and_ack(shard, 30)
    expected = {id_: text for id_, text in zip(ids, payloads, strict=True) if id_ not in acked}
    assert shown(shard) == expected
    shard.close(checkpoint=False)

    shard = open_shard(nats, settings, "second")
    assert shown(shard) == expected
    acked = lease_and_ack(shard, 10)
    shard.checkpoint()
    shard.close()

    shard = open_shard(nats, settings, "third")
    assert shown(shard) == {id_: text for id_, text in expected.items() if id_ not in acked}
    assert shard.store.journal.epoch == 3
    shard.close()


def test_a_shard_that_another_broker_took_is_fenced_and_stays_so(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    first = StreamStorage(nats, settings, 0, "first")
    shard = Shard(first, SETTINGS)
    make_topic(shard)
    ids = produce(shard, b"one")
    other = open_shard(nats, settings, "second")
    # Nothing that the first one answers is lost: it can't answer any more.
    answer = shard.submit([co.Cancel("t", co.Target(ids=np.array(ids)))])
    with pytest.raises(Exception, match=r"another broker|closed|storage failed"):
        answer.result(60)
    shard.close(checkpoint=False)
    with pytest.raises(Fenced):
        first.open(ShardSettings())
    assert shown(other) == {ids[0]: b"one"}
    other.close()


def test_a_shard_that_is_opened_again_does_not_depose_another_leader(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    """As after an outage of NATS: the first one has not heard that it is fenced."""
    first = StreamStorage(nats, settings, 0, "first")
    first.open(ShardSettings()).close()
    other = open_shard(nats, settings, "second")
    for _ in range(2):
        with pytest.raises(Fenced, match="second"):
            first.open(ShardSettings())
    make_topic(other)
    assert produce(other, b"one")
    other.close()


def test_two_clusters_under_one_nats_do_not_meet(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    other = StreamSettings(new_cluster(), **SMALL, timeouts=PATIENT)
    shards = [open_shard(nats, settings, "same"), open_shard(nats, other, "same")]
    for number, shard in enumerate(shards):
        make_topic(shard)
        produce(shard, b"of cluster %d" % number, due_us=NOW_US)
        shard.checkpoint()
    for number, shard in enumerate(shards):
        assert list(shown(shard).values()) == [b"of cluster %d" % number]
        shard.close()
    for kind in "jbp":
        nats.delete_stream(f"{other.cluster}-{kind}-0")


def test_streams_with_other_settings_are_refused(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    StreamStorage(nats, settings, 0, "broker").ensure_streams()
    other = StreamSettings(settings.cluster, **{**SMALL, "journal_bytes": 32 << 20})
    with pytest.raises(InvalidArgument, match="max_bytes") as caught:
        StreamStorage(nats, other, 0, "broker").ensure_streams()
    assert caught.value.field == "max_bytes"
    for bad in ("", "a.b", "a b", "a*"):
        with pytest.raises(InvalidArgument):
            StreamStorage(nats, StreamSettings(bad), 0, "broker")
