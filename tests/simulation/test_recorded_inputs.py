"""Everything that reaches an engine is data: recorded, and played to another, it gives the same.

A broker is used in most of the ways that there are. What its engine was told is written down as bytes,
with the time of each step. A fresh engine that is told the same decides the same events, gives the same
replies and effects, and ends in the same state.
"""

from __future__ import annotations

import pickle
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker import shard as shards
from fasti.core.agenda import FOREVER
from fasti.core.capsule import Capsule, capture
from fasti.core.checkpoint import BeginCheckpoint, BlocksAdded, Plan
from fasti.core.commands import DropSnapshot, KeepSnapshot, RunsInstalled, TakeSnapshot, Tidy
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.queries import ReadLeases, ReadPosition, ReadTopicNames, ReadTopics
from fasti.core.replies import Step
from fasti.core.rows.snapshot import Snapshot
from fasti.core.sinks.commands import ClaimKeys, ClaimStages, ReadParcels, ReleaseKeys, SumSinks
from fasti.errors import AlreadyExists
from fasti.testing import VirtualBroker

# What used to be done to the engine between two steps.
ONCE_CLOSURES = {
    *(BeginCheckpoint, BlocksAdded, RunsInstalled, TakeSnapshot, KeepSnapshot, DropSnapshot, Tidy),
    *(ReadTopics, ReadTopicNames, ReadPosition, ReadLeases),
    *(ClaimStages, ClaimKeys, ReleaseKeys, ReadParcels, SumSinks),
}


class RecordedEngine(Engine):
    """Writes down what it is told, as bytes, and what came of it."""

    tick_at_start = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.arguments = arguments
        self.inputs: list[tuple[bytes, int, int]] = []
        self.steps: list[Any] = []
        self.kinds_of_input: set[type] = set()

    def start(self, tick: int) -> None:
        self.tick_at_start = tick
        super().start(tick)

    def step(self, inputs: Any, now_us: int, tick: int) -> Step:
        self.kinds_of_input.update(type(command) for command in inputs)
        self.inputs.append((pickle.dumps(list(inputs)), now_us, tick))
        step = super().step(inputs, now_us, tick)
        self.steps.append(plain(step))
        return step


def plain(value: Any) -> Any:
    """As values that can be compared."""
    if isinstance(value, Snapshot):
        return value.number, value.position, value.at_us, value.deadline_us
    if isinstance(value, (Plan, Step)) or is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, BaseException):
        return type(value).__name__, str(value), plain(getattr(value, "details", None))
    if isinstance(value, Enum):
        return value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Rows):
        return plain(value.batch)
    if isinstance(value, (pa.Array, pa.RecordBatch)):
        return value.to_pylist()
    if callable(value):
        return plain(value())
    if type(value).__module__.startswith("fasti") and hasattr(value, "__dict__"):
        return {name: plain(each) for name, each in vars(value).items()}
    return value


def state_of(engine: Engine) -> Any:
    """All that is durable: the rows, and what is beside them."""
    snapshot = engine.snapshots.pin(engine.state.last_at_us, FOREVER)
    try:
        rows = {
            place: [plain(each) for each in snapshot.rows(*place)] for place in snapshot.ledgers
        }
    finally:
        engine.snapshots.release(snapshot.number)
    capsule: Capsule = capture(engine.state)
    return rows, plain(capsule)


def use(broker: VirtualBroker) -> None:
    """Every kind of topic, and every way to an engine that a broker has."""
    client = broker.client("owner")
    client.create_topic("line", partitions=2)
    client.create_topic("jobs", kind="priority")
    client.create_topic("log", kind="log", partitions=2)
    client.create_topic("entries", kind="kv")
    client.create_topic("reports", kind="cron")
    client.create_topic("orders", relay=True)
    client.bindings("orders").add("orders.>", "line")
    line = client.producer("line")
    line.send_batch([b"%d" % n for n in range(50)], key=[f"k{n}" for n in range(50)])
    line.send(b"later", key="later", delay="2d").result()
    client.producer("orders").send(b"new", subject="orders.new").result()
    for n in range(5):
        client.producer("jobs").send(b"job", priority=n).result()
        client.producer("log").send(b"row %d" % n, key=str(n)).result()
    client.kv("entries").put("a", b"1")
    client.kv("entries").put("b", b"2", ttl="1h")
    client.schedules("reports").put("often", every="10m", target="line", payload=b"report")
    broker.flush()
    work(client)
    client.checkpoint()
    broker.advance("1h")
    snapshot, _ = client.transport.call("take_snapshot", {"name": "q", "keep_us": 600_000_000})
    client.messages("line").list(limit=None)
    broker.advance("5m")
    client.transport.call("take_snapshot", {"name": "q"})
    client.messages("line").cancel(key="later")
    client.pause_topic("jobs")
    client.topics()
    client.metrics()
    client.references("line")
    client.transport.plan({"call": "changes", "topics": ["line"]})
    broker.service.leases.held()
    number, _ = broker.service.backups.begin()
    broker.service.backups.end(number)
    publish(client)
    client.transport.call("drop_snapshot", {"snapshot": snapshot["snapshot"]})
    client.delete_topic("jobs")
    broker.expire_leases()
    client.checkpoint()
    broker.advance("3d")


def work(client: Any) -> None:
    with client.consumer("line", prefetch=10, timeout="10s") as consumer:
        for _ in range(5):
            (message,) = consumer.take(1)
            message.ack()
        (message,) = consumer.take(1)
        message.nack(reason="no", delay="1m")
        (message,) = consumer.take(1)
        with client.transaction() as transaction:
            transaction.ack(message)
            transaction.send("line", b"result")
    with client.consumer("log", group="readers", timeout="10s") as consumer:
        consumer.take(1)[0].ack()


def publish(client: Any) -> None:
    """A sink whose keys are claimed piece by piece, and one whose rows travel in parcels."""
    sink = client.sink("line", "import")
    keys = [f"n{n}" for n in range(9_000)]
    for batch, some in ((0, [*keys, "n7"]), (1, keys)):
        with sink.stage(batch=batch, partition=0, attempt=0) as stage:
            stage.write(pa.RecordBatch.from_pydict({"key": some, "payload": [b"x"] * len(some)}))
        if batch:
            sink.publish(batch, [stage.staged.name])
        else:
            with pytest.raises(AlreadyExists):
                sink.publish(batch, [stage.staged.name])
    puts = client.sink("entries", "puts", "put")
    with puts.stage(batch=0, partition=0, attempt=0) as stage:
        stage.write(pa.RecordBatch.from_pydict({"key": ["c"], "payload": [b"3"]}))
    puts.publish(0, [stage.staged.name])


def test_recorded_inputs_give_another_engine_the_same_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "Engine", RecordedEngine)
    with VirtualBroker() as broker:
        recorded = broker.shard.engine
        assert isinstance(recorded, RecordedEngine)
        use(broker)
    # Closed: nothing reaches the engine any more.
    assert recorded.kinds_of_input >= ONCE_CLOSURES
    engine = RecordedEngine(*recorded.arguments)
    engine.start(recorded.tick_at_start)
    for number, (inputs, now_us, tick) in enumerate(recorded.inputs):
        engine.step(pickle.loads(inputs), now_us, tick)
        assert engine.steps[number] == recorded.steps[number], pickle.loads(inputs)
    assert state_of(engine) == state_of(recorded)
