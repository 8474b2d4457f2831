"""A data directory at rest: what every offline tool begins with."""

from __future__ import annotations

import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import Corruption, NotFound
from fasti.model import TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files, read_whole
from fasti.storage.files.blocks import MANIFEST_PATH, FileBlocks
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.files.overlay_files import OverlayFiles
from fasti.storage.local_shard import LocalShard
from fasti.storage.tools.at_rest import existing_manifest, open_directory, rebase_directory

NOW = 1_700_000_000_000_000


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    shard = LocalShard(FileStorage(files), ShardSettings(segment_bytes=65_536))
    shard.call(co.CreateTopic("t", TopicSettings()), NOW, 0)
    shard.call(co.Produce("t", Rows.of([b"one"]), co.When(due_us=NOW)), NOW, 0)
    shard.checkpoint(NOW, 0)
    shard.call(co.Produce("t", Rows.of([b"two"]), co.When(due_us=NOW)), NOW, 0)
    shard.close()
    return files


def contents(files: Files) -> dict[str, bytes]:
    return {name: read_whole(files, name) for name in files.list("")}


def test_an_engine_holds_what_the_directory_holds(files: MemoryFiles) -> None:
    with open_directory(files) as stored:
        engine, frames = stored.load()
        assert stored.journal.last_sequence == stored.manifest.position + frames
    assert engine.step([co.Count("t")], NOW, 0).replies[0].states["ready"] == 2


def test_through_an_overlay_nothing_is_changed(files: MemoryFiles) -> None:
    files.replace("blocks/00000009-000000000009.rows.tmp", b"half")
    before = contents(files)
    overlay = OverlayFiles(files)
    with open_directory(overlay) as stored:
        engine, _ = stored.load()
        manifest = rebase_directory(overlay, stored, engine)
    assert contents(files) == before
    assert existing_manifest(overlay)[1].incarnation == manifest.incarnation
    assert existing_manifest(files)[1].incarnation != manifest.incarnation


def test_a_directory_without_a_manifest(files: MemoryFiles) -> None:
    with pytest.raises(NotFound, match="no shard was ever opened here"):
        existing_manifest(MemoryFiles())
    files.delete(MANIFEST_PATH)
    with pytest.raises(Corruption, match="a journal but no manifest"):
        existing_manifest(files)


def test_a_block_that_a_broker_finishes_meanwhile_is_no_error() -> None:
    class Busy(MemoryFiles):
        """A file that is listed has its final name by the time it is looked at."""

        def list(self, prefix: str) -> list[str]:
            return [*super().list(prefix), "blocks/00000001-000000000001.rows.tmp"]

    assert FileBlocks(OverlayFiles(Busy())).list() == []
