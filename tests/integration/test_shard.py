"""The threaded shard at work: payloads wherever they lie, time, sessions, closing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fasti.broker import session as sessions
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.queries import ReadPosition
from fasti.errors import Closed, Gone, InvalidArgument
from fasti.model import DUE_MAX_US, OnConflict, Outcome
from fasti.runtime import SystemRuntime
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from tests.integration.shard_rig import (
    NOW_US,
    SETTINGS,
    FakeClock,
    SharedFiles,
    cancel,
    int64s,
    make_topic,
    produce,
    serving,
    shown,
)

MINUTE_US = 60_000_000


def by_key(shard: Shard, *keys: str) -> co.Target:
    column = Rows.of([b""] * len(keys), key=list(keys)).batch.column("key")
    return co.Target(keys=Keys(column, shard.store.seed))


def received(session: sessions.Session, count: int) -> list[tuple[int, bytes]]:
    """Due time and payload of the next messages."""
    got: list[tuple[int, bytes]] = []
    while len(got) < count:
        delivery = session.receive(60)
        assert delivery is not None, f"{len(got)} of {count} came"
        payloads = delivery.payloads.column("payload").to_pylist()
        got += zip(delivery.leased.due_us.tolist(), payloads, strict=True)
    return got


def leased(shard: Shard, count: int) -> sessions.Delivery:
    session = shard.open_session()
    session.lease("t", f"c{session.number}", count)
    delivery = session.receive(60)
    assert delivery is not None
    return delivery


def tokens(delivery: sessions.Delivery) -> Any:
    return np.full(len(delivery.leased.ids), delivery.leased.token)


# Payloads, keys and times of creation


def test_an_update_keeps_the_key_and_the_time_of_creation() -> None:
    clock, files = FakeClock(), SharedFiles()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        ids = produce(shard, b"a", b"b", b"c", key=["ka", None, "kc"], due_us=NOW_US + 10**12)
        shard.checkpoint()
        clock.advance(shard, MINUTE_US)
        rows = Rows.of([b"A", b"?", b"B"], headers=[[("h", "1")], None, None])
        target = co.Target(ids=int64s(ids[0], 999, ids[1]))
        reply = shard.update("t", target, rows)
        assert reply.status.tolist() == [Outcome.OK, Outcome.NOT_FOUND, Outcome.OK]
        assert shard.update("t", by_key(shard, "kc"), Rows.of([b"C"]), versions=1).all_ok
        for _ in range(2):
            found, contents = shard.fetch("t", co.Target(ids=int64s(*ids)))
            assert found.columns["version"].tolist() == [2, 2, 2]
            assert contents.column("payload").to_pylist() == [b"A", b"B", b"C"]
            assert contents.column("key").to_pylist() == ["ka", None, "kc"]
            assert contents.column("created_us").to_pylist() == [NOW_US] * 3
            assert contents.column("headers").to_pylist() == [[("h", "1")], None, None]
            shard.checkpoint()
    with serving(files, clock=clock) as shard:
        found, contents = shard.fetch("t", by_key(shard, "ka", "kc"))
        assert found.ids.tolist() == [ids[0], ids[2]]
        assert contents.column("payload").to_pylist() == [b"A", b"C"]


def test_fetch_shows_what_is_there_and_tells_of_the_rest() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, b"a", b"b")
        cancel(shard, ids[0])
        found, contents = shard.fetch("t", co.Target(ids=int64s(ids[0], ids[1], 77)))
        assert found.status.tolist() == [Outcome.CANCELLED, Outcome.OK, Outcome.NOT_FOUND]
        assert contents.column("payload").to_pylist() == [b"", b"b", b""]
        assert contents.column("created_us").to_pylist() == [None, NOW_US, None]
        found, contents = shard.fetch("t", co.Target(ids=int64s(77)))
        assert contents.column("payload").to_pylist() == [b""]
        with pytest.raises(Exception, match="no topic"):
            shard.fetch("none", co.Target(ids=int64s(1)))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_redriven_message_has_its_key_again(checkpointed: bool) -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"a", b"b", key=["ka", None])
        delivery = leased(shard, 2)
        assert shard.call(co.Reject("t", delivery.leased.ids, tokens(delivery), "bad")).all_ok
        if checkpointed:
            shard.checkpoint()
        assert shard.redrive("t", delivery.leased.ids, co.When(delay_us=10**9)).all_ok
        found, contents = shard.fetch("t", by_key(shard, "ka"))
        assert found.status.tolist() == [Outcome.OK]
        assert contents.column("payload").to_pylist() == [b"a"]
        rows = Rows.of([b"other"], key=["ka"])
        reply = shard.call(co.Produce("t", rows, keys=rows.keys(shard.store.seed)))
        assert reply.outcome() is Outcome.CONFLICT


def test_a_slow_consumer_finds_what_checkpoints_moved() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n * 500 for n in range(200)))
        session = shard.open_session()
        session.lease("t", "slow", 10)
        shard.submit([]).result(60)
        for _ in range(200):
            produce(shard, b"more" * 500)
        shard.checkpoint()
        assert shard.store.journal.first_sequence > 2
        # Not even what was kept in memory is there any more.
        shard.store.payloads._kept.clear()
        shard.store.payloads.forget(in_run=False, wanted=lambda _: False)
        assert received(session, 10) == [(NOW_US, b"%d" % n * 500) for n in range(10)]
        assert ids
        session.lease("t", "slow", 10)
        cancelled = [cancel(shard, i).all_ok for i in ids[20:]]
        assert all(cancelled)
        shard.checkpoint()
        assert received(session, 10) == [(NOW_US, b"%d" % n * 500) for n in range(10, 20)]


def test_who_waits_for_one_that_was_finished_before_it_came_gets_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer counts what it asked for: with one at a time it would wait for ever."""
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"first", b"second")
        session = shard.open_session()
        session.lease("t", "c", 1)
        shown = session.arrived.get(timeout=60)
        acked = shard.call(co.Ack("t", shown.leased.ids, int64s(shown.leased.token)))
        assert acked.all_ok
        gather = shard.store.payloads.gather

        def moved(*_: Any) -> Any:
            monkeypatch.setattr(shard.store.payloads, "gather", gather)
            raise Gone("a checkpoint moved it")

        monkeypatch.setattr(shard.store.payloads, "gather", moved)
        assert not len(session.join(shown.leased).leased.ids)
        assert received(session, 1) == [(NOW_US, b"second")]


