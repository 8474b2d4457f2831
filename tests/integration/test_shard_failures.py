"""The threaded shard on a disk that fails: nobody is told ok about what is lost, and it goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fasti.broker.shard import Shard
from fasti.config import Durability, ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import (
    Closed,
    Corruption,
    DataDirLocked,
    FastiError,
    OutcomeUnknown,
    PermissionDenied,
    StorageFull,
)
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


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("nth", [1, 2, 5, 9])
def test_a_failed_write_or_sync_is_unknown_and_the_shard_serves_again(kind: str, nth: int) -> None:
    files = SharedFiles()
    told_ok: dict[int, bytes] = {}
    unknown: set[bytes] = set()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        files.faulty = ".segment"
        files.fail(kind, nth)
        for number in range(12):
            payload = b"%d" % number
            try:
                [message] = produce(shard, payload)
            except OutcomeUnknown:
                unknown.add(payload)
            else:
                told_ok[message] = payload
        assert unknown
        assert shard.recoveries == 1
        seen = shown(shard)
        assert told_ok.items() <= seen.items()
        assert {seen[m] for m in seen.keys() - told_ok.keys()} <= unknown
    with serving(files) as shard:
        assert shown(shard) == seen


def test_many_callers_while_the_disk_fails_again_and_again() -> None:
    files = SharedFiles()
    told_ok: list[tuple[int, bytes]] = []
    cancelled: list[int] = []
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        files.faulty = ".segment"

        def call(caller: int) -> None:
            for number in range(40):
                payload = b"%d-%d" % (caller, number)
                try:
                    [message] = produce(shard, payload)
                    told_ok.append((message, payload))
                    if number % 3 == 0 and cancel(shard, message).all_ok:
                        cancelled.append(message)
                except (OutcomeUnknown, StorageFull):
                    pass
                if number % 10 == caller:
                    files.fail(("write", "sync")[number % 2], 3)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(8)))
        files.heal()
        assert shard.recoveries >= 1
        seen = shown(shard)
    expected = {m: p for m, p in told_ok if m not in cancelled}
    assert expected.items() <= seen.items()
    assert not seen.keys() & set(cancelled)
    with serving(files) as shard:
        assert shown(shard) == seen


def test_a_sync_that_fails_under_interval_durability_keeps_what_can_be_kept() -> None:
    files = SharedFiles()
    settings = ShardSettings(
        segment_bytes=1 << 16,
        memory_bytes=64 << 20,
        leases_max=4096,
        durability=Durability.INTERVAL,
        sync_interval_ms=60_000,
    )
    with serving(files, settings, clock=FakeClock()) as shard:
        make_topic(shard)
        first = produce(shard, b"written, not synced")
        broken = shard.engine.step
        shard.engine.step = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
        second = produce(shard, b"decided by the next engine")
        assert shard.engine.step != broken
        assert shown(shard) == {
            first[0]: b"written, not synced",
            second[0]: b"decided by the next engine",
        }


def test_an_engine_that_raises_is_dropped_and_nobody_waits_for_ever() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"before")
        shard.engine.step = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
        produce(shard, b"during")
        produce(shard, b"after")
        assert sorted(shown(shard).values()) == [b"after", b"before", b"during"]


def test_a_failing_checkpoint_leaves_no_files_and_the_next_one_has_its_changes() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, b"a", b"b", b"c", due_us=NOW_US + 10**9)
        shard.checkpoint()
        move = co.Move("t", co.Target(ids=int64s(ids[0])), co.When(due_us=NOW_US + 5 * 10**9))
        assert shard.call(move, 10).all_ok
        produce(shard, b"d", due_us=NOW_US + 10**9)
        before = files.list("blocks/")
        files.fail("create", 2, errno.ENOSPC)
        with pytest.raises(StorageFull):
            shard.checkpoint()
        assert files.list("blocks/") == before
        assert shard.recoveries == 0
        shard.checkpoint()
    with serving(files) as shard:
        found, _ = shard.fetch("t", co.Target(ids=int64s(*ids)))
        assert found.columns["due_us"].tolist()[0] == NOW_US + 5 * 10**9
        assert sorted(shown(shard).values()) == [b"a", b"b", b"c", b"d"]


def test_a_recovery_in_the_middle_of_a_checkpoint() -> None:
    """The checkpoint of the dropped engine must not switch the manifest under the new one."""
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n for n in range(50)), due_us=NOW_US + 10**9)
        reached, failed = threading.Event(), threading.Event()
        put = shard.store.blocks.put

        def slow_put(name: str, buffers: Any) -> None:
            put(name, buffers)
            reached.set()
            assert failed.wait(60)

        shard.store.blocks.put = slow_put  # type: ignore[method-assign]
        checkpoint = shard.housekeeper.checkpoint_now()
        assert reached.wait(60)
        files.faulty = ".segment"
        files.fail("sync", 1)
        with pytest.raises(OutcomeUnknown):
            produce(shard, b"lost")
        failed.set()
        with pytest.raises(FastiError):
            checkpoint.result(60)
        cancel(shard, ids[0])
        shard.checkpoint()
        seen = shown(shard)
        assert len(seen) == 49
    with serving(files) as shard:
        assert shown(shard) == seen


def test_a_recovery_between_the_beginning_of_a_checkpoint_and_its_writing() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n for n in range(20)), due_us=NOW_US + 10**9)
        shard.checkpoint()
        cancel(shard, ids[0])
        write = shard.housekeeper._write

        def write_late(*arguments: Any) -> Any:
            files.faulty = ".segment"
            files.fail("sync", 1)
            with pytest.raises(OutcomeUnknown):
                produce(shard, b"lost")
            cancel(shard, ids[1])  # The new engine answers: it has recovered.
            return write(*arguments)

        shard.housekeeper._write = write_late  # type: ignore[method-assign]
        with pytest.raises(FastiError, match="recovered"):
            shard.checkpoint()
        shard.housekeeper._write = write  # type: ignore[method-assign]
        assert shard.recoveries == 1
        cancel(shard, ids[2])
        shard.checkpoint()
        assert sorted(shown(shard)) == ids[3:]
    with serving(files) as shard:
        assert sorted(shown(shard)) == ids[3:]


def test_storage_full_refuses_payloads_while_acks_and_cancels_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = SharedFiles()
    clock = FakeClock()
    with serving(files, clock=clock) as shard:
        make_topic(shard)
        ids = [produce(shard, b"x" * 1000)[0] for _ in range(60)]
        session = shard.open_session()
        session.lease("t", "c", 5)
        delivery = session.receive(60)
        assert delivery is not None
        used = sum(len(files.open(n, False).map()) for n in files.list(""))
        files.capacity_bytes = used
        refused = 0
        while not refused:
            try:
                ids += produce(shard, b"x" * 1000)
            except StorageFull:
                refused += 1
        leased = delivery.leased
        ack = co.Ack("t", leased.ids, int64s(*[leased.token] * len(leased.ids)))
        assert shard.call(ack, 10).all_ok
        part = co.Produce("t", Rows.of([b"x" * 1000]))
        reply = shard.call(co.Transaction([part]), 10)
        assert reply.error is not None
        assert reply.error.code == "storage_full"
        for message in ids[5:20]:
            assert cancel(shard, message).all_ok
        assert shard.recoveries == 0
        assert shard.room.full
        for _ in range(3):
            with pytest.raises(StorageFull):
                produce(shard, b"x" * 1000)
        files.capacity_bytes = None
        assert produce(shard, b"again")
        # Found by the housekeeper, which looks as long as something was refused.
        while shard.room.full:
            time.sleep(0.01)
        said = [each.getMessage() for each in caplog.records if each.name == "fasti.broker.room"]
        assert [line.split(":")[0] for line in said] == [
            "the disk is full",
            "the disk has room again",
        ]
        assert len(shown(shard)) == len(ids) - 5 - 15 + 1


def test_when_the_reserve_is_used_up_too_nothing_is_lost() -> None:
    files = SharedFiles()
    settings = replace(SETTINGS, segment_bytes=1 << 13)
    with serving(files, settings, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n for n in range(400)), due_us=NOW_US + 10**9)
        files.capacity_bytes = sum(len(files.open(n, False).map()) for n in files.list(""))
        gone = 0
        with suppress(StorageFull):
            while cancel(shard, ids[gone]).all_ok:
                gone += 1
        assert 20 < gone < 400
        # It was told that nothing happened, and so it is; the shard may recover meanwhile.
        left = None
        while left is None:
            with suppress(OutcomeUnknown):
                left = sorted(shown(shard))
        assert left == ids[gone:]
        files.capacity_bytes = None
        assert cancel(shard, ids[gone]).all_ok
        assert sorted(shown(shard)) == ids[gone + 1 :]


def test_a_recovery_that_fails_at_first_is_tried_again() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, b"before")
        files.faulty = ".segment"
        files.fail("sync", 1)
        files.fail("open", 1)
        files.fail("open", 2)
        with pytest.raises(OutcomeUnknown):
            produce(shard, b"lost")
        assert shown(shard)[ids[0]] == b"before"
        assert shard.recoveries == 1
        assert produce(shard, b"after")


def test_a_snapshot_of_a_threaded_shard_outlives_checkpoints() -> None:
    files = SharedFiles()
    with serving(files, clock=FakeClock()) as shard:
        make_topic(shard)
        ids = produce(shard, *(b"%d" % n * 50 for n in range(40)), due_us=NOW_US + 10**9)
        shard.checkpoint()
        produce(shard, b"in the journal", due_us=NOW_US + 10**9)
        snapshot = shard.call(co.TakeSnapshot(NOW_US + 10**12)).value
        for message in ids[:30]:
            cancel(shard, message)
        shard.checkpoint()
        shard.checkpoint()
        shard.store.payloads.forget(in_run=True, wanted=lambda _: False)
        shard.store.payloads.forget(in_run=False, wanted=lambda _: False)
        shard.store.payloads._kept.clear()
        (place,) = [place for place, view in snapshot.ledgers.items() if view.next_sequence > 1]
        (rows,) = snapshot.rows(*place)
        contents = shard.store.payloads.gather(rows["location"]).column("payload")
        assert contents.to_pylist() == [*(b"%d" % n * 50 for n in range(40)), b"in the journal"]
        names = files.list("blocks/")
        assert shard.call(co.DropSnapshot(snapshot.number)).error is None
        shard.checkpoint()
        assert len(files.list("blocks/")) < len(names)


def test_a_shard_that_can_not_recover_says_so_and_can_be_closed() -> None:
    files = SharedFiles()
    shard = Shard(FileStorage(files), SETTINGS, SystemRuntime(FakeClock()))
    make_topic(shard)
    produce(shard, b"one", due_us=NOW_US + 10**9)
    shard.checkpoint()
    state = next(name for name in files.list("blocks/") if name.endswith(".state"))
    files.flip_bit(state, 100)
    session = shard.open_session()
    session.lease("t", "c", 1)
    files.faulty = ".segment"
    files.fail("sync", 1)
    with pytest.raises(OutcomeUnknown):
        produce(shard, b"two")
    with pytest.raises(Closed):
        session.receive(60)
    for _ in range(3):
        with pytest.raises(Closed, match="could not recover"):
            shard.call(co.Count("t"), 20)
    with pytest.raises(FastiError):
        shard.checkpoint()
    shard.close()
    shard.close()
    with pytest.raises(Corruption):
        Shard(FileStorage(files), SETTINGS)
    files.flip_bit(state, 100)
    with serving(files) as again:
        assert next(iter(shown(again).values())) == b"one"


def test_permission_denied_is_told_and_nothing_changes(tmp_path: Path) -> None:
    with serving(LocalFiles(tmp_path)) as shard:
        make_topic(shard)
        produce(shard, b"one")
        shard.checkpoint()
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "blocks").chmod(0o500)
    try:
        with pytest.raises(PermissionDenied):
            Shard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
    finally:
        (tmp_path / "blocks").chmod(0o700)
    with serving(LocalFiles(tmp_path)) as shard:
        assert list(shown(shard).values()) == [b"one"]


OWNER = """
import sys
from fasti.broker.shard import Shard
from fasti.storage.directory import directory_storage

shard = Shard(directory_storage(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as owner:  # type: ignore[call-overload]
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(DataDirLocked) as caught:
            Shard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
        assert caught.value.details["pid"] == owner.pid
        owner.stdin.close()
    with serving(LocalFiles(tmp_path)):
        pass
