"""Snapshots as readers hold them: every row once, whatever happens meanwhile; gone is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import fasti
from fasti.broker.caller import EMBEDDED
from fasti.client.client import Client
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.core.agenda import FOREVER
from fasti.core.checkpoint import BeginCheckpoint
from fasti.core.commands import DropSnapshot, KeepSnapshot, Tidy
from fasti.core.queries import ReadPosition
from fasti.core.rows import arena
from fasti.core.rows.scan import Scan
from fasti.errors import FastiError, Gone, InvalidArgument, NotFound, StorageFailed

FAR_US = 4_102_444_800_000_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with fasti.connect(f"embedded:{tmp_path}") as opened:
        yield opened


def transport_of(client: Client) -> EmbeddedTransport:
    transport = client.transport
    assert isinstance(transport, EmbeddedTransport)
    return transport


def ids_of(client: Client, tickets: list[dict[str, Any]]) -> list[int]:
    found = []
    for ticket in tickets:
        ticket = {name: value for name, value in ticket.items() if name != "version"}
        for batch in client.transport.read(ticket):
            found += batch.column("id").to_pylist()
    return found


def test_rows_of_pages_and_leftovers_come_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that are nearly finished are packed into frames of leftovers."""
    monkeypatch.setattr(arena, "_THIN_PAGES_KEPT", 0)
    client.create_topic("t")
    client.producer("t").send_batch([b"x"] * 40_000, due=[FAR_US] * 40_000)
    # Of every second page only a few stay.
    gone = [n for n in range(1, 40_001) if (n >> 12) % 2 and n % 100]
    for begin in range(0, len(gone), 5_000):
        client.messages("t").cancel(id=gone[begin : begin + 5_000])
    shard = transport_of(client).service.placement.catalogue
    while shard.ask(Tidy()).result():
        pass
    held, _ = client.transport.call("take_snapshot", {})
    snapshot = shard.engine.snapshots[held["snapshot"]]
    ((place, view),) = [(p, v) for p, v in snapshot.ledgers.items() if v.next_sequence > 1]
    assert view.packed_frames
    expected = sorted(set(range(1, 40_001)) - set(gone))
    fields = {"topic": "t", "splits": 5, "columns": ["id"], "snapshot": held["snapshot"]}
    tickets = client.transport.plan({"call": "list", **fields})
    # All of this is behind the snapshot.
    client.messages("t").cancel(id=expected[::2])
    client.producer("t").send_batch([b"new"] * 10_000, due=[FAR_US] * 10_000)
    while shard.ask(Tidy()).result():
        pass
    assert sorted(ids_of(client, tickets)) == expected
    # Whoever reads all of it gets it in order.
    whole = {"call": "list", "topic": "t", "snapshot": held["snapshot"]}
    assert ids_of(client, [whole]) == expected
    weights = dict(Scan(snapshot, *place, 0, None).weights())
    assert sum(weights.values()) == len(expected)
    for first, last in ((1, 1), (4_000, 4_200), (39_000, 50_000), (0, 0)):
        parts = Scan(snapshot, *place, first, last).parts([])
        found = [int(n) for part in parts for n in part["sequence"]]
        assert found == [n for n in expected if first <= n < last]


def test_a_snapshot_that_goes_under_a_reader_says_so(client: Client) -> None:
    client.create_topic("t")
    client.producer("t").send_batch([b"x"] * 70_000, due=[FAR_US] * 70_000)
    held, _ = client.transport.call("take_snapshot", {})
    ticket = {"topic": "t", "snapshot": held["snapshot"], "position": held["position"]}
    reading = client.transport.read(ticket)
    assert next(reading).num_rows
    client.transport.call("drop_snapshot", {"snapshot": held["snapshot"]})
    with pytest.raises(Gone):
        list(reading)