def test_readers_while_checkpoints_move_everything() -> None:
    settings = ShardSettings(
        segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, feed_bytes=0
    )
    with serving(SharedFiles(), settings, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n for n in range(300)), due_us=NOW_US + 10**12)
        over = threading.Event()

        def read(seed: int) -> int:
            rng, reads = random.Random(seed), 0
            while not reads or not over.is_set():
                chosen = rng.sample(range(300), 5)
                target = co.Target(ids=int64s(*(ids[n] for n in chosen)))
                _, contents = shard.fetch("t", target)
                payloads = contents.column("payload").to_pylist()
                assert [p.split(b"-")[0] for p in payloads] == [b"%d" % n for n in chosen]
                reads += 1
            return reads

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read, seed) for seed in range(3)]
            for number in range(25):
                chosen = random.Random(number).sample(range(300), 160)
                rows = Rows.of([b"%d-%d" % (n, number) for n in chosen])
                target = co.Target(ids=int64s(*(ids[n] for n in chosen)))
                assert shard.update("t", target, rows).all_ok
                shard.checkpoint()
            over.set()
            assert all(reader.result(30) for reader in readers)


def test_a_delivery_of_many_bytes_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_DELIVERY_BYTES", 3 << 20)
    with serving(SharedFiles(), ShardSettings(memory_bytes=64 << 20), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, *(bytes([n]) * (1 << 20) for n in range(7)))
        session = shard.open_session()
        session.lease("t", "c", 7)
        sizes = []
        got = b""
        while len(got) < 7:
            delivery = session.receive(60)
            assert delivery is not None
            payloads = delivery.payloads.column("payload").to_pylist()
            assert len(payloads) == len(delivery.leased.ids)
            sizes.append(len(payloads))
            got += b"".join(payload[:1] for payload in payloads)
        assert sizes == [2, 2, 2, 1]
        assert got == bytes(range(7))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1), (0, 1, 0), (0, 0)])
def test_a_transaction_in_which_a_produce_keeps_what_is_there(order: tuple[int, ...]) -> None:
    """Its frame of payloads, which nobody wants, must not stand between two others."""
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"kept", key=["k"])
        parts = []
        for is_new in order:
            rows = Rows.of([b"new" if is_new else b"unwanted"], key=["n" if is_new else "k"])
            keys = rows.keys(shard.store.seed)
            parts.append(co.Produce("t", rows, keys=keys, on_conflict=OnConflict.KEEP))
        assert shard.call(co.Transaction(parts), 20).committed
        produce(shard, b"after")
        seen = shown(shard)
        assert sorted(seen.values()) == [b"after", b"kept", b"new"][: 3 if 1 in order else 2]
        assert shard.recoveries == 0
    with serving(files) as shard:
        assert shown(shard) == seen


# Time


def test_slices_are_read_back_in_order_and_nothing_comes_early() -> None:
    clock, files = FakeClock(), SharedFiles()
    rng = random.Random(5)
    dues = sorted(NOW_US + rng.randrange(1, 60) * MINUTE_US for _ in range(300))
    with serving(files, clock=clock) as shard:
        make_topic(shard, lease_us=12 * 60 * MINUTE_US)
        order = list(range(300))
        rng.shuffle(order)
        for begin in range(0, 300, 50):
            part = order[begin : begin + 50]
            rows = Rows.of([b"%d" % n for n in part])
            when = co.When(due_us=int64s(*(dues[n] for n in part)))
            assert shard.call(co.Produce("t", rows, when)).all_ok
            shard.checkpoint()
    with serving(files, clock=clock) as shard:
        session = shard.open_session()
        session.lease("t", "c", 1000)
        got: list[tuple[int, bytes]] = []
        for _ in range(61):
            clock.advance(shard, MINUTE_US)
            expected = [due for due in dues if due <= shard.clock.now_us()]
            came = received(session, len(expected) - len(got))
            assert all(due <= shard.clock.now_us() for due, _ in came)
            got += came
        assert [due for due, _ in got] == dues
        assert sorted(int(payload) for _, payload in got) == list(range(300))


