"""Bits flipped in a NATS server's files while it is down: what it has lost is found elsewhere, and never skipped."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fasti.broker.shard import Shard
from fasti.cluster.damage import Damage
from fasti.cluster.local_caches import LocalCaches
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.pack import Pack
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import insist
from fasti.cluster.rescue import CacheAnswers
from fasti.cluster.server_reports import SystemAccount, account_of
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.config import ShardSettings
from fasti.doors.cluster_watch import ClusterWatch
from fasti.errors import Corruption, FastiError
from tests.cluster.damage_rig import (
    flip_marked,
    leader_of,
    lost_on,
    make_lead,
    wait_current,
)
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.cluster.stream_rig import PATIENT
from tests.integration.shard_rig import SETTINGS, make_topic, produce, shown

SMALL = {"journal_bytes": 64 << 20, "reserve_bytes": 8 << 20, "blocks_bytes": 64 << 20}


class Damaged:
    """A shard of some packs, and which bytes are in which."""

    def __init__(self, servers: NatsServers, connection: NatsConnection) -> None:
        self.servers, self.connection = servers, connection
        self.settings = StreamSettings(new_cluster(), **SMALL, timeouts=PATIENT)
        self.names = ShardNames(self.settings.cluster, 0)
        self.journal = self.names.journal_stream
        self.payloads: dict[int, bytes] = {}

    def storage(self, caches: LocalCaches | None = None) -> StreamStorage:
        return StreamStorage(self.connection, self.settings, 0, "broker", caches=caches)

    def caches(self, directory: Path) -> LocalCaches:
        return LocalCaches(directory, self.settings.cluster, 8 << 20, 64 << 20)

    def fill(self, caches: LocalCaches | None, messages: int, checkpoint: bool = False) -> None:
        """A pack for each message, or nearly so; with a checkpoint they are in blocks as well."""
        shard = Shard(self.storage(caches), SETTINGS)
        make_topic(shard)
        for _ in range(messages):
            payload = secrets.token_bytes(30_000)
            (id_,) = produce(shard, payload)
            self.payloads[id_] = payload
        assert shown(shard) == self.payloads
        shard.close(checkpoint=checkpoint)

    def markers(self, *numbers: int) -> list[bytes]:
        texts = list(self.payloads.values())
        return [texts[number][1_000:1_032] for number in numbers]

    def shown_by(self, storage: StreamStorage) -> dict[int, bytes]:
        shard = Shard(storage, SETTINGS)
        try:
            return shown(shard)
        finally:
            shard.close(checkpoint=False)


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    servers = NatsServers(3)
    try:
        found = Damaged(servers, servers.connect())
        yield found
        found.connection.close()
    finally:
        servers.close()


def test_what_the_streams_leader_has_lost_is_read_from_another_copy(damaged: Damaged) -> None:
    damaged.fill(None, 120)
    connection, servers, journal = damaged.connection, damaged.servers, damaged.journal
    victim = (leader_of(connection, journal) + 1) % 3
    servers.stop(victim)
    flip_marked(servers, victim, journal, damaged.markers(3, 40, 41, 90))
    servers.start(victim)
    wait_current(connection, servers, journal)
    state = connection.stream_state(journal)
    assert state is not None
    # The server says nothing of it; reading its copy tells.
    assert lost_on(connection, journal, 1, state.last_sequence) == {f"n{victim}": 4}
    make_lead(connection, journal, victim)
    storage = damaged.storage()
    stream = PackStream(connection, damaged.names, rescue=storage.rescue)
    before = 0
    for place in range(1, state.last_sequence + 1):
        pack = insist("a pack", 60, partial(stream.read_from_leader, place, 5))
        assert isinstance(pack, Pack)
        assert (pack.place, pack.before) == (place, before)
        before = pack.checksum
    # It was made to give up the stream, and nothing goes from the shard until all copies were read.
    assert leader_of(connection, journal) != victim
    assert storage.rescue.book.doubts == [journal]
    assert storage.rescue.is_held()
    assert damaged.shown_by(storage) == damaged.payloads
    assert lost_on(connection, journal, 1, state.last_sequence) == {f"n{victim}": 4}


def test_a_watch_finds_it_and_has_another_server_lead(damaged: Damaged) -> None:
    damaged.fill(None, 60)
    connection, servers, journal = damaged.connection, damaged.servers, damaged.journal
    victim = (leader_of(connection, journal) + 1) % 3
    servers.stop(victim)
    flip_marked(servers, victim, journal, damaged.markers(10, 30))
    servers.start(victim)
    wait_current(connection, servers, journal)
    make_lead(connection, journal, victim)
    storage = damaged.storage()
    shard = Shard(storage, SETTINGS)
    system = NatsConnection(NatsOptions(servers.urls, user="system", password="secret"))
    host: Any = SimpleNamespace(
        shards=1, numbers=[0], all_shards=lambda: [shard], threads=shard.threads
    )
    book = storage.rescue.book
    asked = SystemAccount(system, account_of(connection), 3)
    watch = ClusterWatch(host, connection, damaged.settings.cluster, "broker", asked, book, 3)
    before = shard.store.version
    wait_until(lambda: watch.poll() and watch._readings.keys() >= {journal}, "a reading")
    assert book.damages == [Damage(f"n{victim}", journal, "has lost 2 messages")]
    assert storage.rescue.is_held()
    wait_until(lambda: leader_of(connection, journal) != victim, "another leader")
    # What the journal has is in blocks as well, and none of it is trimmed.
    wait_until(lambda: shard.store.version != before, "a checkpoint")
    assert watch.view is not None
    assert {server.name: server.state for server in watch.view.servers} == {
        f"n{number}": "damaged" if number == victim else "good" for number in range(3)
    }
    (alarm,) = watch.alarms()
    assert f"{journal} on NATS server n{victim} has lost 2 messages" in alarm
    assert shown(shard) == damaged.payloads
    shard.close()
    state = connection.stream_state(journal)
    assert state is not None
    assert state.first_sequence == 1
    watch.stop()


@pytest.mark.long
def test_what_no_server_has_is_found_on_a_brokers_disk_or_is_corruption(
    damaged: Damaged, tmp_path: Path
) -> None:
    own = damaged.caches(tmp_path / "own")
    damaged.fill(own, 30)
    servers, blocks = damaged.servers, Damaged(damaged.servers, damaged.connection)
    in_blocks = blocks.caches(tmp_path / "blocks")
    blocks.fill(in_blocks, 10, checkpoint=True)
    for number in range(3):
        servers.stop(number)
    for number in range(3):
        flip_marked(servers, number, damaged.journal, damaged.markers(7, 20))
        flip_marked(servers, number, blocks.names.blocks_stream, blocks.markers(4))
    for number in range(3):
        servers.start(number)
    damaged.connection.close()
    damaged.connection = blocks.connection = servers.connect()
    for stream in (damaged.journal, blocks.names.blocks_stream):
        wait_current(damaged.connection, servers, stream)
    # With nothing but NATS the shard does not open: what is missing is not skipped.
    with pytest.raises(Corruption) as caught:
        wait_until(lambda: opens(damaged), "an answer")
    assert caught.value.file == damaged.journal
    # One that has written the packs has them.
    assert damaged.shown_by(damaged.storage(own)) == damaged.payloads
    # Another one asks it.
    answers = CacheAnswers(damaged.connection, damaged.settings.cluster, own)
    other = damaged.caches(tmp_path / "other")
    assert damaged.shown_by(damaged.storage(other)) == damaged.payloads
    answers.close()
    # And has them itself from then on.
    assert damaged.shown_by(damaged.storage(other)) == damaged.payloads
    # Blocks alike: from another member's disk, and from the own one, which a scrub of the stream leaves alone.
    answers = CacheAnswers(damaged.connection, blocks.settings.cluster, in_blocks)
    assert blocks.shown_by(blocks.storage(blocks.caches(tmp_path / "more"))) == blocks.payloads
    answers.close()
    storage = blocks.storage(in_blocks)
    opened = storage.open(ShardSettings())
    assert list(opened.scrub(opened.manifest[1], lambda _: None)) == []
    assert storage.rescue.book.doubts == [blocks.names.blocks_stream]
    opened.close()
    assert blocks.shown_by(storage) == blocks.payloads


def opens(damaged: Damaged, caches: LocalCaches | None = None) -> bool:
    """Corruption is raised; a copy that can't be asked now is asked again."""
    try:
        Shard(damaged.storage(caches), SETTINGS).close(checkpoint=False)
    except Corruption:
        raise
    except FastiError:
        return False
    return True


def test_what_a_cache_has_of_another_journal_is_not_taken(tmp_path: Path) -> None:
    """As when a cluster was made anew under its old name: places begin with 1 again."""
    servers = NatsServers(1)
    try:
        damaged = Damaged(servers, servers.connect())
        damaged.settings = replace(damaged.settings, replicas=1)
        old = damaged.caches(tmp_path / "old")
        damaged.fill(old, 3)
        for stream in damaged.names.streams:
            damaged.connection.delete_stream(stream)
        damaged.payloads.clear()
        damaged.fill(None, 3)
        servers.stop(0)
        flip_marked(servers, 0, damaged.journal, damaged.markers(1))
        servers.start(0)
        damaged.connection.close()
        damaged.connection = servers.connect()
        with pytest.raises(Corruption):
            wait_until(lambda: opens(damaged, old), "an answer")
        damaged.connection.close()
    finally:
        servers.close()
