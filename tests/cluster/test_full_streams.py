"""Shards whose streams are full: what grows them is refused, what frees room goes on, and then there is room."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection
from fasti.cluster.patience import Timeouts
from fasti.cluster.server_room import ServerRoom
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import NoQuorum, StorageFull
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.integration.shard_rig import SETTINGS, cancel, make_topic, produce, shown

TIMES = Timeouts(call_s=1.0, open_s=60.0)


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsServers]:
    made = NatsServers(1)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def a_shard(nats: NatsConnection, **bounds: int) -> Iterator[tuple[Shard, StreamSettings]]:
    settings = StreamSettings(new_cluster(), replicas=1, grace_s=0, timeouts=TIMES, **bounds)
    shard = Shard(StreamStorage(nats, settings, 0, "broker"), SETTINGS)
    try:
        make_topic(shard)
        yield shard, settings
    finally:
        shard.close(checkpoint=False)


def fill(shard: Shard, after: Callable[[], Any] = lambda: None) -> list[int]:
    """Produces until it is refused for want of room: the ids."""
    ids: list[int] = []
    for _ in range(1_000):
        try:
            ids += produce(shard, os.urandom(50_000))
        except StorageFull:
            return ids
        after()
    pytest.fail("it never got full")


def has_room(shard: Shard) -> bool:
    try:
        produce(shard, os.urandom(50_000))
        return True
    except StorageFull:
        return False


def test_what_a_shard_writes_counts_until_the_servers_tell_of_it(nats: NatsConnection) -> None:
    room, bound = ServerRoom(1), 32 << 20
    settings = StreamSettings(
        new_cluster(),
        replicas=1,
        timeouts=TIMES,
        journal_bytes=bound,
        blocks_bytes=bound,
        reserve_bytes=1 << 20,
    )
    shard = Shard(StreamStorage(nats, settings, 0, "broker", server_room=room), SETTINGS)
    try:
        make_topic(shard)
        for write in (lambda: produce(shard, os.urandom(500_000)), shard.checkpoint):
            before = room.written_bytes
            write()
            assert room.written_bytes - before > 500_000
    finally:
        shard.close(checkpoint=False)


def test_a_full_journal_refuses_messages_and_takes_acks_until_a_checkpoint_frees_it(
    nats: NatsConnection,
) -> None:
    bounds = {"journal_bytes": 2 << 20, "reserve_bytes": 256 << 10, "blocks_bytes": -1}
    with a_shard(nats, **bounds) as (shard, _):
        ids = fill(shard)
        assert len(ids) > 20
        assert cancel(shard, *ids[:10]).all_ok
        with pytest.raises(StorageFull, match="the journal's stream takes"):
            produce(shard, os.urandom(50_000))
        # Nobody asks for a checkpoint: a shard without room makes one.
        wait_until(lambda: has_room(shard), "room")
        assert set(ids[10:]) < shown(shard).keys()
        assert shard.recoveries == 0


def test_full_blocks_refuse_messages_and_take_acks_until_these_have_freed_them(
    nats: NatsConnection,
) -> None:
    bounds = {"journal_bytes": 64 << 20, "reserve_bytes": 4 << 20, "blocks_bytes": 4 << 20}
    with a_shard(nats, **bounds) as (shard, _):
        ids = fill(shard, shard.checkpoint)
        assert len(ids) > 40
        with pytest.raises(StorageFull, match="the stream of the blocks takes"):
            produce(shard, os.urandom(50_000))
        assert cancel(shard, *ids[:-2]).all_ok
        wait_until(lambda: has_room(shard), "room")
        assert set(ids[-2:]) < shown(shard).keys()
        assert shard.recoveries == 0


def test_a_checkpoint_without_room_is_given_up_and_leaves_nothing(nats: NatsConnection) -> None:
    bounds = {"journal_bytes": 64 << 20, "reserve_bytes": 4 << 20, "blocks_bytes": 2 << 20}
    with a_shard(nats, **bounds) as (shard, settings):
        ids = [id_ for _ in range(60) for id_ in produce(shard, os.urandom(50_000))]
        for _ in range(3):
            with pytest.raises(StorageFull):
                shard.checkpoint()
        state = nats.stream_state(f"{settings.cluster}-b-0")
        assert state is not None
        assert state.size_bytes < 100_000
        assert cancel(shard, *ids[:-2]).all_ok
        shard.checkpoint()
        assert list(shown(shard)) == ids[-2:]


def change_bound(nats: NatsConnection, stream: str, bytes_max: int) -> None:
    """What an operator may do under a broker."""
    state = nats.stream_state(stream)
    assert state is not None
    config = json.dumps({**state.config, "max_bytes": bytes_max}).encode()
    assert b"error" not in nats.ask(f"$JS.API.STREAM.UPDATE.{stream}", config, 5)


def test_messages_are_told_that_there_is_no_room_when_the_server_refuses_a_pack(
    nats: NatsConnection,
) -> None:
    bounds = {"journal_bytes": 64 << 20, "reserve_bytes": 4 << 20, "blocks_bytes": -1}
    with a_shard(nats, **bounds) as (shard, settings):
        (first,) = produce(shard, os.urandom(50_000))
        stream = f"{settings.cluster}-j-0"
        change_bound(nats, stream, 100_000)
        # It is decided, and waits in the pack that the server refuses: it will be there, once.
        waits = shard.submit([_message(shard)])
        wait_until(lambda: shard.committer.no_quorum is not None, "a server without room")
        with pytest.raises(StorageFull, match="maximum bytes"):
            produce(shard, b"x")
        with pytest.raises(NoQuorum):
            cancel(shard, first)
        change_bound(nats, stream, 64 << 20)
        assert waits.result(60)[0].all_ok
        assert cancel(shard, first).all_ok
        assert len(shown(shard)) == 1
        assert shard.recoveries == 0


def _message(shard: Shard) -> Any:
    rows = Rows.of([os.urandom(100_000)])
    return co.Produce("t", rows, co.When(due_us=0), keys=rows.keys(shard.store.seed))
