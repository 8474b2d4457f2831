"""The data directory as a whole: damage, failing disks, and what a checkpoint may delete."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import (
    Corruption,
    FastiError,
    Fenced,
    NewerFormat,
    PermissionDenied,
    StorageError,
    StorageFailed,
)
from fasti.model import TopicSettings
from fasti.storage import event_codec, manifest, seals
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import blocks as file_blocks
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.local_shard import LocalShard
from fasti.storage.memory_storage import MemoryStorage
from fasti.storage.recovery import delete_leftovers
from fasti.storage.runs import number_in
from fasti.testing.disk import SimulatedFiles
from tests.crash.shard_workload import Driven, dump, moment, write_story

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=1024, feed_bytes=0)
NOW_US = 1_700_000_000_000_000


def opened(files: SimulatedFiles) -> LocalShard:
    shard = LocalShard(FileStorage(files), SETTINGS)
    shard.call(co.CreateTopic("t"), NOW_US, 0)
    return shard


def produce(shard: LocalShard, *payloads: bytes, due_us: int = NOW_US + 10**9) -> list[int]:
    command = co.Produce("t", Rows.of(list(payloads)), co.When(due_us=due_us))
    reply = shard.call(command, NOW_US, 0)
    assert reply.all_ok
    return reply.ids.tolist()


def cancel(shard: LocalShard, *ids: int) -> None:
    target = co.Target(ids=np.array(ids, dtype=np.int64))
    assert shard.call(co.Cancel("t", target), NOW_US, 0).all_ok


def move(shard: LocalShard, due_us: int, *ids: int) -> None:
    target = co.Target(ids=np.array(ids, dtype=np.int64))
    assert shard.call(co.Move("t", target, co.When(due_us=due_us)), NOW_US, 0).all_ok


def shown(shard: LocalShard) -> dict[int, tuple[int, bytes]]:
    """Due time and payload of every message."""
    page = shard.call(co.List("t", limit=60_000), NOW_US, 0)
    if not len(page.ids):
        return {}
    contents = shard.store.payloads.gather(page.columns["location"]).column("payload").to_pylist()
    dues = page.columns["due_us"].tolist()
    return dict(zip(page.ids.tolist(), zip(dues, contents, strict=True), strict=True))


def content(files: SimulatedFiles) -> dict[str, bytes]:
    return {name: bytes(files.open(name, writable=False).map()) for name in files.list("")}


def killed(files: SimulatedFiles) -> SimulatedFiles:
    """The same disk for the next process: the one before was killed, the machine is up."""
    files.locked = False
    return files


# Damage


def grown_directory() -> SimulatedFiles:
    """A directory with runs, deltas, a state block and a tail of the journal."""
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"%d" % n * 20 for n in range(30)))
    shard.checkpoint(NOW_US, 0)
    move(shard, NOW_US + 5 * 10**9, *ids[:3])
    cancel(shard, ids[4])
    shard.checkpoint(NOW_US, 0)
    for n in range(6):
        produce(shard, b"tail %d" % n)
    shard.close()
    return files


def test_the_grown_directory_has_everything() -> None:
    names = grown_directory().list("blocks/")
    assert {name.rpartition(".")[2] for name in names} == {
        "delta",
        "payloads",
        "rows",
        "state",
        "blocks/MANIFEST",
    }


@pytest.mark.parametrize("kind", ["MANIFEST", ".rows", ".delta", ".state"])
def test_any_flipped_bit_is_found_when_opening(kind: str) -> None:
    files = grown_directory()
    name = next(n for n in files.list("blocks/") if n.endswith(kind))
    size = len(content(files)[name])
    for offset in sorted({*range(min(size, 48)), *range(48, size, 37), size - 1}):
        files.flip_bit(name, offset, offset % 8)
        before = content(files)
        with pytest.raises(StorageError) as caught:
            LocalShard(FileStorage(files), SETTINGS)
        assert isinstance(caught.value, Corruption), offset
        assert name.endswith(caught.value.details["file"])
        assert "offset" in caught.value.details
        assert files.list("blocks/") == [n for n in before if n.startswith("blocks/")]
        files.flip_bit(name, offset, offset % 8)
    assert len(shown(LocalShard(FileStorage(files), SETTINGS))) == 35


def test_any_flipped_bit_of_a_payload_is_found_when_it_is_read() -> None:
    files = grown_directory()
    name = next(n for n in files.list("blocks/") if n.endswith(".payloads"))
    size = len(content(files)[name])
    shard = LocalShard(FileStorage(files), SETTINGS)
    before = shown(shard)
    shard.close()
    for offset in [*range(0, size, 101), size - 1]:
        files.flip_bit(name, offset, offset % 8)
        shard = LocalShard(FileStorage(files), SETTINGS)
        with suppress(Corruption):
            # A bit that says nothing of any row costs none.
            assert shown(shard) == before
        assert [found.file for found in shard.store.payloads.damages.files()] == [name]
        shard.close()
        files.flip_bit(name, offset, offset % 8)


def test_a_rotten_payload_is_not_copied_under_a_fresh_checksum() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"%d" % n * 20 for n in range(10)))
    shard.checkpoint(NOW_US, 0)
    cancel(shard, *ids[:8])
    shard.close()
    name = next(n for n in files.list("blocks/") if n.endswith(".payloads"))
    damaged = content(files)[name].index(b"9" * 20)
    files.flip_bit(name, damaged)
    shard = LocalShard(FileStorage(files), SETTINGS)
    # More than half is dead: it would be rewritten, but then a good copy could not be put back.
    shard.checkpoint(NOW_US, 0)
    assert name in files.list("blocks/")
    with pytest.raises(Corruption):
        shown(shard)
    files.flip_bit(name, damaged)
    shard.store.payloads.look_again()
    assert [payload for _, payload in shown(shard).values()] == [b"8" * 20, b"9" * 20]


def test_a_flipped_bit_in_the_middle_of_the_journal_is_found() -> None:
    files = grown_directory()
    name = max(n for n in files.list("journal/") if n.endswith(".segment"))
    body = content(files)[name].index(b"tail 2")
    files.flip_bit(name, body)
    before = files.list("")
    with pytest.raises(Corruption) as caught:
        LocalShard(FileStorage(files), SETTINGS)
    assert caught.value.details["file"] == name
    assert files.list("") == before


@pytest.mark.parametrize("kind", [".rows", ".delta", ".state"])
def test_a_missing_block_is_corruption(kind: str) -> None:
    files = grown_directory()
    name = next(n for n in files.list("blocks/") if n.endswith(kind))
    files.delete(name)
    with pytest.raises(Corruption) as caught:
        LocalShard(FileStorage(files), SETTINGS)
    assert name.endswith(caught.value.details["file"])


def test_a_missing_manifest_or_journal_is_corruption() -> None:
    files = grown_directory()
    files.rename("blocks/MANIFEST", "elsewhere")
    with pytest.raises(Corruption, match="no manifest"):
        LocalShard(FileStorage(files), SETTINGS)
    files.rename("elsewhere", "blocks/MANIFEST")
    for name in files.list("journal/"):
        files.delete(name)
    with pytest.raises(Corruption, match="does not go on behind frame 4"):
        LocalShard(FileStorage(killed(files)), SETTINGS)


def test_a_failed_opening_deletes_no_leftovers() -> None:
    files = grown_directory()
    FileBlocks(files).put("000000000999.rows", [b"from a checkpoint that never finished"])
    damaged = next(n for n in files.list("blocks/") if n.endswith(".state"))
    files.flip_bit(damaged, 40)
    with pytest.raises(Corruption):
        LocalShard(FileStorage(files), SETTINGS)
    assert files.exists("blocks/000000000999.rows")
    files.flip_bit(damaged, 40)
    LocalShard(FileStorage(files), SETTINGS)
    assert not files.exists("blocks/000000000999.rows")


NOW = 1_700_000_000_000_000


def two_writers() -> tuple[LocalShard, LocalShard]:
    """Two shards on the same storage, of which the first doesn't know that it is deposed."""
    first, second = MemoryStorage(), MemoryStorage()
    old = LocalShard(first, SETTINGS)
    assert old.call(co.CreateTopic("t", TopicSettings()), NOW, 0).error is None
    assert first.journal is not None
    second.blocks, second.journal = first.blocks, first.journal
    return old, LocalShard(second, SETTINGS)