def test_a_deadline_moves_on_with_every_use_and_then_comes(client: Client) -> None:
    client.create_topic("t")
    shard = transport_of(client).service.placement.catalogue
    held, _ = client.transport.call("take_snapshot", {"keep_us": 600_000_000, "name": "q"})
    snapshot = shard.engine.snapshots[held["snapshot"]]
    # As if most of the time were over.
    shard.call(KeepSnapshot(snapshot.number, snapshot.deadline_us - 540_000_000))
    again, _ = client.transport.call("take_snapshot", {"name": "q"})
    assert again["snapshot"] == held["snapshot"]
    shard.submit([]).result()
    assert snapshot.deadline_us > held["deadline_us"] - 540_000_000
    shard.call(KeepSnapshot(snapshot.number, 1))
    for ask in (
        lambda: client.transport.call("take_snapshot", {"name": "q"}),
        lambda: list(client.transport.read({"topic": "t", "snapshot": held["snapshot"]})),
    ):
        with pytest.raises(Gone):
            ask()


def test_what_was_read_by_all_is_kept_for_less(client: Client) -> None:
    client.create_topic("t")
    client.producer("t").send_batch([b"x"] * 10, due=[FAR_US] * 10)
    shard = transport_of(client).service.placement.catalogue
    fields = {"name": "q", "keep_us": 600_000_000, "readers": 2, "linger_us": 60_000_000}
    held, _ = client.transport.call("take_snapshot", fields)
    snapshot = shard.engine.snapshots[held["snapshot"]]
    ticket = {"topic": "t", "snapshot": held["snapshot"]}
    # One that is read twice is one part all the same.
    for _ in range(2):
        assert ids_of(client, [{**ticket, "part": 0}])
    shard.submit([]).result()
    assert snapshot.deadline_us >= held["deadline_us"]
    assert ids_of(client, [{**ticket, "part": 1}])
    shard.submit([]).result()
    assert snapshot.deadline_us < held["deadline_us"] - 400_000_000
    assert ids_of(client, [{**ticket, "part": 1}]) == list(range(1, 11))


def test_a_plan_that_is_refused_leaves_no_snapshot(client: Client) -> None:
    client.create_topic("t")
    shard = transport_of(client).service.placement.catalogue
    for wrong in ({"splits": 0}, {"splits": 5000}, {"columns": ["nothing"], "splits": 2}):
        with pytest.raises(FastiError):
            client.transport.plan({"call": "list", "topic": "t", **wrong})
    shard.submit([]).result()
    assert not shard.engine.snapshots


def test_what_a_reader_does_after_a_recovery_is_not_done_to_a_checkpoint(client: Client) -> None:
    """Engines number their snapshots from 1: the new one's first may be a checkpoint's."""
    client.create_topic("t")
    service = transport_of(client).service
    shard, snapshots = service.placement.catalogue, service.snapshots
    read, kept = (snapshots.take(EMBEDDED, shard, name=name) for name in ("read", "kept"))
    shard.recovery.journal_failed(StorageFailed("a cable was loose"), [])
    while not shard.recoveries:
        time.sleep(0.01)
    begin = BeginCheckpoint(shard.store.journal.first_sequence, [])
    plans = [shard.ask(begin).result() for _ in range(2)]
    assert [plan.snapshot.number for plan in plans] == [
        read.snapshot.number,
        kept.snapshot.number,
    ]
    snapshots.drop(read.snapshot.number)
    held = iter(snapshots.reading(kept, iter(()), partition=None, part=0))
    kept.parts_left = {0}
    assert not list(held)
    shard.submit([]).result()
    assert [plan.snapshot.closed for plan in plans] == [False, False]
    assert [plan.snapshot.deadline_us for plan in plans] == [FOREVER, FOREVER]


def test_a_snapshot_that_is_let_go_has_no_rows_for_a_checkpoint(client: Client) -> None:
    client.create_topic("t")
    client.producer("t").send_batch([b"x"] * 10, due=[FAR_US] * 10)
    shard = transport_of(client).service.placement.catalogue
    plan = shard.ask(BeginCheckpoint(shard.store.journal.first_sequence, [])).result()
    (place,) = [p for p, view in plan.snapshot.ledgers.items() if view.next_sequence > 1]
    assert [len(part["sequence"]) for part in plan.snapshot.rows(*place)] == [10]
    shard.ask(DropSnapshot(plan.snapshot.number)).result()
    with pytest.raises(Gone):
        list(plan.snapshot.rows(*place))


