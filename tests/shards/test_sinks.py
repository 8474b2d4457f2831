"""Sinks on four shards: each publishes its part once, also when their writer dies between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.client.sinks import Sink
from fasti.client.transport import Transport
from fasti.errors import AlreadyExists, FastiError, NotFound
from tests.integration.serve_rig import SMALL

SHARDS = 4
FAR_US = 4_000_000_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("sinks") / "data"
    with BrokerProcess(data, shards=SHARDS, settings=SMALL) as made:
        yield made


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(broker.address) as made:
        yield made


def rows(numbers: Any, keys: bool) -> pa.RecordBatch:
    """Half of them with a key, or none."""
    payloads = [b"row %d" % n for n in numbers]
    columns: dict[str, Any] = {"payload": payloads, "due_us": [FAR_US] * len(payloads)}
    if keys:
        columns["key"] = [f"k{n}" if n % 2 else None for n in numbers]
    return pa.record_batch(columns)


def stage(sink: Sink, batch: int, attempt: int, content: pa.RecordBatch) -> str:
    with sink.stage(batch, 0, attempt) as writer:
        writer.write(content)
    return writer.staged.name


def payloads(client: Client, topic: str) -> list[bytes]:
    found = client.messages(topic).list(payload=True)
    return sorted(found["payload"].to_pylist())


class Dies(FastiError):
    """What stops a writer between two shards; it doesn't pass."""

    code = "dies"


class DyingShard:
    """A shard that the writer doesn't live to publish on."""

    def __init__(self, shard: Transport) -> None:
        self._shard = shard

    def call(self, action: str, header: Any = None, *rest: Any, **more: Any) -> Any:
        if action == "publish_batch" and not header.get("dry_run"):
            raise Dies("the writer is gone")
        return self._shard.call(action, header, *rest, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)


@pytest.mark.parametrize("operation", ["produce", "append", "put"])
def test_a_writer_that_dies_between_two_shards_is_completed_and_nothing_is_doubled(
    client: Client, broker: BrokerProcess, operation: str
) -> None:
    topic = f"killed-{operation}"
    kind = {"append": "log", "put": "kv"}.get(operation, "timeline")
    client.create_topic(topic, kind=kind, partitions=8)
    content = rows(range(200), keys=True)
    if operation != "produce":
        content = content.drop_columns(["due_us"])
    if operation == "put":
        content = content.set_column(1, "key", pa.array([f"k{n}" for n in range(200)]))
    with fasti.connect(broker.address) as first:
        sink = first.sink(topic, topic, operation)
        name = stage(sink, 7, 0, content)
        transport: Any = first.transport
        for number in (1, 3):
            transport._shards[number] = DyingShard(transport.shard(number))
        with pytest.raises(Dies):
            sink.publish(7, [name])
    sink = client.sink(topic, topic, operation)
    # Two shards have it, so it has not happened whole, and the next life of the writer does it again.
    assert sink.last_batch() is None
    shuffled = content.take(pa.array(np.random.default_rng(7).permutation(200)))
    published = sink.publish(7, [stage(sink, 7, 1, shuffled)])
    assert (published.rows, published.repeated) == (200, False)
    assert sink.last_batch() == 7
    state = sink.describe()
    assert state is not None
    assert (state.done, state.stages, state.rows) == (True, 0, 0)
    if operation == "produce":
        found = payloads(client, topic)
    elif operation == "append":
        found = sorted(message.payload for message in client.reader(topic))
    else:
        found = sorted(entry.value for entry in client.kv(topic))
    assert found == sorted(b"row %d" % n for n in range(200))
    assert sink.publish(7, []).repeated


def test_a_batch_without_rows_is_remembered_by_every_shard(client: Client) -> None:
    client.create_topic("empty")
    sink = client.sink("empty", "empty")
    assert sink.publish(0, []).rows == 0
    name = stage(sink, 1, 0, rows([1], keys=False))
    assert sink.publish(1, [name]).rows == 1
    assert sink.last_batch() == 1
    for number in range(SHARDS):
        header, _ = client.transport.shard(number).call("sinks", {"sink": "empty"})
        assert header["sinks"][0]["batch"] == 1
    assert sink.publish(0, [stage(sink, 0, 0, rows([2], keys=False))]).repeated
    assert payloads(client, "empty") == [b"row 1"]


def test_taken_keys_on_one_shard_refuse_the_batch_on_all(client: Client) -> None:
    client.create_topic("taken")
    sink = client.sink("taken", "taken")
    sink.publish(0, [stage(sink, 0, 0, rows([1, 3], keys=True))])
    name = stage(sink, 1, 0, rows(range(100), keys=True))
    with pytest.raises(AlreadyExists) as caught:
        sink.publish(1, [name])
    assert sorted(caught.value.details["keys"]) == ["k1", "k3"]
    assert caught.value.details["conflicts"] == 2
    # Nothing of it has happened on any shard; the stages are still there.
    assert len(payloads(client, "taken")) == 2
    assert sink.last_batch() == 0
    skipping = client.sink("taken", "taken", on_conflict="skip")
    published = skipping.publish(1, [name])
    assert (published.rows, published.skipped) == (98, 2)
    assert len(payloads(client, "taken")) == 100


def test_stages_are_dropped_and_sinks_forgotten_on_every_shard(client: Client) -> None:
    client.create_topic("dropped")
    sink = client.sink("dropped", "dropped")
    name = stage(sink, 0, 0, rows(range(50), keys=False))
    state = sink.describe()
    assert state is not None
    assert (state.batch, state.rows) == (None, 50)
    assert sink.drop([name]) == 50
    with pytest.raises(NotFound):
        sink.publish(0, [name])
    with pytest.raises(NotFound, match="never"):
        sink.publish(0, ["never"])
    assert sink.drop(["never"]) == 0
    again = stage(sink, 0, 1, rows(range(50), keys=False))
    sink.publish(0, [again])
    assert [known.sink for known in client.sinks()].count("dropped") == 1
    assert sink.forget()
    assert sink.describe() is None
    assert not sink.forget()