def test_two_writers_never_write_the_same_name() -> None:
    old, new = two_writers()
    for shard in (old, new):
        assert shard.call(co.Produce("t", Rows.of([b"x"])), NOW, 0).error is None
    new.checkpoint(NOW, 0)
    with pytest.raises(Fenced):
        old.checkpoint(NOW, 0)
    numbers = [number_in(name) for name in new.store.blocks.list()]
    assert len(numbers) > len(set(numbers)), "they gave the same numbers"
    assert new.store.manifest.names < set(new.store.blocks.list())


def test_an_opening_deletes_nothing_of_a_later_epoch() -> None:
    old, new = two_writers()
    new.checkpoint(NOW, 0)
    written = set(new.store.blocks.list())
    delete_leftovers(old.store.blocks, old.store.manifest, old.store.journal.epoch)
    assert set(old.store.blocks.list()) == written
    later = new.store.journal.epoch + 1
    delete_leftovers(old.store.blocks, old.store.manifest, later)
    assert not old.store.blocks.list()


# Versions


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (file_blocks, ["MANIFEST_FORMAT_VERSION"]),
        (manifest, ["MANIFEST_DATA_VERSION"]),
        (seals, ["BLOCK_FORMAT_VERSION"]),
        (event_codec, ["BODY_FORMAT_VERSION", "BATCH_FORMAT_VERSION"]),
    ],
)
def test_a_newer_format_is_refused_and_nothing_is_changed(
    module: Any, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for name in names:
            patched.setattr(module, name, 99)
        files = grown_directory()
    before = content(files)
    with pytest.raises(NewerFormat) as caught:
        LocalShard(FileStorage(files), SETTINGS)
    assert (caught.value.details["found"], caught.value.details["supported"]) == (
        99,
        getattr(module, names[0]),
    )
    # An operator reads which format it has, which are readable, and what to do.
    assert "has format 99, which another version of Fasti wrote" in caught.value.message
    assert "use the version that wrote it" in caught.value.message
    assert f"reads up to {getattr(module, names[0])}" in caught.value.message
    blocks_before = {n: c for n, c in before.items() if n.startswith("blocks/")}
    assert {n: c for n, c in content(files).items() if n.startswith("blocks/")} == blocks_before


@pytest.mark.parametrize("kind", ["open", "sync_directory"])
def test_permission_denied_is_told_and_nothing_is_changed(kind: str) -> None:
    files = grown_directory()
    before = shown(LocalShard(FileStorage(files), SETTINGS))
    names = killed(files).list("blocks/")
    refused = 0
    for nth in range(1, 6):
        files.fail(kind, nth, errno.EACCES)
        try:
            shard = LocalShard(FileStorage(files), SETTINGS)
        except PermissionDenied:
            refused += 1
        else:
            shard.close()
        files.heal()
        assert files.list("blocks/") == names
        again = LocalShard(FileStorage(files), SETTINGS)
        assert shown(again) == before
        again.close()
    assert refused


# Failing checkpoints


def test_a_checkpoint_that_fails_anywhere_loses_nothing_and_the_next_one_has_it_all() -> None:
    for kind in ("create", "write", "sync", "rename", "sync_directory", "delete"):
        for nth in range(1, 30):
            files = SimulatedFiles()
            shard = opened(files)
            first = produce(shard, b"one", b"two", b"three")
            shard.checkpoint(NOW_US, 0)
            move(shard, NOW_US + 7 * 10**9, first[0])  # goes into a delta block
            second = produce(shard, b"four")
            files.fail(kind, nth, errno.EIO)
            try:
                shard.checkpoint(NOW_US, 0)
            except FastiError:
                files.heal()
            else:
                files.heal()
                break  # It has fewer operations of that kind.
            move(shard, NOW_US + 8 * 10**9, second[0], first[1])
            before = shown(shard)
            shard.checkpoint(NOW_US, 0)
            assert shown(shard) == before
            shard.close()
            again = LocalShard(FileStorage(files), SETTINGS)
            assert shown(again) == before, (kind, nth)
            named = {f"blocks/{n}" for n in again.store.manifest.names}
            assert set(files.list("blocks/")) == named | {"blocks/MANIFEST"}, (kind, nth)
            again.close()


def test_a_full_disk_in_the_middle_of_a_checkpoint_leaves_no_files() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"x" * 500 for _ in range(60)))
    before, names = shown(shard), files.list("")
    used = sum(len(data) for data in content(files).values())
    for room in (10, 1_000, 33_000):
        files.capacity_bytes = used + room
        with pytest.raises(StorageError):
            shard.checkpoint(NOW_US, 0)
        assert files.list("") == names
        assert shown(shard) == before
    files.capacity_bytes = None
    cancel(shard, ids[0])
    shard.checkpoint(NOW_US, 0)
    shard.close()
    del before[ids[0]]
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == before


