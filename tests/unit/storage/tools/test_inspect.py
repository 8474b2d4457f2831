"""Looking into a data directory: every kind of damage is found, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core.commands import Cancel, CreateTopic, Lease, Produce, Target, When
from fasti.core.events import Cancelled
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.errors import DataDirLocked, NotFound
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from fasti.storage.frames import body_checksum
from fasti.storage.local_shard import LocalShard
from fasti.storage.tools.at_rest import existing_files, holder
from fasti.storage.tools.inspect import inspect, stats

NOW = 1_000_000_000


def fill(path: Path) -> None:
    """100 messages, of which 90 are in blocks and 10 in the journal's tail; one is cancelled."""
    shard = LocalShard(FileStorage(LocalFiles(path)), ShardSettings(segment_bytes=65_536))
    shard.call(CreateTopic("emails"), NOW, 0)
    rows = Rows.of([b"payload"] * 90)
    due = NOW + 1_000_000 * np.arange(90)
    ids = shard.call(Produce("emails", rows, When(due_us=due)), NOW, 0).ids
    shard.checkpoint(NOW, 0)
    shard.call(Produce("emails", Rows.of([b"late"] * 10), When(delay_us=5)), NOW, 0)
    shard.call(Cancel("emails", Target(ids=ids[-1:])), NOW, 0)
    shard.step([Lease("emails", 1, "worker", 1, wait=False)], NOW, 0)
    shard.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK")
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def test_a_sound_directory_has_no_findings(directory: Path) -> None:
    before = contents(directory)
    report = inspect(LocalFiles(directory))
    assert report.ok
    assert not report.findings
    assert report.frames > 0
    assert contents(directory) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def drop(path: Path) -> None:
    path.unlink()


def newer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] = 99
    data[16:24] = body_checksum([data[:16], data[24:]]).to_bytes(8, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("suffix", "damage", "kind"),
    [
        (".rows", flip, "damaged_block"),
        (".payloads", flip, "damaged_block"),
        (".state", flip, "damaged_block"),
        (".rows", drop, "missing_block"),
        (".payloads", drop, "missing_block"),
        (".state", drop, "missing_block"),
        (".payloads", newer, "newer_format"),
        ("MANIFEST", flip, "corruption"),
        ("MANIFEST", drop, "no_manifest"),
    ],
)
def test_damage_to_blocks_is_found(
    directory: Path, suffix: str, damage: Callable[[Path], None], kind: str
) -> None:
    victim = next((directory / "blocks").glob(f"*{suffix}"))
    damage(victim)
    report = inspect(LocalFiles(directory))
    assert not report.ok
    assert [finding.kind for finding in report.findings] == [kind]
    assert report.findings[0].file == f"blocks/{victim.name}"


def test_a_journal_that_ends_before_the_blocks_do_is_found(directory: Path) -> None:
    for segment in (directory / "journal").glob("*.segment"):
        segment.unlink()
    report = inspect(LocalFiles(directory))
    assert [finding.kind for finding in report.findings] == ["missing_segment"]
    (directory / "journal/END").unlink()
    report = inspect(LocalFiles(directory))
    assert [finding.kind for finding in report.findings] == ["journal_gap"]


def test_leftovers_are_told_but_harmless(directory: Path) -> None:
    (directory / "blocks" / "000000000999.rows").write_bytes(b"whatever")
    (directory / "blocks" / "000000000998.rows.tmp").write_bytes(b"half")
    report = inspect(LocalFiles(directory))
    assert report.ok
    assert {finding.kind for finding in report.findings} == {"unnamed_block", "leftover"}


def test_stats_count_what_is_there_and_write_nothing(directory: Path) -> None:
    (directory / "blocks" / "000000000998.rows.tmp").write_bytes(b"half")
    before = contents(directory)
    held = stats(LocalFiles(directory), NOW + 5)
    assert contents(directory) == before
    (topic,) = held.topics
    assert topic.name == "emails"
    states = {name: count for name, count in topic.states.items() if count}
    assert states == {"scheduled": 88, "ready": 10, "leased": 1, "cancelled": 1}
    assert (held.blocks, held.block_rows, held.live_rows) == (1, 90, 89)
    assert held.last_sequence == held.position + held.replayed_frames
    assert held.to_dict()["live_share"] == 89 / 90


def test_stats_of_an_open_directory_answer_locked(directory: Path) -> None:
    files = LocalFiles(directory)
    shard = LocalShard(FileStorage(files), ShardSettings(segment_bytes=65_536))
    try:
        with pytest.raises(DataDirLocked):
            stats(LocalFiles(directory), NOW)
        assert holder(LocalFiles(directory)) is not None
    finally:
        shard.close()
    assert holder(files) is None


def test_a_directory_that_is_none_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        existing_files(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_journal_that_contradicts_itself_is_found(directory: Path) -> None:
    shard = LocalShard(FileStorage(LocalFiles(directory)), ShardSettings(segment_bytes=65_536))
    last = shard.store.journal.last_sequence
    shard.store.journal.append(shard.store.encode([_stranger(last + 1)]))
    shard.store.journal.sync()
    shard.close()
    report = inspect(LocalFiles(directory))
    assert [finding.kind for finding in report.findings] == ["contradiction"]


def _stranger(sequence: int) -> Frame:
    """A frame that tells of a topic which was never made."""
    return Frame(sequence, [Cancelled(NOW, 77, 0, np.array([1]))], None)
