"""A real broker process with several shards, and a bare Flight client that names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from fasti.broker.launch import BrokerProcess
from fasti.core.layout import Layout
from fasti.errors import InvalidArgument
from tests.conformance.protocol_client import Client, Refused, rows
from tests.integration.serve_rig import SMALL
from tests.unit.client.fakes import eventually

SHARDS = 4
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", shards=SHARDS, settings=SMALL) as started:
        yield started


def client_of(broker: BrokerProcess) -> Client:
    return Client(f"{broker.host}:{broker.port}")


def keys_by_shard() -> dict[int, list[str]]:
    shards = Layout(SHARDS, SHARDS).shards_of_keys(pa.array(KEYS)).tolist()
    return {n: [key for key, at in zip(KEYS, shards, strict=True) if at == n] for n in set(shards)}


def produce(client: Client, number: int, keys: list[str]) -> dict[str, Any]:
    batch = rows(payload=[key.encode() for key in keys], key=keys, delay_us=[10**12] * len(keys))
    command = {"op": "produce", "topic": "jobs"}
    return client.reply("transaction", {"shard_number": number, "commands": [command]}, batch)[0]


def count(client: Client, number: int) -> int:
    found = client.call("count", {"shard_number": number, "topic": "jobs"})
    return int(found["counts"]["scheduled"])


def listed(client: Client, number: int) -> set[str]:
    """By a plan, whose tickets say which shard they are for."""
    command = {"version": 1, "call": "list", "topic": "jobs", "shard_number": number}

    descriptor = fl.FlightDescriptor.for_command(json.dumps({**command, "payload": True}).encode())
    info = client.flight.get_flight_info(descriptor)
    found: set[str] = set()
    for endpoint in info.endpoints:
        ticket = json.loads(endpoint.ticket.ticket)
        assert ticket["shard_number"] == number
        table = client.flight.do_get(endpoint.ticket).read_all()
        found |= {payload.decode() for payload in table.column("payload").to_pylist()}
    return found


def test_rows_go_to_the_shard_of_their_key_and_survive_a_kill(broker: BrokerProcess) -> None:
    by_shard = keys_by_shard()
    assert len(by_shard) == SHARDS
    with client_of(broker) as client:
        client.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        for number, keys in by_shard.items():
            assert produce(client, number, keys)["committed"]
        wrong = (SHARDS - 1 + min(by_shard)) % SHARDS
        with pytest.raises(Refused, match="wrong_shard"):
            produce(client, wrong, by_shard[(wrong + 1) % SHARDS])
        cluster = client.call("hello")["cluster"]
    broker.kill()
    broker.start()
    with client_of(broker) as client:
        hello = client.call("hello")
        assert (hello["shards"], hello["cluster"]) == (SHARDS, cluster)
        for number, keys in by_shard.items():
            assert count(client, number) == len(keys)
            assert listed(client, number) == set(keys)


def test_a_kill_right_after_a_change_of_the_catalogue(broker: BrokerProcess) -> None:
    for turn in range(3):
        with client_of(broker) as client:
            client.call("create_topic", {"shard_number": 0, "topic": f"topic-{turn}"})
        broker.kill()
        broker.start()
    with client_of(broker) as client:
        found = [client.call("topics", {"shard_number": n})["topics"] for n in range(SHARDS)]
        names = [sorted(topic["topic"] for topic in topics) for topics in found]
        assert names == [["topic-0", "topic-1", "topic-2"]] * SHARDS


def test_the_number_is_fixed_when_the_directory_is_made(broker: BrokerProcess) -> None:
    broker.stop()
    with pytest.raises(InvalidArgument, match=f"has {SHARDS} shards"):
        BrokerProcess(broker.data, shards=SHARDS + 1, settings=SMALL)
    with BrokerProcess(broker.data, settings=SMALL) as again, client_of(again) as client:
        assert client.call("hello")["shards"] == SHARDS


def test_calls_on_a_stream_name_their_shard(broker: BrokerProcess) -> None:
    from tests.conformance.protocol_client import pack, unpack

    with client_of(broker) as client:
        client.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        descriptor = fl.FlightDescriptor.for_command(b'{"version": 1, "call": "calls"}')
        writer, reader = client.flight.do_exchange(descriptor)
        with writer:
            writer.begin(pa.schema([]))
            reader.read_chunk()
            for number in range(SHARDS):
                header = {"version": 1, "action": "count", "topic": "jobs", "shard_number": number}
                writer.write_metadata(pack(header))
                answer, _ = unpack(reader.read_chunk().app_metadata.to_pybytes())
                assert answer["shard"].startswith(f"{number}.")
            writer.write_metadata(pack({"version": 1, "action": "count", "topic": "jobs"}))
            answer, _ = unpack(reader.read_chunk().app_metadata.to_pybytes())
            assert answer["error"]["code"] == "invalid_argument"
            writer.done_writing()


def threads_of(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/task").iterdir()))


def test_idle_shards_have_no_threads_of_their_own(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "one", settings=SMALL) as one:
        alone = threads_of(one)
    with BrokerProcess(tmp_path / "eight", shards=8, settings=SMALL) as eight:
        with client_of(eight) as client:
            client.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        eventually(lambda: threads_of(eight) <= 1.3 * alone)