def test_when_a_switch_may_have_happened_the_blocks_of_both_manifests_stay() -> None:
    """The folder's sync fails after the rename: the new manifest is seen, and may be lost."""
    for seed in range(20):
        files = SimulatedFiles()
        shard = opened(files)
        produce(shard, b"one", b"two")
        shard.checkpoint(NOW_US, 0)
        produce(shard, b"three")
        before = shown(shard)
        files.fail("sync_directory", 2)
        with pytest.raises(StorageFailed):
            shard.checkpoint(NOW_US, 0)
        image = files.crash(random.Random(seed))
        assert shown(LocalShard(FileStorage(image), SETTINGS)) == before
        shard.checkpoint(NOW_US, 0)
        image = files.crash(random.Random(seed))
        assert shown(LocalShard(FileStorage(image), SETTINGS)) == before


# What is deleted, and when


def block_bytes(files: SimulatedFiles) -> int:
    return sum(len(data) for name, data in content(files).items() if name.startswith("blocks/"))


def test_blocks_that_are_all_dead_are_deleted() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"x" * 400 for _ in range(100)))
    shard.checkpoint(NOW_US, 0)
    assert block_bytes(files) > 40_000
    cancel(shard, *ids)
    shard.checkpoint(NOW_US, 0)
    assert [n for n in files.list("blocks/") if not n.endswith(("state", "MANIFEST"))] == []
    shard.close()
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == {}


