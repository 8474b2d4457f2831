"""Verifying a journal and blocks, and repairing a journal that can't be opened."""

from __future__ import annotations

import errno
import random

import pytest

from fasti.errors import Corruption, DataDirLocked, FastiError, Gone
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_segment import decode_segment_header, segment_name
from fasti.storage.frames import (
    BEGIN,
    END,
    HEADER_BYTES,
    Frame,
    Header,
    body_checksum,
    encode_header,
    frame_bytes,
)
from fasti.storage.tools.inspect import verify
from fasti.storage.tools.journal_repair import Action, carry_out, plan_repair
from fasti.storage.tools.repair import repair_directory
from fasti.testing.disk import Crashed, SimulatedFiles

SEGMENT_BYTES = 4096
BODY = b"x" * 30
STEP = frame_bytes(len(BODY))
PER_SEGMENT = (SEGMENT_BYTES - 64 - HEADER_BYTES) // STEP
LAST = 3 * PER_SEGMENT + 5
NAMES = [segment_name("journal", 1 + n * PER_SEGMENT) for n in range(4)]


def at(sequence: int) -> tuple[str, int]:
    """File and offset of a frame."""
    index = sequence - 1
    return NAMES[index // PER_SEGMENT], 64 + index % PER_SEGMENT * STEP


def stored(groups_of: int = 1) -> SimulatedFiles:
    """A disk with three full segments and a bit, synced after each frame."""
    files = SimulatedFiles()
    journal = open_journal(files)
    for n in range(1, LAST + 1):
        begins = (n - 1) % groups_of == 0
        ends = n % groups_of == 0 or n == LAST
        journal.append([Frame(n, n, begins, ends, [BODY])])
        journal.sync()
    journal.mark()
    journal.close()
    return files


def open_journal(files: SimulatedFiles) -> FileJournal:
    return FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7)


def damage(files: SimulatedFiles, sequence: int, where: int = 80) -> None:
    name, offset = at(sequence)
    files.flip_bit(name, offset + where)


def readable(files: SimulatedFiles) -> list[int]:
    journal = open_journal(files)
    return [frame.sequence for frame in journal.replay(journal.first_sequence - 1)]


def images(files: SimulatedFiles) -> dict[str, bytes]:
    return {name: bytes(files.open(name, False).map()) for name in files.list("")}


def repair(files: SimulatedFiles, allow_gap: bool = False, dry_run: bool = True) -> list[Action]:
    steps = plan_repair(files, allow_gap)
    return [action for action, _ in steps] if dry_run else carry_out(steps)


def test_an_empty_disk_and_a_sound_one_are_ok() -> None:
    assert verify(SimulatedFiles()).ok
    files = stored()
    blocks = FileBlocks(files)
    blocks.put("runs/1", [bytes(100)])
    blocks.switch_manifest(0, b"m")
    report = verify(files)
    assert report.findings == []
    assert (report.segments, report.frames, report.blocks) == (4, LAST, 1)
    assert (report.journal_bytes, report.block_bytes) == (4 * SEGMENT_BYTES, 100)
    assert report.manifest_version == 1
    assert repair(files) == []


@pytest.mark.parametrize("sequence", [1, 2, PER_SEGMENT, PER_SEGMENT + 1, LAST - 1, LAST])
@pytest.mark.parametrize("where", [0, 30, 80])
def test_damage_is_found_where_it_is(sequence: int, where: int) -> None:
    files = stored()
    damage(files, sequence, where)
    report = verify(files)
    assert not report.ok
    assert [(f.file, f.offset, f.kind, f.sequence) for f in report.findings] == [
        (*at(sequence), "damaged_frame", sequence)
    ]
    assert report.frames == LAST - 1


def test_all_damage_is_found() -> None:
    files = stored()
    for sequence in (3, 4, 9, PER_SEGMENT, 2 * PER_SEGMENT + 1):
        damage(files, sequence)
    found = [(f.sequence, f.message.split(",")[0]) for f in verify(files).findings]
    assert found == [
        (3, "frame 3 to 4"),
        (9, "frame 9"),
        (PER_SEGMENT, f"frame {PER_SEGMENT}"),
        (2 * PER_SEGMENT + 1, f"frame {2 * PER_SEGMENT + 1}"),
    ]


def test_harmless_things_are_told_as_such() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    for n in (1, 2):
        journal.append([Frame(n, 0, True, True, [BODY])])
        journal.sync()
    assert journal.mark()
    journal.append([Frame(n, 0, True, True, [BODY]) for n in (3, 4)])
    files.flip_bit(NAMES[0], 64 + 2 * STEP + 5)  # the mark
    files.flip_bit(NAMES[0], 64 + 2 * STEP + HEADER_BYTES + 80)  # frame 3, never synced
    files.create("blocks/runs/1.tmp", 10)
    report = verify(files)
    assert report.ok
    assert [finding.kind for finding in report.findings] == [
        "damaged_mark",
        "torn_tail",
        "leftover",
    ]
    assert repair(files) == []


