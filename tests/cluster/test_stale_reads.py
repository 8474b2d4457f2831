"""Reads that may be stale: from standbys, from leaders that nobody answers, and from nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.errors import NoQuorum, RowsFailed, TimedOut
from tests.cluster.cluster_rig import SHARDS, Cluster
from tests.cluster.nats_rig import NatsServers, wait_until
from tests.conformance.protocol_client import Client, Refused

KEYS = [f"key {number}" for number in range(40)]


@contextmanager
def nats_servers(count: int) -> Iterator[NatsServers]:
    servers = NatsServers(count)
    try:
        servers.connect().close()
        yield servers
    finally:
        servers.close()


class SteadyCluster(Cluster):
    """The first broker leads all shards, and the second one stands by: no shard is handed over."""

    def settings(self, broker_name: str) -> dict[str, Any]:
        return {**super().settings(broker_name), "weight": 1 if broker_name == "b0" else 0.0001}


def fill(client: fasti.Client) -> None:
    client.create_topic("t", partitions=2 * SHARDS)
    client.create_topic("k", kind="kv", partitions=2 * SHARDS)
    with client.producer("t") as producer:
        for key in KEYS[:30]:
            producer.send(key.encode(), key=key, delay="1h")
        for key in KEYS[30:]:
            producer.send(key.encode(), key=key)
    client.kv("k").put_many({key: key.encode() for key in KEYS})


def read_all(client: fasti.Client) -> dict[str, Any]:
    """What every stale read says, in short."""
    messages, entries = client.messages("t").stale(), client.kv("k").stale()
    listed = messages.list(limit=None, payload=True).value
    scanned = [batch.value.column("key").to_pylist() for batch in messages.scan(columns=["key"])]
    counts = messages.count().value
    one, entry = messages.get(key=KEYS[0]).value, entries.get(KEYS[1]).value
    table = messages.get(key=[*KEYS, "nobody's"]).value
    assert messages.get(key="nobody's").value is None
    return {
        "one": one and one["payload"],
        "many": sorted(table.filter(table["status"].is_valid())["key"].drop_null().to_pylist()),
        "listed": dict(zip(listed["key"].to_pylist(), listed["payload"].to_pylist(), strict=True)),
        "scanned": sorted(key for keys in scanned for key in keys),
        "counts": {name: counts[name] for name in ("scheduled", "ready", "leased")},
        "entry": entry and entry.value,
        "entries": entries.count().value,
        "values": entries.get_many(KEYS).value["value"].to_pylist(),
    }


EXPECTED = {
    "one": KEYS[0].encode(),
    "many": sorted(KEYS),
    "listed": {key: key.encode() for key in KEYS},
    "scanned": sorted(KEYS),
    "counts": {"scheduled": 30, "ready": 10, "leased": 0},
    "entry": KEYS[1].encode(),
    "entries": len(KEYS),
    "values": [key.encode() for key in KEYS],
}


def has_caught_up(client: Client) -> bool:
    """Whether all that `fill` sent is to be read from one broker."""
    try:
        total = 0
        for shard in range(SHARDS):
            named = {"shard_number": shard, "stale": True}
            counted, _ = client.reply("count", {"topic": "t", **named})
            described, _ = client.reply("kv_describe", {"topic": "k", **named})
            total += sum(counted["counts"].values()) + described["entries"]
    except Refused:
        # It has not loaded, or not heard of the topics.
        return False
    return total == 2 * len(KEYS)


def standbys_of(cluster: Cluster, asked: int) -> dict[int, list[str]]:
    with Client(cluster.place(asked)) as client:
        told, _ = client.reply("hello")
    return {item["shard"]: item.get("standbys", []) for item in told["map"]}


@contextmanager
def filled_cluster(servers: NatsServers, directory: Path) -> Iterator[tuple[Cluster, fasti.Client]]:
    cluster = SteadyCluster(servers, directory)
    try:
        with fasti.connect(cluster.address, timeout=20) as client:
            fill(client)
            wait_until(lambda: all(standbys_of(cluster, 0).values()), "a standby of every shard")
            with Client(cluster.place(1)) as direct:
                wait_until(lambda: has_caught_up(direct), "standbys that have caught up")
            yield cluster, client
    except BaseException:
        print(cluster.log())
        raise
    finally:
        cluster.close()


def count_of(cluster: Cluster, broker: int, shard: int, **more: Any) -> dict[str, Any]:
    with Client(cluster.place(broker)) as client:
        told, _ = client.reply("count", {"topic": "t", "shard_number": shard, **more})
    found: dict[str, Any] = told
    return found


def test_a_standby_answers_stale_reads_and_nothing_else(tmp_path: Path) -> None:
    leader, standby, shard = 0, 1, 2
    with nats_servers(1) as servers, filled_cluster(servers, tmp_path) as (cluster, client):
        assert standbys_of(cluster, leader)[shard] == [cluster.place(standby)]
        told, led = (count_of(cluster, broker, shard, stale=True) for broker in (standby, leader))
        assert (told["counts"], told["shard"]) == (led["counts"], led["shard"])
        assert told["as_of_us"] <= led["as_of_us"]
        assert "as_of_us" not in count_of(cluster, leader, shard, stale=False)
        refusals: dict[str, dict[str, Any]] = {
            "count": {"topic": "t"},
            "cancel": {"topic": "t", "stale": True},
            "release_leases": {"topic": "t", "stale": True},
        }
        with Client(cluster.place(standby)) as direct:
            for action, header in refusals.items():
                with pytest.raises(Refused) as caught:
                    direct.reply(action, {**header, "shard_number": shard})
                assert caught.value.code == "moved"
        for broker, wrong in ((leader, "yes"), (leader, 1), (leader, None)):
            with pytest.raises(Refused) as caught:
                count_of(cluster, broker, shard, stale=wrong)
            assert (caught.value.code, caught.value.details["field"]) == (
                "invalid_argument",
                "stale",
            )
        # As of when it is goes on with the leader's beats, though nothing happens.
        before = client.messages("t").stale().count().as_of
        wait_until(
            lambda: client.messages("t").stale().count().as_of > before, "word of the leader"
        )
        # The leader is paused: a standby answers, before it leads and afterwards.
        cluster.brokers[leader].pause()
        assert read_all(client) == EXPECTED
        cluster.brokers[leader].resume()


def is_refused(client: fasti.Client) -> bool:
    """Whether a read that must be right is told that it can't be."""
    try:
        client.messages("t").get(key=KEYS[0])
    except NoQuorum:
        return True
    except TimedOut:
        # It came before that was known, and waits for the servers.
        return False
    return False


