"""NATS servers that are killed under a journal: one of three, and two of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection
from fasti.cluster.patience import Timeouts
from fasti.cluster.stream_journal import StreamJournal
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import NoQuorum
from fasti.storage.frames import Frame
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.cluster.stream_rig import ShardStreams
from tests.integration.shard_rig import NOW_US, SETTINGS, int64s, make_topic, produce, shown

LEASE_US = 1_000_000


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


def produce_command(shard: Shard, payload: bytes) -> co.Produce:
    rows = Rows.of([payload])
    return co.Produce("t", rows, co.When(due_us=NOW_US), keys=rows.keys(shard.store.seed))


def lose_majority(servers: NatsServers) -> None:
    for number in (1, 2):
        servers.kill(number)


def wait_for_stand(shard: Shard) -> None:
    """Nothing becomes durable any more, and leases stand."""
    wait_until(lambda: shard.committer.no_quorum is not None and shard.ticks.stand, "the outage")


def test_a_shard_waits_for_the_majority_with_its_sessions_and_leases(
    own_servers: NatsServers,
) -> None:
    """Two of three are away for longer than a lease lasts."""
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
    make_topic(shard, lease_us=LEASE_US)
    engine = shard.engine
    (first,) = produce(shard, b"before")
    holder, other = shard.open_session(), shard.open_session()
    holder.lease("t", "holder", 1)
    held = holder.receive(60)
    assert held is not None
    other.lease("t", "other", 1)
    lose_majority(own_servers)
    answer = shard.submit([produce_command(shard, b"meanwhile")])
    wait_for_stand(shard)
    with pytest.raises(NoQuorum):
        produce(shard, b"refused")
    ended = shard.runtime.clock.tick() + LEASE_US
    wait_until(lambda: shard.runtime.clock.tick() > ended, "the end of a lease")
    assert not answer.done()
    for number in (1, 2):
        own_servers.start(number)
    (reply,) = answer.result(60)
    assert reply.all_ok
    # The lease is the holder's, and what comes to the other one is the new message.
    assert shard.call(co.Ack("t", held.leased.ids, int64s(held.leased.token)), 30).all_ok
    delivery = other.receive(60)
    assert delivery is not None
    assert delivery.leased.ids.tolist() == reply.ids.tolist() != [first]
    assert (shard.engine, shard.recoveries) == (engine, 0)
    assert shown(shard) == {int(reply.ids[0]): b"meanwhile"}
    shard.close(checkpoint=False)
    connection.close()


def try_open(connection: NatsConnection, settings: StreamSettings) -> Shard | None:
    try:
        return Shard(StreamStorage(connection, settings, 0, "broker"), SETTINGS)
    except NoQuorum:
        return None