def test_a_damaged_mark_is_harmless() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    for n in (1, 2, 3):
        journal.append([Frame(n, 0, True, True, [BODY])])
        journal.sync()
        journal.mark()
    files.flip_bit(NAMES[0], 64 + 2 * STEP + 5)
    report = verify(files)
    assert report.ok
    assert [(f.kind, f.offset) for f in report.findings] == [("damaged_mark", 64 + 2 * STEP)]


def test_what_cannot_be_read_is_told_and_not_repaired() -> None:
    files = stored()
    files.fail("read", 3, errno.EIO)
    findings = verify(files).findings
    assert [(f.file, f.kind) for f in findings] == [(NAMES[1], "unreadable")]
    files.fail("read", 2, errno.EIO)
    with pytest.raises(Corruption, match="Input/output error"):
        repair(files)


def test_a_newer_format_is_told_and_not_repaired() -> None:
    files = stored()
    header = decode_segment_header(files.open(NAMES[0], False).read_at(0, 64), NAMES[0])
    who = (2, BEGIN | END, len(BODY), 1, 7)
    newer = Header(*who, 2, 1, 2, body_checksum([BODY]), header.nonce)
    files.open(NAMES[0], True).write_at(64 + STEP, [encode_header(newer)])
    assert [(f.file, f.offset, f.kind) for f in verify(files).findings] == [
        (NAMES[0], 64 + STEP, "newer_format")
    ]
    with pytest.raises(Corruption, match="has format 2, which another version"):
        repair(files)


def test_a_bad_manifest_is_told() -> None:
    files = SimulatedFiles()
    FileBlocks(files).switch_manifest(0, b"data")
    files.flip_bit("blocks/MANIFEST", 42)
    assert [(f.file, f.kind) for f in verify(files).findings] == [("blocks/MANIFEST", "corruption")]


def test_a_dry_run_changes_nothing() -> None:
    files = stored()
    damage(files, 5)
    before, operations = images(files), files.operations
    for allow_gap in (False, True):
        (action,) = repair(files, allow_gap=allow_gap)
        assert action.kind == ("void" if allow_gap else "cut")
        assert (action.file, action.offset, action.first_lost) == (*at(5), 5)
    assert (images(files), files.operations) == (before, operations)


def test_a_repair_needs_the_lock() -> None:
    files = stored()
    damage(files, 5)
    lock = files.lock()
    with pytest.raises(DataDirLocked):
        repair_directory(files, dry_run=False)
    lock.release()
    assert repair_directory(files, dry_run=False).actions
    files.lock()


@pytest.mark.parametrize("sequence", [2, PER_SEGMENT, PER_SEGMENT + 1, LAST])
def test_a_cut_keeps_all_before_and_loses_no_byte(sequence: int) -> None:
    files = stored()
    damage(files, sequence)
    before = images(files)
    assert [action.kind for action in repair(files, dry_run=False)] == ["cut"]
    assert readable(files) == list(range(1, sequence))
    assert verify(files).ok
    name, offset = at(sequence)
    after = images(files)
    assert after[f"lost+found/{name[8:]}-{offset}.0"] == before[name][offset:]
    for later in NAMES[NAMES.index(name) + 1 :]:
        assert later not in after
        assert after[f"lost+found/{later[8:]}-0.0"] == before[later]


def test_a_cut_journal_goes_on() -> None:
    files = stored()
    damage(files, 20)
    repair(files, dry_run=False)
    journal = open_journal(files)
    journal.append([Frame(20, 0, True, True, [b"new"])])
    journal.sync()
    assert readable(files) == list(range(1, 21))


@pytest.mark.parametrize(
    "lost",
    [{2}, {1}, {5, 6, 7}, {PER_SEGMENT}, {PER_SEGMENT + 1}, {3, PER_SEGMENT, 2 * PER_SEGMENT + 4}],
)
def test_a_gap_gives_up_only_the_damaged_frames(lost: set[int]) -> None:
    files = stored()
    for sequence in lost:
        damage(files, sequence, where=30)
    actions = repair(files, allow_gap=True, dry_run=False)
    assert {action.kind for action in actions} == {"void"}
    assert readable(files) == [n for n in range(1, LAST + 1) if n not in lost]
    report = verify(files)
    assert report.ok
    assert {f.sequence for f in report.findings if f.kind == "void_frame"} == lost
    journal = open_journal(files)
    for sequence in lost:
        with pytest.raises(Gone):
            journal.body(sequence)


