"""NATS servers that are killed under a journal: one of three, and two of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection
from fasti.cluster.patience import Timeouts
from fasti.cluster.stream_journal import StreamJournal
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.errors import FastiError, NoQuorum
from fasti.storage.frames import Frame
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.cluster.stream_rig import ShardStreams
from tests.integration.shard_rig import SETTINGS, make_topic, produce, shown


@pytest.fixture
def own_servers() -> Iterator[NatsServers]:
    servers = NatsServers(3)
    try:
        yield servers
    finally:
        servers.close()


def append(journal: StreamJournal, sequence: int) -> None:
    journal.append([Frame(sequence, sequence, True, True, [b"body %d" % sequence])])
    journal.sync()


def sequences(journal: StreamJournal) -> list[int]:
    return [frame.sequence for frame in journal.replay(0)]


def healed(journal: StreamJournal) -> bool:
    try:
        journal.sync()
    except NoQuorum:
        return False
    return True


def test_a_lost_follower_is_not_missed_and_a_lost_majority_heals(own_servers: NatsServers) -> None:
    connection = own_servers.connect()
    streams = ShardStreams(connection, timeouts=Timeouts(call_s=1.0, open_s=60.0))
    journal = streams.open_journal()
    append(journal, 1)
    state = connection.stream_state(streams.names.journal_stream)
    assert state is not None
    leader = int(state.leader.removeprefix("n"))
    first, second = (number for number in range(3) if number != leader)
    own_servers.kill(first)
    journal.append([Frame(2, 2, True, True, [b"body 2"])])
    # The connection may have been to that one.
    assert wait_until(lambda: healed(journal), "an append without a follower")
    own_servers.kill(second)
    journal.append([Frame(3, 3, True, True, [b"body 3"])])
    with pytest.raises(NoQuorum) as caught:
        journal.sync()
    assert caught.value.retry_after_us
    assert (journal.synced_sequence, journal.last_sequence) == (2, 3)
    own_servers.start(first)
    own_servers.start(second)
    assert wait_until(lambda: healed(journal), "a majority")
    assert sequences(journal) == [1, 2, 3]
    again = streams.open_journal("other")
    assert sequences(again) == [1, 2, 3]
    connection.close()


def try_produce(shard: Shard, payload: bytes) -> list[int]:
    try:
        return produce(shard, payload)
    except FastiError:
        return []


def test_a_shard_heals_by_itself_when_the_majority_is_back(own_servers: NatsServers) -> None:
    connection = own_servers.connect()
    settings = StreamSettings(
        new_cluster(),
        journal_bytes=64 << 20,
        reserve_bytes=8 << 20,
        blocks_bytes=64 << 20,
        timeouts=Timeouts(call_s=1.0, open_s=1.0),
    )
    StreamStorage(connection, settings, 0, "broker").ensure_streams()
    shard: Shard = wait_until(lambda: try_open(connection, settings), "a leader of the streams")
    make_topic(shard)
    ids = produce(shard, b"before")
    for number in (1, 2):
        own_servers.kill(number)
    # It is not answered as done; whether it happened is found out later.
    assert try_produce(shard, b"meanwhile") == []
    for number in (1, 2):
        own_servers.start(number)
    ids += wait_until(lambda: try_produce(shard, b"after"), "the shard")
    found = shown(shard)
    assert [found[id_] for id_ in ids] == [b"before", b"after"]
    assert set(found.values()) - {b"meanwhile"} == {b"before", b"after"}
    shard.close(checkpoint=False)
    connection.close()


def try_open(connection: NatsConnection, settings: StreamSettings) -> Shard | None:
    try:
        return Shard(StreamStorage(connection, settings, 0, "broker"), SETTINGS)
    except NoQuorum:
        return None