def test_blocks_that_are_mostly_dead_are_rewritten() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"%03d" % n * 200 for n in range(100)))
    shard.checkpoint(NOW_US, 0)
    large = block_bytes(files)
    cancel(shard, *ids[10:])
    before = shown(shard)
    shard.checkpoint(NOW_US, 0)
    assert block_bytes(files) < large / 5
    assert shown(shard) == before
    shard.close()
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == before


def test_many_small_runs_are_merged_and_deltas_too() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    first = produce(shard, b"first", b"second")
    for n in range(40):
        produce(shard, b"%d" % n)
        move(shard, NOW_US + (n + 2) * 10**9, *first)
        shard.checkpoint(NOW_US, 0)
    listed = shard.store.manifest.blocks
    assert len([block for block in listed if not block.delta]) < 15
    assert len([block for block in listed if block.delta]) < 15
    before = shown(shard)
    assert before[first[0]] == (NOW_US + 41 * 10**9, b"first")
    shard.close()
    again = LocalShard(FileStorage(files), SETTINGS)
    assert shown(again) == before


def test_deltas_are_merged_when_most_of_them_are_out_of_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fasti.storage.checkpoint._DELTA_ROWS_MIN", 10)
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"%d" % n for n in range(8)))
    shard.checkpoint(NOW_US, 0)
    rows = []
    for n in range(20):
        move(shard, NOW_US + (n + 2) * 10**9, *ids)
        shard.checkpoint(NOW_US, 0)
        rows.append(sum(block.rows for block in shard.store.manifest.blocks if block.delta))
    assert max(rows) <= 2 * 8 + 10
    before = shown(shard)
    shard.close()
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == before


def test_the_journal_is_trimmed_by_checkpoints() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    for n in range(60):
        produce(shard, b"%d" % n * 300)
    assert len([n for n in files.list("journal/") if n.endswith(".segment")]) > 4
    before = shown(shard)
    shard.checkpoint(NOW_US, 0)
    assert len([n for n in files.list("journal/") if n.endswith(".segment")]) == 1
    assert shown(shard) == before
    shard.close()
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == before


