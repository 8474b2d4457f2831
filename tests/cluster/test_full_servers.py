"""NATS servers that are full: by their own bound (`max_file`), which brokers never let them reach, and by a disk that
somebody else has filled, of one of three and of all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import fasti
from fasti.broker.shard import Shard
from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.server_reports import SystemAccount, account_of
from fasti.cluster.server_room import ServerRoom
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.errors import FastiError, NoQuorum, StorageFull
from tests.cluster.cluster_rig import Cluster, under_load
from tests.cluster.cut_rig import CutServers, cut_cluster, cut_servers
from tests.cluster.nats_rig import nats_servers, new_cluster, wait_until
from tests.integration.shard_rig import SETTINGS, cancel, make_topic, produce
from tests.integration.trouble.disk import SmallDisk, small_disk

# Streams set 64 MiB aside for each journal and write little of it.
DISK = "96m"


@contextmanager
def small_servers(directory: Path) -> Iterator[tuple[CutServers, list[SmallDisk]]]:
    """Each server has a small file system of its own."""
    with ExitStack() as stack:
        disks = [stack.enter_context(small_disk(directory / f"disk{n}", DISK)) for n in range(3)]
        servers = stack.enter_context(cut_servers([disk.data for disk in disks]))
        yield servers, disks


def restart(servers: CutServers, number: int) -> None:
    """NATS gives JetStream up on a server whose disk was full, until it is started again."""
    servers.stop(number)
    servers.start(number)


class TwoShards(Cluster):
    """Which set less aside."""

    shards = 2


def refusal(producer: fasti.Producer) -> str | None:
    """The code of the error that a small send is refused with; None: it is taken."""
    try:
        (outcome,) = producer.send_batch([b"one more"])
    except FastiError as error:
        return error.code
    return None if outcome.ok else outcome.status


def is_taken(producer: fasti.Producer, payload: bytes) -> bool:
    """Whether a send was answered ok; if not, it may be tried again."""
    try:
        return bool(producer.send_batch([payload]).all_ok)
    except FastiError as error:
        if not error.retryable:
            raise
        return False


def test_brokers_stop_before_the_servers_are_full_and_acks_go_on(tmp_path: Path) -> None:
    """Somebody else's stream takes the room, and gives it back."""
    with (
        nats_servers(1, max_file="160M") as servers,
        closing(servers.connect()) as nats,
        closing(TwoShards(servers, tmp_path, 1)) as cluster,
        fasti.connect(cluster.address, timeout="20s") as client,
    ):
        client.create_topic("t", partitions=2)
        sent = [f"message {n}" for n in range(40)]
        with client.producer("t") as producer:
            assert producer.send_batch([text.encode() for text in sent]).all_ok
        nats.ensure_stream({"name": "ballast", "subjects": ["ballast"], "storage": "file"})
        for _ in range(150):
            nats.publish("ballast", bytes(1_000_000))
        with client.producer("t", deadline="1s") as producer:
            wait_until(lambda: refusal(producer) == "storage_full", "a refusal")
            consumer = client.consumer("t", timeout="5s")
            found: set[str] = set()
            for message in consumer:
                found.add(message.payload.decode())
                message.ack()
                if found >= set(sent):
                    break
            consumer.close()
            assert refusal(producer) == "storage_full"
            nats.purge("ballast", subject="ballast")
            wait_until(lambda: refusal(producer) is None, "room")


@pytest.mark.long
def test_servers_in_a_cluster_still_lead_when_a_shard_has_no_more_room() -> None:
    """Three servers that have reached their bound lead no stream again, so they must never reach it."""
    with ExitStack() as stack:
        servers = stack.enter_context(nats_servers(3, max_file="32M"))
        nats = stack.enter_context(closing(servers.connect()))
        access = NatsOptions(servers.urls, user="system", password="secret")
        system = SystemAccount(NatsConnection(access), account_of(nats), 3)
        stack.callback(system.close)
        room = ServerRoom(3)
        settings = StreamSettings(
            new_cluster(), journal_bytes=16 << 20, reserve_bytes=1 << 20, blocks_bytes=-1, grace_s=0
        )
        shard = Shard(StreamStorage(nats, settings, 0, "broker", server_room=room), SETTINGS)
        stack.callback(shard.close, checkpoint=False)
        make_topic(shard)
        ids: list[int] = []

        def has_room() -> bool:
            room.take(system.ask(), room.written_bytes)
            with suppress(StorageFull):
                ids.extend(produce(shard, os.urandom(500_000)))
                return True
            return False

        while has_room():
            if len(ids) % 10 == 0:
                with suppress(StorageFull):
                    shard.checkpoint()
        assert len(ids) > 20
        assert cancel(shard, *ids[:-1]).all_ok
        state = nats.stream_state(f"{settings.cluster}-j-0")
        assert state is not None
        assert state.leader
        wait_until(has_room, "room")
        assert shard.recoveries == 0


@pytest.mark.long
def test_two_servers_carry_on_when_the_disk_of_one_is_full(tmp_path: Path) -> None:
    with (
        small_servers(tmp_path) as (servers, disks),
        cut_cluster(servers, tmp_path / "brokers") as (cluster, _),
        under_load(cluster, 1) as load,
    ):
        disks[1].fill()
        load.go_on(100)
        wait_until(partial(servers.is_out_of_room, 1), "a server without room")
        load.go_on(100)
        disks[1].make_room()
        restart(servers, 1)
        load.go_on(50)


def test_nothing_is_acknowledged_that_is_lost_when_all_disks_are_full(tmp_path: Path) -> None:
    """Somebody else has filled them, below the servers' bounds: no server says how much its disk has left."""
    with (
        small_servers(tmp_path) as (servers, disks),
        cut_cluster(servers, tmp_path / "brokers") as (cluster, _),
        fasti.connect(cluster.address, timeout="20s") as client,
    ):
        client.create_topic("t", partitions=4)
        producer = client.producer("t", deadline="5s")
        sent = [f"before-{n}" for n in range(40)]
        assert producer.send_batch([name.encode() for name in sent]).all_ok
        for disk in disks:
            disk.fill()
        tried: list[str] = []
        while len(tried) == len(sent) - 40:
            tried.append(f"full-{len(tried)}")
            if is_taken(producer, tried[-1].encode() + b"." * 100_000):
                sent.append(tried[-1])
        assert all(map(servers.is_out_of_room, range(3)))
        for number, disk in enumerate(disks):
            disk.make_room()
            restart(servers, number)
        wait_until(lambda: is_taken(producer, b"after"), "an answer", 120)
        found: Counter[str] = Counter()
        consumer = client.consumer("t", timeout="200ms")

        def all_came() -> bool:
            # Shards are back one after the other.
            with suppress(NoQuorum):
                for message in consumer:
                    found[message.payload.decode().rstrip(".")] += 1
                    message.ack()
            return set(sent) <= found.keys()

        wait_until(all_came, "all that was acknowledged", 120)
        assert set(found) <= {*sent, *tried, "after"}
        assert all(count == 1 for name, count in found.items() if name != "after")
