"""A journal whose end is missing says so; one that is sound never does."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasti.errors import Corruption
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_end import SyncedEnd, decode_ends, encode_end, read_end
from fasti.storage.frames import Frame
from fasti.storage.tools.inspect import verify
from fasti.storage.tools.repair import repair_directory
from fasti.testing.disk import Crashed, SimulatedFiles

SEGMENT_BYTES = 4096
FIRST = "journal/00000000000000000001.segment"
END = "journal/END"


def open_journal(files: SimulatedFiles) -> FileJournal:
    return FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7)


def synced(journal: FileJournal, count: int, body: bytes = b"0123456789") -> None:
    for _ in range(count):
        journal.append([Frame(journal.last_sequence + 1, 1, True, True, [body])])
        journal.sync()


def stored(count: int = 5) -> SimulatedFiles:
    """A journal that was closed in order."""
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, count)
    journal.mark()
    journal.close()
    return files


def rewritten(files: SimulatedFiles, name: str, change: Callable[[bytes], bytes]) -> SimulatedFiles:
    """The same disk, with another content of one file; None of it: the file is gone."""
    copy = SimulatedFiles()
    for each in files.list(""):
        file = files.open(each, writable=False)
        data = file.read_at(0, file.size)
        copy.create(each, 0).write_at(0, [change(data) if each == name else data])
    return copy


def without(files: SimulatedFiles, name: str) -> SimulatedFiles:
    copy = rewritten(files, name, lambda data: data)
    copy.delete(name)
    return copy


def refused(files: SimulatedFiles) -> Corruption:
    names = files.list("")
    with pytest.raises(
        Corruption, match=r"storage repair|does not begin with a segment header|was born with"
    ) as caught:
        open_journal(files)
    assert files.list("") == names
    assert not verify(files).ok
    return caught.value


def last_after(files: SimulatedFiles, allow_gap: bool) -> int:
    """What a repaired journal ends with; it opens and takes more."""
    assert repair_directory(files, allow_gap=allow_gap, dry_run=False).actions
    assert verify(files).ok, verify(files).findings
    journal = open_journal(files)
    readable = [frame.sequence for frame in journal.replay(journal.first_sequence - 1)]
    synced(journal, 2)
    journal.close()
    open_journal(files).close()
    return max(readable, default=0)


def check_cut(length: int) -> None:
    files = rewritten(stored(), FIRST, lambda data: data[:length])
    assert refused(files).file == FIRST
    kept = max(0, (length - 64) // 128) if length < 64 + 5 * 128 else 5
    assert last_after(files, allow_gap=length % 2 == 0) == kept


@pytest.mark.parametrize(
    "length", [0, 1, 63, 64, 65, 128, 191, 192, 300, 703, 704, 705, 768, 1000, SEGMENT_BYTES - 1]
)
def test_a_segment_that_was_cut_is_damage(length: int) -> None:
    check_cut(length)


@pytest.mark.long
def test_a_segment_that_was_cut_anywhere_is_damage() -> None:
    for length in range(SEGMENT_BYTES):
        check_cut(length)


@pytest.mark.parametrize("inside", [0, 1, 70])
@pytest.mark.parametrize("kept", range(5))
def test_a_tail_that_was_zeroed_is_damage(kept: int, inside: int) -> None:
    start = 64 + 128 * kept + inside
    files = rewritten(stored(), FIRST, lambda data: data[:start].ljust(SEGMENT_BYTES, b"\0"))
    error = refused(files)
    assert (error.file, error.offset) == (FIRST, start - inside)
    if kept:
        assert error.details["missing_frames"] == 5 - kept
        assert error.details["missing_bytes"] == (5 - kept) * 128
    assert last_after(files, allow_gap=inside == 0) == kept


def test_only_a_mark_and_unused_space_may_go_missing_without_a_loss() -> None:
    files = rewritten(stored(), FIRST, lambda d: d[: 64 + 5 * 128].ljust(SEGMENT_BYTES, b"\0"))
    journal = open_journal(files)
    assert journal.last_sequence == 5


@pytest.mark.parametrize("allow_gap", [True, False])
def test_a_newest_segment_that_is_gone_is_damage(allow_gap: bool) -> None:
    files = stored(70)
    newest = files.list("journal/0")[-1]
    first = int(newest[8:28])
    files = without(files, newest)
    error = refused(files)
    assert (error.file, error.details["missing_frames"]) == (newest, 70 - first + 1)
    assert last_after(files, allow_gap) == first - 1


def test_a_journal_without_any_segment_is_damage() -> None:
    files = without(stored(), FIRST)
    assert refused(files).file == FIRST
    assert repair_directory(files, dry_run=False).actions
    assert open_journal(files).last_sequence == 0


def test_another_file_under_the_newest_name_is_damage() -> None:
    other = stored(9).open(FIRST, writable=False).read_at(0, SEGMENT_BYTES)
    files = rewritten(stored(), FIRST, lambda _: other)
    assert "not the file that was synced" in refused(files).message
    with pytest.raises(Corruption):
        repair_directory(files, allow_gap=True, dry_run=False)


@pytest.mark.parametrize("content", [b"", bytes(1024), b"FASTIEND" * 128, b"\xff" * 40])
def test_an_end_that_says_nothing_is_no_harm(content: bytes) -> None:
    files = rewritten(stored(), END, lambda _: content)
    journal = open_journal(files)
    synced(journal, 3)
    assert journal.last_sequence == 8
    journal.close()
    refused(rewritten(files, files.list("journal/0")[-1], lambda data: data[:80]))


def test_an_older_end_is_no_harm() -> None:
    """Put back, or not arrived before the power went: it says less, and nothing that is wrong."""
    files = SimulatedFiles()
    journal = open_journal(files)
    ends = []
    for _ in range(80):
        synced(journal, 1)
        file = files.open(END, writable=False)
        ends.append(file.read_at(0, file.size))
    journal.close()
    for old in ends[::7]:
        assert open_journal(rewritten(files, END, lambda _, old=old: old)).last_sequence == 80


def test_the_end_is_durable_after_a_mark_and_after_sync_end() -> None:
    for record in (FileJournal.mark, FileJournal.sync_end):
        files = SimulatedFiles()
        journal = open_journal(files)
        synced(journal, 3)
        assert record(journal)
        assert not FileJournal.sync_end(journal)
        for seed in range(20):
            end = read_end(files.crash(random.Random(seed)), "journal")
            assert end is not None
            assert end.last_sequence == 3


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_an_end_that_cannot_be_written_stops_nothing(kind: str) -> None:
    failing = {(kind, END)}

    class Failing(SimulatedFiles):
        def step(self, kind: str, name: str) -> bool:
            return super().step(kind, name) or (kind, name) in failing

    files = Failing()
    journal = open_journal(files)
    synced(journal, 3)
    journal.mark()
    synced(journal, 3)
    assert journal.end_problem is not None
    assert open_journal(files.crash(random.Random(0))).last_sequence == 6
    # The next segment is a new try.
    failing.clear()
    synced(journal, 2, bytes(3000))
    assert journal.end_problem is None
    journal.sync_end()
    end = read_end(files.crash(random.Random(0)), "journal")
    assert end is not None
    assert end.last_sequence == 8


def test_an_end_is_lowered_before_segments_go_that_it_speaks_of() -> None:
    """A group that was never finished lies in a newest segment, which is void and removed."""
    for stop in range(60):
        files = SimulatedFiles()
        journal = open_journal(files)
        synced(journal, 3)
        last = journal.last_sequence
        journal.append([Frame(last + 1, 1, True, False, [bytes(3000)])])
        journal.append([Frame(last + 2, 1, False, False, [bytes(3000)])])
        journal.sync()
        journal.sync_end()
        assert len(files.list("journal/0")) == 2
        files.stop_before = files.operations + stop
        try:
            open_journal(files).close()
            done = True
        except Crashed:
            done = False
        for seed in range(8):
            again = files.crash(random.Random(seed))
            assert open_journal(again).last_sequence == 3
            assert verify(again).ok
        if done:
            return
    pytest.fail("an opening takes more steps than thought")


def test_frames_that_were_cut_because_the_owner_said_so_are_not_missed() -> None:
    files = stored(6)
    journal = FileJournal(files, segment_bytes=SEGMENT_BYTES, incarnation=7, cut_after=4)
    assert journal.last_sequence == 4
    journal.close()
    assert open_journal(files.crash(random.Random(1))).last_sequence == 4


@settings(max_examples=60, deadline=None)
@given(
    stop=st.integers(0, 120),
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.sampled_from([1, 40, 900, 3000, 5000]), min_size=1, max_size=12),
    marks=st.integers(0, 4),
)
def test_no_crash_is_taken_for_damage(stop: int, seed: int, sizes: list[int], marks: int) -> None:
    files, acknowledged = SimulatedFiles(stop_before=stop), 0
    rng = random.Random(seed)
    for _ in range(3):
        try:
            journal = open_journal(files)
            assert journal.last_sequence >= acknowledged
            for turn, size in enumerate(sizes):
                synced(journal, 1, bytes(size))
                acknowledged = journal.synced_sequence
                if marks and turn % marks == 0:
                    journal.sync_end()
            journal.mark()
            journal.trim(acknowledged - 2)
        except Crashed:
            pass
        files = files.crash(rng)
        files.stop_before = rng.choice([None, rng.randrange(120)])
    files.stop_before = None
    assert verify(files).ok
    assert open_journal(files).last_sequence >= acknowledged


def test_slots_of_which_one_is_torn_leave_the_other() -> None:
    older, newer = SyncedEnd(1, 7, 1, 4, 704, 5), SyncedEnd(1, 7, 1, 5, 832, 5)
    whole = encode_end(older, 8).ljust(512, b"\0") + encode_end(newer, 9)
    assert decode_ends(whole) == (9, newer)
    assert decode_ends(whole[:-1] + b"?") == (8, older)
    assert decode_ends(b"?" + whole[1:]) == (9, newer)
    assert decode_ends(b"") == (0, None)


def test_read_errors_of_the_end_are_no_harm() -> None:
    files = stored()
    files.fail("read", 1, errno.EIO)
    assert open_journal(files).last_sequence == 5