def test_a_snapshot_reads_its_payloads_after_checkpoints_and_then_files_go() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    ids = produce(shard, *(b"%d" % n * 100 for n in range(20)))
    shard.checkpoint(NOW_US, 0)
    produce(shard, b"in the journal")
    old = shard.call(co.TakeSnapshot(NOW_US + 10**12), NOW_US, 0).value
    (place,) = old.ledgers
    (rows,) = old.rows(*place)
    payloads = shard.store.payloads.gather(rows["location"])
    cancel(shard, *ids[:15])
    shard.checkpoint(NOW_US, 0)
    young = shard.call(co.TakeSnapshot(NOW_US + 10**12), NOW_US, 0).value
    shard.checkpoint(NOW_US, 0)
    names = files.list("blocks/")
    shard.store.payloads.forget(in_run=True, wanted=lambda _: False)
    (again,) = old.rows(*place)
    assert {name: values.tolist() for name, values in again.items()} == {
        name: values.tolist() for name, values in rows.items()
    }
    assert shard.store.payloads.gather(again["location"]) == payloads
    # The younger one doesn't hold back what only the older one needed.
    shard.call(co.DropSnapshot(old.number), NOW_US, 0)
    shard.checkpoint(NOW_US, 0)
    assert len(files.list("blocks/")) < len(names)
    assert [len(rows["sequence"]) for rows in young.rows(*place)] == [6]


def test_many_small_topics_share_blocks() -> None:
    files = SimulatedFiles()
    settings = ShardSettings(memory_bytes=1 << 30, leases_max=1024)
    shard = LocalShard(FileStorage(files), settings)
    names = [f"topic-{n}" for n in range(500)]
    shard.step([co.CreateTopic(name) for name in names], NOW_US, 0)
    when = co.When(due_us=NOW_US + 10**9)
    produces = [co.Produce(n, Rows.of([n.encode(), b"2"]), when) for n in names]
    assert all(reply.all_ok for reply in shard.step(produces, NOW_US, 0).replies)
    shard.checkpoint(NOW_US, 0)
    assert len(shard.store.manifest.blocks) <= 2
    shard.call(co.DeleteTopic("topic-7"), NOW_US, 0)
    shard.close()
    again = LocalShard(FileStorage(files), settings)
    got = again.call(co.Get("topic-499", co.Target(ids=np.array([1, 2]))), NOW_US, 0)
    payloads = again.store.payloads.gather(got.columns["location"]).column("payload")
    assert payloads.to_pylist() == [b"topic-499", b"2"]
    assert again.call(co.Count("topic-7"), NOW_US, 0).error is not None
    later_us = NOW_US + 10**10
    again.step([], later_us, 0)
    step = again.step([co.Lease("topic-100", 1, "c", 9, wait=False)], later_us, 0)
    assert step.effects[0].ids.tolist() == [1, 2]


def test_a_deleted_topic_gives_its_space_back() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    produce(shard, *(b"x" * 400 for _ in range(100)))
    shard.checkpoint(NOW_US, 0)
    shard.call(co.DeleteTopic("t"), NOW_US, 0)
    shard.checkpoint(NOW_US, 0)
    assert block_bytes(files) < 5_000
    shard.close()
    again = opened(files)
    assert shown(again) == {}


def test_large_payloads_among_small_ones_make_blocks_of_a_bounded_size() -> None:
    files = SimulatedFiles()
    shard = LocalShard(FileStorage(files), ShardSettings(memory_bytes=16 << 20, leases_max=1024))
    shard.call(co.CreateTopic("t"), NOW_US, 0)
    produce(shard, *(b"small" for _ in range(3000)))
    large = [bytes([n]) * (1 << 20) for n in range(12)]
    for payload in large:
        produce(shard, payload, due_us=NOW_US + 2 * 10**9)
    before = shown(shard)
    shard.checkpoint(NOW_US, 0)
    assert max(block.size_bytes for block in shard.store.manifest.blocks) < 6 << 20
    assert shown(shard) == before
    shard.close()
    assert shown(LocalShard(FileStorage(files), SETTINGS)) == before


def test_a_story_reads_the_same_from_journal_and_runs() -> None:
    files = SimulatedFiles()
    ops, sights = write_story(77, 60, files)
    driven = Driven(files)
    last = moment(len(ops) - 1)
    for _ in range(3):
        driven.do(("checkpoint", {}), last)
        driven.do(("restart", {}), last)
        assert dump(driven.shard, last) == sights[-1][1]