def test_a_message_in_millennia_does_not_stop_the_clock() -> None:
    clock = FakeClock()
    with serving(SharedFiles(), clock=clock) as shard:
        make_topic(shard)
        session = shard.open_session()
        session.lease("t", "c", 2)
        produce(shard, b"far", due_us=DUE_MAX_US)
        shard.checkpoint()
        produce(shard, b"near", due_us=NOW_US + MINUTE_US)
        clock.advance(shard, MINUTE_US)
        assert received(session, 1) == [(NOW_US + MINUTE_US, b"near")]


def test_on_the_machine_clock_messages_arrive_when_they_are_due(tmp_path: Path) -> None:
    with serving(LocalFiles(tmp_path)) as shard:
        make_topic(shard, lookahead_us=0)
        begin_us = shard.clock.now_us()
        dues = [begin_us + 20_000 * n for n in range(1, 11)]
        for n, due in enumerate(dues):
            produce(shard, b"%d" % n, due_us=due)
        shard.checkpoint()
        session = shard.open_session()
        session.lease("t", "c", 10)
        got: list[int] = []
        while len(got) < 10:
            delivery = session.receive(60)
            assert delivery is not None
            assert shard.clock.now_us() >= delivery.leased.due_us.max()
            got += delivery.leased.due_us.tolist()
        assert got == dues


# Sessions and closing


def test_a_session_leases_again_after_a_recovery() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        session = shard.open_session()
        session.lease("t", "c", 5)
        produce(shard, b"first")
        assert received(session, 1) == [(NOW_US, b"first")]
        files.faulty = ".segment"
        files.fail("sync", 1)
        with pytest.raises(Exception, match="storage failed"):
            produce(shard, b"lost")
        with pytest.raises(Closed):
            session.receive(60)
        session.lease("t", "c", 5)
        # A consumer that comes back under its name gets its live leases again.
        assert received(session, 1) == [(NOW_US, b"first")]
        produce(shard, b"second")
        assert received(session, 1) == [(NOW_US, b"second")]
        session.close()


def test_closing_answers_everybody() -> None:
    files = SharedFiles()
    shard = Shard(FileStorage(files), SETTINGS, SystemRuntime(FakeClock()))
    make_topic(shard)
    session = shard.open_session()
    session.lease("t", "c", 5)
    begin = threading.Barrier(5)
    answered: list[int] = []

    def call() -> None:
        begin.wait()
        while True:
            try:
                answered.extend(produce(shard, b"x", due_us=NOW_US + 10**9))
            except Closed:
                return

    with ThreadPoolExecutor(6) as pool:
        callers = [pool.submit(call) for _ in range(4)]
        waiting = pool.submit(session.receive)
        begin.wait()
        closers = [pool.submit(shard.close) for _ in range(1)]
        shard.close()
        for future in [*callers, *closers]:
            future.result(30)
        with pytest.raises(Closed):
            waiting.result(30)
    with pytest.raises(Closed):
        shard.ask(ReadPosition())
    with pytest.raises(Closed):
        shard.checkpoint()
    session.close()
    with serving(files) as again:
        assert sorted(shown(again)) == sorted(answered)


def test_checkpoints_happen_by_themselves_and_trim_the_journal() -> None:
    settings = ShardSettings(
        segment_bytes=1 << 14,
        feed_bytes=0,
        memory_bytes=64 << 20,
        leases_max=4096,
        checkpoint_bytes=1 << 15,
        checkpoint_bytes_per_s=1 << 30,
    )
    files = SharedFiles()
    with serving(files, settings, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = []
        while shard.housekeeper.checkpoints < 5:
            ids += produce(shard, *(b"x" * 200 for _ in range(20)), due_us=NOW_US + 10**9)
            assert len(ids) < 100_000
        assert shard.store.journal.first_sequence > 2
        assert sorted(shown(shard)) == ids
    with serving(files, settings) as shard:
        assert sorted(shown(shard)) == ids


def test_bad_input_is_refused_and_changes_nothing() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        reply = shard.call(co.Produce("t", Rows.of([b"a"]), co.When(due_us=-5)))
        assert isinstance(reply.error, InvalidArgument)
        keyed, unkeyed = Rows.of([b"a"], key=["k"]), Rows.of([b"a"])
        for rows, keys in ((keyed, None), (unkeyed, keyed.keys(shard.store.seed))):
            # After a restart the message would have a key, or none, other than before.
            produced = co.Produce("t", rows, keys=keys)
            for command in (produced, co.Transaction([produced])):
                with pytest.raises(InvalidArgument, match="keys"):
                    shard.call(command)
        assert shown(shard) == {}
