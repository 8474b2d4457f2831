"""Whole directories whose files were cut or put back: told, repaired, or nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import Corruption
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from fasti.storage.tools.inspect import inspect
from fasti.storage.tools.repair import repair_directory
from fasti.testing.disk import SimulatedFiles

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=64 << 20, leases_max=4096)
MANIFEST = "blocks/MANIFEST"
LATER_US = 10**12


def content(files: SimulatedFiles, name: str) -> bytes:
    file = files.open(name, writable=False)
    return file.read_at(0, file.size)


def copy_of(files: SimulatedFiles, **changed: bytes) -> SimulatedFiles:
    copy = SimulatedFiles()
    for name in files.list(""):
        copy.create(name, 0).write_at(0, [changed.get(name, content(files, name))])
    return copy


def send(shard: LocalShard, count: int, now_us: int) -> None:
    for _ in range(count):
        when = co.When(due_us=np.full(1, LATER_US, dtype=np.int64))
        shard.call(co.Produce("t", Rows.of([b"x" * 200]), when), now_us, 0)


def scheduled(files: SimulatedFiles) -> int:
    shard = LocalShard(FileStorage(files), SETTINGS)
    count = int(shard.call(co.Count("t"), 10**6, 0).states["scheduled"])
    shard.close()
    return count


def test_an_older_manifest_that_is_put_back_is_told_or_loses_nothing() -> None:
    files = SimulatedFiles()
    shard = LocalShard(FileStorage(files), SETTINGS)
    shard.call(co.CreateTopic("t"), 1, 0)
    manifests = [content(files, MANIFEST)]
    for turn in range(2, 8):
        send(shard, 12, turn)
        shard.checkpoint(turn, 0)
        manifests.append(content(files, MANIFEST))
    send(shard, 3, 9)
    shard.close()
    refused = 0
    for manifest in manifests:
        try:
            assert scheduled(copy_of(files, **{MANIFEST: manifest})) == 6 * 12 + 3
        except Corruption:
            refused += 1
    assert 0 < refused < len(manifests)


@pytest.mark.parametrize("allow_gap", [False, True])
@pytest.mark.parametrize("harm", ["cut", "zeroed", "deleted"])
def test_an_end_that_is_gone_is_told_with_what_it_costs(harm: str, allow_gap: bool) -> None:
    files = SimulatedFiles()
    shard = LocalShard(FileStorage(files), SETTINGS)
    shard.call(co.CreateTopic("t"), 1, 0)
    send(shard, 5, 2)
    shard.checkpoint(3, 0)
    send(shard, 7, 4)
    last = shard.store.journal.last_sequence
    shard.close()
    newest = files.list("journal/0")[-1]
    data = content(files, newest)
    # In the middle of the frames that the blocks don't have.
    place = len(data.rstrip(b"\0")) - 3 * 500
    changed = {"cut": data[:place], "zeroed": data[:place].ljust(len(data), b"\0")}
    files = copy_of(files, **{newest: changed.get(harm, b"")})
    if harm == "deleted":
        files.delete(newest)
    with pytest.raises(Corruption):
        LocalShard(FileStorage(files), SETTINGS)
    assert not inspect(files).ok
    planned = repair_directory(files, allow_gap=allow_gap)
    done = repair_directory(files, allow_gap=allow_gap, dry_run=False)
    assert planned == done
    assert done.losses is not None
    assert done.losses.topics[0].possible
    if harm != "deleted":
        assert done.actions[-2].last_lost == last
        assert done.losses.frames == [(11, last if allow_gap else None)]
    assert inspect(files).ok
    # Those in blocks, and those in front of the cut.
    assert scheduled(files) == (5 if harm == "deleted" else 9)
