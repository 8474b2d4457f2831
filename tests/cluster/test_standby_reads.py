"""A standby on real servers, read from while it follows: it says what its leader said, or that it can't."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from fasti.broker.reading import fetch
from fasti.cluster.nats import NatsConnection
from fasti.cluster.standby import NotReadable, Standby
from fasti.cluster.stream_storage import StreamSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.layout import ALONE
from fasti.core.queries import ReadTopics
from fasti.core.still_reads import CountRows
from fasti.doors.standby_reads import StandbyShard
from fasti.errors import Moved
from tests.cluster.nats_rig import wait_until
from tests.cluster.test_standby import catch_up, lead, place, settings, stand_by, take_over
from tests.cluster.test_stream_storage import lease_and_ack
from tests.integration.shard_rig import NOW_US, SETTINGS, make_topic, produce

__all__ = ["settings"]

HOUR_US = 3_600_000_000


def reader_of(standby: Standby, clock: object) -> StandbyShard:
    return StandbyShard(standby, ALONE, SETTINGS, clock, lambda: Moved("elsewhere"))  # type: ignore[arg-type]


def is_readable(standby: Standby) -> bool:
    try:
        standby.read([ReadTopics()], NOW_US)
    except NotReadable:
        return False
    return True


def test_a_standby_says_what_its_leader_says_over_checkpoints(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    assert not is_readable(standby)
    expected: dict[int, bytes] = {}
    as_of = []
    for round_number in range(3):
        payloads = [b"%d of round %d" % (number, round_number) for number in range(50)]
        expected |= zip(produce(shard, *payloads), payloads, strict=True)
        produce(shard, b"later", due_us=shard.clock.now_us() + HOUR_US)
        for id_ in lease_and_ack(shard, 20):
            del expected[id_]
        # Read from frames, then from blocks.
        for checkpoint in (False, True):
            if checkpoint:
                shard.checkpoint()
            catch_up(standby, shard)
            reader = reader_of(standby, shard.clock)
            counted, led = reader.call(co.Count("t")), shard.call(co.Count("t"))
            assert counted.states == led.states
            target = co.Target(ids=np.array(sorted(expected), dtype=np.int64))
            _, contents = fetch(reader, "t", target)  # type: ignore[arg-type]
            found = contents.column("payload").to_pylist()
            assert found == [expected[id_] for id_ in sorted(expected)]
            as_of.append(reader.as_of_us)
    assert as_of == sorted(as_of)
    refused = reader.call(co.Count("nothing"))
    assert refused.error is not None
    assert refused.error.code == "not_found"
    shard.close(checkpoint=False)


def test_a_read_at_the_wrong_time_is_told_so(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    produce(shard, *[b"%d" % number for number in range(50)])
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    shard.checkpoint()
    standby.hear(place(shard), shard.store.version)
    wait_until(lambda: standby.step() is not None and not is_readable(standby), "an install")
    with pytest.raises(Moved):
        reader_of(standby, shard.clock).call(co.Count("t"))
    catch_up(standby, shard)
    reader = reader_of(standby, shard.clock)
    assert sum(reader.call(co.Count("t")).states.values()) == 50
    # A snapshot that is being read outlives that the standby leads, and is nobody's to drop twice.
    snapshot = reader.call(co.TakeSnapshot(shard.clock.now_us() + HOUR_US, "t")).value
    storage = standby.hand_over()
    assert storage is not None
    assert is_readable(standby), "it doesn't lead yet"
    other = take_over(standby)
    assert not is_readable(standby)
    assert other.engine.snapshots[snapshot.number] is snapshot
    assert not snapshot.closed
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


def test_a_snapshot_is_let_go_without_another_reader(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)

    def pin_and_drop() -> None:
        snapshot = reader_of(standby, shard.clock).call(
            co.TakeSnapshot(shard.clock.now_us() + HOUR_US, "t")
        )
        standby.drop_snapshot(snapshot.value)

    pin_and_drop()
    produce(shard, b"more")
    catch_up(standby, shard)
    engine = standby.engine
    assert engine is not None
    assert not engine.snapshots
    # Nor does one that came to lead keep any.
    pin_and_drop()
    other = take_over(standby)
    assert not other.engine.snapshots
    other.close(checkpoint=False)
    shard.close(checkpoint=False)


def test_a_snapshot_is_read_over_a_checkpoint(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    # What is out of force stays in the stream for a while.
    shard = lead(nats, replace(settings, grace_s=60), "first")
    make_topic(shard)
    standby = stand_by(nats, settings, "second")
    expected = [b"%d" % number for number in range(30)]
    for payload in expected:
        produce(shard, payload)
    catch_up(standby, shard)
    reader = reader_of(standby, shard.clock)
    snapshot = reader.call(co.TakeSnapshot(shard.clock.now_us() + HOUR_US, "t")).value
    pages = [columns for ledger in snapshot.ledgers for columns in snapshot.rows(*ledger)]
    locations = np.concatenate([columns["location"] for columns in pages])
    shard.checkpoint()
    catch_up(standby, shard)
    assert standby.installs == 1
    found = reader.store.payloads.gather(locations, names=("payload",), lost=True)
    assert sorted(found.column("payload").to_pylist()) == sorted(expected)
    shard.close(checkpoint=False)


def test_a_reader_never_sees_half_of_a_command(
    nats: NatsConnection, settings: StreamSettings
) -> None:
    shard = lead(nats, settings, "first")
    for name in ("t", "u"):
        make_topic(shard, name)
    standby = stand_by(nats, settings, "second")
    catch_up(standby, shard)
    seen: list[tuple[int, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                both = [CountRows(name, shard.clock.now_us() + HOUR_US) for name in ("t", "u")]
                (one, two), _ = standby.read(both, NOW_US)
            except NotReadable:
                continue
            seen.append((int(one.value.totals.sum()), int(two.value.totals.sum())))
            for reply in (one, two):
                standby.drop_snapshot(reply.value.snapshot)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for thread in readers:
        thread.start()
    for number in range(20):
        rows = Rows.of([b"%d" % number])
        parts = [co.Produce(name, rows, co.When(due_us=NOW_US)) for name in ("t", "u")]
        assert shard.call(co.Transaction(parts)).committed
        if number % 5 == 0:
            shard.checkpoint()
        catch_up(standby, shard)
    over.set()
    for thread in readers:
        thread.join()
    assert seen
    assert all(one == two for one, two in seen)
    shard.close(checkpoint=False)
