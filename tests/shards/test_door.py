"""Several shards behind one process: a bare Flight client that names the shard of each call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fasti.broker.host import Host
from fasti.broker.shard_map import ShardMap
from fasti.doors.flight import FlightDoor
from tests.conformance.protocol_client import Client, Refused
from tests.shards.shards_rig import close_host, open_host

SHARDS = 3


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = open_host(tmp_path / "data", SHARDS)
    yield made
    close_host(made)


@pytest.fixture
def client(host: Host) -> Iterator[Client]:
    door = FlightDoor(host)
    with Client(f"127.0.0.1:{door.port}") as made:
        yield made
    host.begin_stopping()
    door.stop()


def test_hello_tells_the_map(host: Host, client: Client) -> None:
    hello = client.call("hello")
    assert (hello["shards"], hello["cluster"]) == (SHARDS, host.cluster)
    assert hello["map"] == [
        {"shard": number, "address": None, "epoch": 1} for number in range(SHARDS)
    ]
    names = [client.call("hello", {"shard_number": number})["shard"] for number in range(SHARDS)]
    assert [name.split(".")[0] for name in names] == ["0", "1", "2"]


def test_a_call_names_its_shard(client: Client) -> None:
    with pytest.raises(Refused, match=r"invalid_argument.*shard_number"):
        client.call("topics")
    for wrong in (SHARDS, -1, "0", True):
        with pytest.raises(Refused, match="invalid_argument"):
            client.call("topics", {"shard_number": wrong})
    for action in ("clock", "health"):
        client.call(action)


def test_a_topic_is_made_on_all_shards_by_the_first(client: Client) -> None:
    made = client.call("create_topic", {"shard_number": 0, "topic": "jobs"})
    assert made["settings"]["partitions"] == SHARDS
    for number in range(SHARDS):
        found = client.call("topic", {"shard_number": number, "topic": "jobs"})
        assert found["settings"] == made["settings"]
    with pytest.raises(Refused, match="wrong_shard") as refused:
        client.call("create_topic", {"shard_number": 1, "topic": "more"})
    assert refused.value.details["shard"] == 0
    client.call("delete_topic", {"shard_number": 0, "topic": "jobs"})
    for number in range(SHARDS):
        with pytest.raises(Refused, match="not_found"):
            client.call("topic", {"shard_number": number, "topic": "jobs"})


def test_a_shard_of_another_process_has_moved(tmp_path: Path) -> None:
    open_host(tmp_path / "data", SHARDS)._undo()
    host = open_host(tmp_path / "data", numbers=[0, 2])
    host.map = ShardMap({1: "127.0.0.1:7171"}, epoch=4)
    door = FlightDoor(host)
    try:
        with Client(f"127.0.0.1:{door.port}") as client:
            with pytest.raises(Refused, match="moved") as refused:
                client.call("topics", {"shard_number": 1})
            assert refused.value.details == {"shard": 1, "address": "127.0.0.1:7171", "epoch": 4}
            assert refused.value.retryable
            client.call("topics", {"shard_number": 2})
            assert client.call("hello")["map"][1]["address"] == "127.0.0.1:7171"
    finally:
        host.begin_stopping()
        door.stop()
        close_host(host)
