"""The housekeeper when things go wrong: it tries again, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fasti.broker import housekeeper
from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.errors import Closed, StorageFailed, StorageFull
from tests.integration.shard_rig import (
    NOW_US,
    SETTINGS,
    FakeClock,
    SharedFiles,
    make_topic,
    produce,
    serving,
    shown,
)

MINUTE_US = 60_000_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeper, "_RETRY_S", 0.01)


def test_a_slice_that_could_not_be_read_is_asked_for_again() -> None:
    clock, files = FakeClock(), SharedFiles()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        produce(shard, b"later", due_us=NOW_US + 60 * MINUTE_US)
        shard.checkpoint()
    with serving(files, clock=clock) as shard:
        load, failures = shard.store.load_slice, []

        def fail_twice(wanted: Any) -> Any:
            if len(failures) < 2:
                failures.append(wanted)
                raise StorageFailed("a bad sector")
            return load(wanted)

        shard.store.load_slice = fail_twice  # type: ignore[method-assign]
        session = shard.open_session()
        session.lease("t", "c", 1)
        clock.advance(shard, 60 * MINUTE_US)
        delivery = session.receive(60)
        assert delivery is not None
        assert delivery.payloads.column("payload").to_pylist() == [b"later"]
        assert len(failures) == 2


def test_a_bug_in_a_checkpoint_is_told_to_who_asked_and_the_next_one_works() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"one", due_us=NOW_US + 10**9)
        write = shard.store.write_checkpoint
        shard.store.write_checkpoint = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
        with pytest.raises(ZeroDivisionError):
            shard.checkpoint()
        assert isinstance(shard.housekeeper.last_error, ZeroDivisionError)
        assert not shard.engine.snapshots
        shard.store.write_checkpoint = write  # type: ignore[method-assign]
        shard.checkpoint()
        assert shard.housekeeper.checkpoints == 1
    with serving(files) as shard:
        assert list(shown(shard).values()) == [b"one"]


def test_an_automatic_checkpoint_that_failed_is_tried_again() -> None:
    files = SharedFiles()
    settings = type(SETTINGS)(
        segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, checkpoint_bytes=1 << 12
    )
    with serving(files, settings, clock=FakeClock()) as shard:
        make_topic(shard)
        files.faulty = "blocks/"
        files.fail("create", 1)
        produce(shard, *(b"x" * 1000 for _ in range(8)), due_us=NOW_US + 10**9)
        with shard.housekeeper._changed:
            # Nothing more is written: it must come back by itself.
            assert shard.housekeeper._changed.wait_for(
                lambda: shard.store.manifest.checkpoint > 0, 60
            )
        assert shard.housekeeper.last_error is not None


def test_messages_that_came_one_by_one_are_reason_for_a_checkpoint() -> None:
    """However small they are: each is to be replayed by itself."""
    files = SharedFiles()
    settings = replace(SETTINGS, checkpoint_frames=50)
    with serving(files, settings, clock=FakeClock()) as shard:
        make_topic(shard)
        count = 0
        while shard.housekeeper.checkpoints < 3:
            produce(shard, b"x", due_us=NOW_US + 10**9)
            count += 1
            assert count < 10_000
    # Not one for each: frames that a checkpoint tells count no more.
    assert count > 50
    with serving(files, settings, clock=FakeClock()) as shard:
        assert shard.store.replayed < 100
        assert len(shown(shard)) == count


def test_a_tail_that_dead_processes_left_is_reason_for_a_checkpoint() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, *(b"x" * 1000 for _ in range(8)), due_us=NOW_US + 10**9)
    settings = type(SETTINGS)(
        segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, checkpoint_bytes=1 << 12
    )
    with serving(files, settings, clock=FakeClock()) as shard:
        with shard.housekeeper._changed:
            assert shard.housekeeper._changed.wait_for(
                lambda: shard.store.manifest.checkpoint > 0, 60
            )


def test_what_is_asked_of_a_closed_shard_is_refused() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
    with pytest.raises(Closed):
        shard.housekeeper.checkpoint_now()
    with pytest.raises(Closed):
        shard.call(co.Count("t"))


def produce_for_ever(shard: Shard, *payloads: bytes) -> None:
    while True:
        produce(shard, *payloads)


def test_a_disk_so_full_that_even_the_feed_cannot_go_refuses_and_goes_on() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"before")
        store, journal, capacity = shard.store, shard.store.journal, shard.store.capacity
        prepare, trim = capacity.prepare_spare, journal.trim

        def full() -> bool:
            raise StorageFull("no room")

        def broken(through: int) -> None:
            raise StorageFailed("nor can anything be deleted")

        capacity.prepare_spare = full  # type: ignore[method-assign]
        journal.trim = broken  # type: ignore[method-assign]
        large = [b"x" * 9_000] * 6
        with pytest.raises(StorageFull):
            produce_for_ever(shard, *large)
        assert shard.store is store
        assert shard.room.full
        assert shard.threads.troubles() == []
        capacity.prepare_spare = prepare  # type: ignore[method-assign]
        journal.trim = trim  # type: ignore[method-assign]
        with shard.housekeeper._changed:
            shard.housekeeper._changed.notify_all()
        assert produce(shard, b"after")


def test_a_slice_in_hand_when_the_thread_dies_is_read_all_the_same() -> None:
    clock, files = FakeClock(), SharedFiles()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        produce(shard, b"later", due_us=NOW_US + 60 * MINUTE_US)
        shard.checkpoint()
    with serving(files, clock=clock) as shard:
        load, died = shard.store.load_slice, []

        def die_once(wanted: Any) -> Any:
            if not died:
                died.append(wanted)
                raise SystemExit("not even an Exception")
            return load(wanted)

        shard.store.load_slice = die_once  # type: ignore[method-assign]
        session = shard.open_session()
        session.lease("t", "c", 1)
        clock.advance(shard, 60 * MINUTE_US)
        delivery = session.receive(60)
        assert delivery is not None
        assert shard.threads.deaths["fasti-slices"] == 1