def test_a_gap_takes_the_whole_group() -> None:
    for lost in (4, 5, 6):
        files = stored(groups_of=3)
        damage(files, lost)
        repair(files, allow_gap=True, dry_run=False)
        assert readable(files) == [n for n in range(1, LAST + 1) if n not in (4, 5, 6)]


def test_a_gap_at_the_very_end_is_a_gap_if_the_end_is_known() -> None:
    files = stored()
    damage(files, LAST)
    assert [action.kind for action in repair(files, allow_gap=True, dry_run=False)] == ["void"]
    assert readable(files) == list(range(1, LAST))
    files = stored()
    damage(files, LAST)
    files.delete("journal/END")
    assert [action.kind for action in repair(files, allow_gap=True, dry_run=False)] == ["cut"]
    assert readable(files) == list(range(1, LAST))


def test_a_missing_segment_can_be_a_gap_or_a_cut() -> None:
    rest = [n for n in range(1, LAST + 1) if not PER_SEGMENT < n <= 2 * PER_SEGMENT]
    for allow_gap in (True, False):
        files = stored()
        files.delete(NAMES[1])
        assert [f.sequence for f in verify(files).findings] == [PER_SEGMENT + 1]
        repair(files, allow_gap=allow_gap, dry_run=False)
        assert readable(files) == (rest if allow_gap else list(range(1, PER_SEGMENT + 1)))
        assert verify(files).ok


def test_a_header_is_rebuilt_without_loss() -> None:
    for name in NAMES:
        files = stored()
        files.flip_bit(name, 20)
        assert [(f.file, f.kind) for f in verify(files).findings] == [(name, "bad_segment_header")]
        assert [action.kind for action in repair(files, dry_run=False)] == ["rebuild_header"]
        assert readable(files) == list(range(1, LAST + 1))
        assert verify(files).ok


def test_a_segment_of_which_nothing_can_be_told() -> None:
    for allow_gap in (True, False):
        files = stored()
        files.flip_bit(NAMES[2], 20)
        damage(files, 2 * PER_SEGMENT + 1, where=3)
        repair(files, allow_gap=allow_gap, dry_run=False)
        kept = [n for n in range(1, LAST + 1) if not 2 * PER_SEGMENT < n <= 3 * PER_SEGMENT]
        assert readable(files) == (kept if allow_gap else kept[: 2 * PER_SEGMENT])
    files = stored()
    files.flip_bit(NAMES[0], 20)
    damage(files, 1, where=3)
    assert [action.kind for action in repair(files, allow_gap=True, dry_run=False)] == ["drop"]
    assert readable(files) == list(range(PER_SEGMENT + 1, LAST + 1))
    files = stored()
    files.flip_bit(NAMES[0], 20)
    damage(files, 1, where=3)
    assert [action.kind for action in repair(files, dry_run=False)] == ["cut"]
    assert readable(files) == []


def test_frames_copied_at_an_opening_can_be_cut() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    journal.append([Frame(n, 0, True, True, [BODY]) for n in (1, 2, 3)])
    journal.close()
    open_journal(files).close()
    damage(files, 2)
    with pytest.raises(Corruption):
        open_journal(files)
    repair(files, dry_run=False)
    assert readable(files) == [1]


@pytest.mark.parametrize("allow_gap", [False, True])
def test_a_repair_can_be_interrupted_and_run_again(allow_gap: bool) -> None:
    def damaged() -> SimulatedFiles:
        files = stored()
        for sequence in (7, 8, PER_SEGMENT):
            damage(files, sequence, where=30)
        files.flip_bit(NAMES[1], 20)
        return files

    expected = [n for n in range(1, LAST + 1) if n not in (7, 8, PER_SEGMENT)]
    expected = expected if allow_gap else expected[:6]
    for operations in range(60):
        files = damaged()
        if completed(files, operations, allow_gap):
            assert operations > 10
            break
        for seed in range(4):
            again = files.crash(random.Random(seed))
            try:
                repair(again, allow_gap=allow_gap, dry_run=False)
            except FastiError as error:
                pytest.fail(f"after {operations} operations, seed {seed}: {error}")
            assert readable(again) == expected
    else:
        pytest.fail("the repair is longer than thought")


def completed(files: SimulatedFiles, operations: int, allow_gap: bool) -> bool:
    """Repair, but stop after so many operations; whether it got to its end."""
    files.stop_before = files.operations + operations
    try:
        repair(files, allow_gap=allow_gap, dry_run=False)
    except Crashed:
        files.stop_before = None
        return False
    files.stop_before = None
    return True