async def read_by_asyncio(address: str) -> tuple[dict[str, int], datetime]:
    async with fasti.aio.connect(address) as client:
        found = await client.messages("t").stale().get(key=KEYS[0])
        assert found.value is not None
        entry, _ = await client.kv("k").stale().get(KEYS[0])
        assert entry is not None
        return await client.messages("t").stale().count()


def code_of(cluster: Cluster, broker: int, shard: int) -> str:
    """What a stale count of a broker is refused with; empty: it is not."""
    try:
        count_of(cluster, broker, shard, stale=True)
    except Refused as error:
        return error.code
    return ""


def test_stale_reads_go_on_without_a_majority_and_without_a_leader(tmp_path: Path) -> None:
    with (
        nats_servers(3) as servers,
        filled_cluster(servers, tmp_path) as (cluster, client),
        fasti.connect(cluster.address, timeout=1) as other,
    ):
        layout = other.transport.layout("t")
        shard = layout.shard_of_key(KEYS[0])
        before = count_of(cluster, 0, shard, stale=True)
        for number in (1, 2):
            servers.kill(number)
        wait_until(lambda: is_refused(other), "an outage that is known")
        assert read_all(client) == EXPECTED
        # The leader itself answers, as of when it last knew that it leads.
        led = count_of(cluster, 0, shard, stale=True)
        assert led["counts"] == before["counts"]
        assert before["as_of_us"] < led["as_of_us"]
        # What nobody was told is not shown, neither by leaders nor by standbys.
        producer = other.producer("t")
        later = next(name for name in map(str, range(99)) if layout.shard_of_key(name) != shard)
        producer.send(b"later", key=later)
        wait_until(
            lambda: code_of(cluster, 0, layout.shard_of_key(later)) == "no_quorum",
            "a leader with something that is not durable",
        )
        assert read_all(client) == EXPECTED
        # A client that comes now learns all it needs.
        counts, _ = asyncio.run(read_by_asyncio(cluster.address))
        assert counts["scheduled"] == 30
        cluster.brokers[0].kill()
        assert read_all(client) == EXPECTED
        with fasti.connect(cluster.address, timeout=20) as fresh:
            assert read_all(fresh) == EXPECTED
        # Nobody waits for what was sent: it is not answered.
        for _ in range(2):
            with suppress(TimedOut, RowsFailed):
                producer.close(timeout=0)