def test_a_read_that_is_collected_where_snapshots_are_locked_ends(client: Client) -> None:
    """Garbage is collected in any thread, wherever that is."""
    service = transport_of(client).service
    snapshots = service.snapshots
    held = snapshots.take(EMBEDDED, service.placement.catalogue)
    reading = cast(
        Generator[pa.RecordBatch, None, None],
        snapshots.reading(held, iter([pa.record_batch({"id": [1]})] * 2), partition=None),
    )
    next(reading)
    collected = threading.Event()

    def collect() -> None:
        with snapshots._lock:
            reading.close()
        collected.set()

    threading.Thread(target=collect, daemon=True).start()
    assert collected.wait(10)
    assert held.readers == 0


def test_a_listing_is_of_one_moment_and_leaves_no_snapshot(client: Client) -> None:
    client.create_topic("t", partitions=2)
    client.create_topic("other")
    client.producer("t").send_batch([b"x"] * 20_000, due=[FAR_US] * 20_000)
    service = transport_of(client).service
    shard = service.placement.catalogue
    ticket = {"version": 1, "call": "list", "topic": "t", "columns": ["id"]}
    _, batches = service.read(EMBEDDED, ticket)
    first = next(batches).column("id").to_pylist()
    assert len(first) < 10_000
    (snapshot,) = shard.engine.snapshots.values()
    assert [name for name, _ in snapshot.topics.values()] == ["t"]
    client.messages("t").cancel(id=list(range(1, 5_001)))
    client.producer("t").send_batch([b"new"] * 1_000, due=[FAR_US] * 1_000)
    ids = first + [id_ for batch in batches for id_ in batch.column("id").to_pylist()]
    assert len(ids) == 20_000
    assert ids == sorted(ids)
    shard.ask(ReadPosition()).result()
    assert not shard.engine.snapshots


def test_a_listing_that_is_given_up_leaves_no_snapshot(client: Client) -> None:
    client.create_topic("t")
    client.producer("t").send_batch([b"x"] * 20_000, due=[FAR_US] * 20_000)
    service = transport_of(client).service
    shard = service.placement.catalogue
    ticket = {"version": 1, "call": "list", "topic": "t"}
    opened = [service.read(EMBEDDED, ticket)[1] for _ in range(100)]
    # They don't count as snapshots that readers took.
    assert len(shard.engine.snapshots) == 100 > service.limits.snapshots_max
    service.snapshots.take(EMBEDDED, shard)
    for batches in opened[:50]:
        next(batches)
    del batches
    opened.clear()
    shard.ask(ReadPosition()).result()
    assert len(shard.engine.snapshots) == 1


def test_a_refused_listing_leaves_no_snapshot(client: Client) -> None:
    client.create_topic("t")
    client.create_topic("entries", kind="kv")
    service = transport_of(client).service
    shard = service.placement.catalogue
    for topic, partition, error in (
        ("t", 1, InvalidArgument),
        ("entries", 0, InvalidArgument),
        ("none", 0, NotFound),
    ):
        ticket = {"version": 1, "call": "list", "topic": topic, "partition": partition}
        with pytest.raises(error):
            service.read(EMBEDDED, ticket)
    shard.ask(ReadPosition()).result()
    assert not shard.engine.snapshots


def test_a_listing_of_nothing_is_one_empty_batch(client: Client) -> None:
    client.create_topic("t")
    service = transport_of(client).service
    schema, batches = service.read(EMBEDDED, {"version": 1, "call": "list", "topic": "t"})
    (batch,) = batches
    assert (batch.num_rows, batch.schema) == (0, schema)
