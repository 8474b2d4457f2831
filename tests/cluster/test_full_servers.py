"""Disks of NATS servers that are full: one of three, and all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

import fasti
from fasti.errors import FastiError
from tests.cluster.cluster_rig import under_load
from tests.cluster.cut_rig import CutServers, cut_cluster, cut_servers
from tests.cluster.nats_rig import wait_until
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


def is_taken(producer: fasti.Producer, payload: bytes) -> bool:
    """Whether a send was answered ok; if not, it may be tried again."""
    try:
        return bool(producer.send_batch([payload]).all_ok)
    except FastiError as error:
        if not error.retryable:
            raise
        return False


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
            for message in consumer:
                found[message.payload.decode().rstrip(".")] += 1
                message.ack()
            return set(sent) <= found.keys()

        wait_until(all_came, "all that was acknowledged", 120)
        assert set(found) <= {*sent, *tried, "after"}
        assert all(count == 1 for name, count in found.items() if name != "after")
