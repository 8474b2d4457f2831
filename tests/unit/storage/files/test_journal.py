"""What is particular to the journal in files: rolling, recycling, tails, damage, failure."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fasti.errors import (
    Corruption,
    FastiError,
    Gone,
    InvalidArgument,
    NewerFormat,
    PermissionDenied,
    StorageFailed,
    StorageFull,
)
from fasti.storage import frames as codec
from fasti.storage.files import Files, LocalFiles
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_segment import (
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    segment_name,
)
from fasti.storage.files.journal_survey import survey
from fasti.storage.frames import BEGIN, END, HEADER_BYTES, Frame, Header, body_checksum, frame_bytes
from fasti.testing.disk import SimulatedFiles

SEGMENT_BYTES = 4096
BODY = b"0123456789" * 3
STEP = frame_bytes(len(BODY))
FIRST = "journal/00000000000000000001.segment"


def open_journal(files: Files, **settings: int) -> FileJournal:
    return FileJournal(files, **{"segment_bytes": SEGMENT_BYTES, "incarnation": 7} | settings)


def append(journal: FileJournal, count: int = 1, body: bytes = BODY, **keywords: bool) -> None:
    first = journal.last_sequence + 1
    batch = [Frame(n, n, True, True, [body]) for n in range(first, first + count)]
    journal.append(batch, **keywords)


def synced(journal: FileJournal, count: int = 1, body: bytes = BODY) -> None:
    """Append frames, each with a sync of its own."""
    for _ in range(count):
        append(journal, 1, body)
        journal.sync()


def sequences(journal: FileJournal, after: int | None = None) -> list[int]:
    start = journal.first_sequence - 1 if after is None else after
    return [frame.sequence for frame in journal.replay(start)]


def segments(files: Files) -> list[int]:
    return [int(name[8:28]) for name in files.list("journal/0")]


def spares(files: Files) -> int:
    return len(files.list("journal/spare-"))


def content(files: Files, name: str) -> bytearray:
    file = files.open(name, writable=False)
    data = bytearray(file.read_at(0, file.size))
    file.close()
    return data


def overwrite(files: Files, name: str, offset: int, data: bytes) -> None:
    file = files.open(name, writable=True)
    file.write_at(offset, [data])
    file.sync()
    file.close()


def copy_of(files: SimulatedFiles) -> SimulatedFiles:
    """The same disk after an orderly shutdown of the machine."""
    copy = SimulatedFiles()
    for name in files.list(""):
        file = copy.create(name, 0)
        file.write_at(0, [content(files, name)])
        file.sync()
    copy.sync_directory("journal")
    return copy


# ---------------------------------------------------------------------- rolling and recycling


def test_frames_roll_into_segments_that_are_named_for_their_first() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    per_segment = (SEGMENT_BYTES - 64 - HEADER_BYTES) // STEP
    append(journal, 2 * per_segment + 1)
    assert segments(files) == [1, 1 + per_segment, 1 + 2 * per_segment]
    # Sealed segments are synced at once, and a new one is durable when it is born.
    assert journal.synced_sequence == 2 * per_segment + 1
    assert all(len(content(files, name)) == SEGMENT_BYTES for name in files.list("journal/0"))


def test_a_large_frame_gets_a_segment_of_its_own_size() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    append(journal, 1)
    append(journal, 1, bytes(10_000))
    append(journal, 1)
    journal.sync()
    assert segments(files) == [1, 2, 3]
    size = len(content(files, segment_name("journal", 2)))
    assert size == 64 + frame_bytes(10_000) + HEADER_BYTES
    journal.trim(2)
    assert segments(files) == [3]  # One that doesn't have the usual size isn't recycled.


def test_a_spare_is_prepared_once_and_used_first() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    assert [journal.prepare_spare() for _ in range(3)] == [True, True, False]
    assert spares(files) == 2
    assert journal.room_bytes() == SEGMENT_BYTES
    before = files.operations
    append(journal)
    assert spares(files) == 1
    assert journal.room_bytes() == SEGMENT_BYTES - 64 - STEP - HEADER_BYTES
    # Once the end's file is made and synced: then writing and syncing header and frame, the name and
    # its folder, and writing down the end. No zero-filling.
    assert files.operations - before == 2 + 5


def test_an_append_is_one_write_and_a_sync_one_sync() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    append(journal)
    before = files.operations
    append(journal, 10)
    assert files.operations == before + 1
    journal.sync()
    # And how far it reached is written down, without a sync of its own.
    assert files.operations == before + 3
    journal.sync()
    # And how far it reached is written down, without a sync of its own.
    assert files.operations == before + 3


def test_trimmed_segments_become_spares_within_bounds() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 400)
    count = len(segments(files))
    assert count > 8
    journal.trim(journal.last_sequence)
    assert segments(files) == [journal.first_sequence]
    assert spares(files) == 5
    synced(journal, 400)
    assert sequences(journal) == list(range(journal.first_sequence, 801))
    again = open_journal(copy_of(files))
    assert sequences(again) == sequences(journal)


def test_old_frames_in_a_recycled_segment_are_never_taken_for_new() -> None:
    """The recycled file is full of valid frames at the very offsets of the new ones."""
    files = SimulatedFiles()
    journal = open_journal(files)
    for _ in range(12):
        synced(journal, 17)
        journal.trim(journal.last_sequence)
        again = open_journal(copy_of(files))
        assert again.last_sequence == journal.last_sequence
        assert sequences(again) == sequences(journal)


def test_frames_that_were_cut_never_come_back_out_of_a_recycled_segment() -> None:
    """After a cut the same sequences are given again; only the epoch tells them apart."""
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 5)
    append(journal, 20, b"cut" * 10)
    journal.close()
    journal = open_journal(files, cut_after=5)
    stale = content(files, FIRST)
    overwrite(files, segment_name("journal", 6), 64, bytes(stale[64 + 5 * STEP :])[:2000])
    journal.close()
    journal = open_journal(files)
    assert journal.last_sequence == 5
    synced(journal, 2)
    assert sequences(open_journal(files)) == [1, 2, 3, 4, 5, 6, 7]


def test_frames_of_an_opening_that_died_are_never_taken_for_new() -> None:
    """It wrote them under an epoch that nobody remembers, into a spare that is used again."""
    files = SimulatedFiles()
    journal = open_journal(files)
    journal.prepare_spare()
    synced(journal, 1)
    append(journal, 19)
    journal.close()
    files.fail("rename")  # The segment is written, but doesn't get its name.
    with pytest.raises(StorageFailed):
        open_journal(files)
    journal = open_journal(files, cut_after=1)
    synced(journal, 2)
    journal.close()
    again = open_journal(files)
    assert (again.epoch, sequences(again)) == (3, [1, 2, 3])


def test_only_the_youngest_segments_remember_where_their_frames_are() -> None:
    """The change feed may keep a thousand segments, and most of them are never read again."""
    files = SimulatedFiles()
    journal = open_journal(files)
    while len(segments(files)) < 20:
        synced(journal)

    def remembered() -> list[bool]:
        return [segment.places is not None for segment in journal._table._segments]

    assert remembered() == [False] * 12 + [True] * 8
    # They are found again when they are wanted, and checked again.
    assert journal.body(3) == BODY
    assert remembered() == [True] + [False] * 11 + [True] * 8
    second = segments(files)[1]
    overwrite(files, segment_name("journal", second), 64 + HEADER_BYTES, b"damage")
    with pytest.raises(Corruption):
        journal.body(second)
    while len(segments(files)) < 21:
        synced(journal)
    assert remembered() == [False] * 13 + [True] * 8
    assert sequences(journal, 2 * second) == list(range(2 * second + 1, journal.last_sequence + 1))


def test_a_segment_that_is_read_is_deleted_instead_of_recycled(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    journal = open_journal(files)
    append(journal, 200)
    journal.sync()
    body = journal.body(3)
    journal.trim(200)
    assert spares(files) == 5
    while journal.last_sequence < 600:
        append(journal, 50, b"other" * 6)
        journal.sync()
    assert body == BODY
    del body
    journal.close()


def test_readers_and_trims_beside_appends(tmp_path: Path) -> None:
    journal = open_journal(LocalFiles(tmp_path))
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        rng = random.Random(1)
        try:
            while not stop.is_set():
                last = journal.last_sequence
                if last:
                    sequence = rng.randint(max(1, last - 100), last)
                    try:
                        assert bytes(journal.body(sequence)) == b"%08d" % sequence * 9
                        for frame in journal.replay(sequence - 1):
                            assert bytes(frame.body) == b"%08d" % frame.sequence * 9
                    except Gone:
                        continue
        except BaseException as error:
            failures.append(error)

    def trim() -> None:
        try:
            while not stop.is_set():
                journal.trim(journal.synced_sequence - 40)
                journal.prepare_spare()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (read, read, trim)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 1500):
        journal.append([Frame(sequence, 0, True, True, [b"%08d" % sequence * 9])])
        if sequence % 7 == 0:
            journal.sync()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    journal.close()


# ---------------------------------------------------------------------- tails


def test_a_tail_torn_at_any_byte_is_cut() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    data = content(files, FIRST)
    start = 64 + 2 * STEP
    for length in range(STEP - len(codec.padding(len(BODY)))):
        torn = SimulatedFiles()
        torn.create(FIRST, SEGMENT_BYTES).write_at(0, [data[: start + length]])
        again = open_journal(torn)
        assert again.last_sequence == 2
        synced(again, 2, b"new")
        assert sequences(again) == [1, 2, 3, 4]
        assert [bytes(frame.body) for frame in open_journal(torn).replay(2)] == [b"new"] * 2


def test_a_bit_flipped_in_the_last_frame_is_cut_where_nothing_knows_of_it() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 3)
    files.flip_bit(FIRST, 64 + 2 * STEP + 80)
    with pytest.raises(Corruption, match="1 frames from 3 to 3"):
        open_journal(files)
    files.delete("journal/END")
    assert sequences(open_journal(files)) == [1, 2]


def test_a_mark_tells() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    assert journal.mark()
    files.flip_bit(FIRST, 64 + 2 * STEP + 80)
    with pytest.raises(Corruption) as caught:
        open_journal(files)
    assert (caught.value.file, caught.value.offset) == (FIRST, 64 + 2 * STEP)
    assert caught.value.details["sequence"] == 3


@pytest.mark.parametrize("bit", [0, 7])
def test_any_bit_flipped_before_what_was_known_is_corruption(bit: int) -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 6)
    names = files.list("")
    for offset in range(64, 64 + 3 * STEP):
        if (offset - 64) % STEP >= HEADER_BYTES + len(BODY):
            continue  # Padding has no meaning.
        files.flip_bit(FIRST, offset, bit)
        with pytest.raises(Corruption) as caught:
            open_journal(files)
        assert caught.value.file == FIRST
        assert caught.value.offset == 64 + (offset - 64) // STEP * STEP
        assert files.list("") == names  # A journal that can't be opened stays as it was.
        files.flip_bit(FIRST, offset, bit)
    assert open_journal(files).last_sequence == 6


def test_damage_in_a_sealed_segment_shows_when_it_is_read() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 100)
    files.flip_bit(FIRST, 64 + 5 * STEP + 75)
    again = open_journal(copy_of(files))
    assert bytes(again.body(5)) == BODY
    for read in (lambda: again.body(6), lambda: sequences(again)):
        with pytest.raises(Corruption) as caught:
            read()
        assert (caught.value.file, caught.value.offset) == (FIRST, 64 + 5 * STEP)
    assert sequences(again, 6)[0] == 7
    files.flip_bit(FIRST, 64 + 8 * STEP + 3)
    with pytest.raises(Corruption) as caught:
        sequences(open_journal(copy_of(files)), 20)
    assert (caught.value.file, caught.value.offset) == (FIRST, 64 + 8 * STEP)


def test_a_bad_segment_header_is_corruption() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 3)
    for offset in range(64):
        files.flip_bit(FIRST, offset)
        with pytest.raises(Corruption) as caught:
            open_journal(files)
        assert (caught.value.file, caught.value.offset) == (FIRST, 0)
        files.flip_bit(FIRST, offset)


def test_a_segment_under_another_name_is_corruption() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 3)
    files.rename(FIRST, segment_name("journal", 2))
    with pytest.raises(Corruption):
        open_journal(files)


def test_a_missing_segment_is_corruption() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 150)
    assert len(segments(files)) > 3
    files.delete(segment_name("journal", segments(files)[1]))
    again = open_journal(files)
    with pytest.raises(Corruption) as caught:
        sequences(again)
    assert caught.value.file == FIRST


def test_a_good_frame_with_another_sequence_is_not_the_one_expected() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 3)
    nonce = decode_segment_header(bytes(content(files, FIRST)[:64]), FIRST).nonce
    for sequence in (2, 3, 5):
        stray = Header(1, BEGIN | END, 0, 1, 7, sequence, 3, 0, body_checksum([]), nonce)
        disk = copy_of(files)
        overwrite(disk, FIRST, 64 + 3 * STEP, codec.encode_header(stray))
        assert sequences(open_journal(disk)) == [1, 2, 3]


def test_a_lost_mark_costs_nothing() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 2)
    assert journal.mark()
    synced(journal, 1)
    files.flip_bit(FIRST, 64 + 2 * STEP + 9)
    again = open_journal(files)
    assert sequences(again) == [1, 2, 3]
    synced(again, 1)
    assert sequences(open_journal(files)) == [1, 2, 3, 4]


def test_later_frames_of_the_same_sync_are_no_evidence() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 2)
    append(journal, 3)  # Unsynced: 3 arrives torn, 4 and 5 whole.
    files.flip_bit(FIRST, 64 + 2 * STEP + 75)
    again = open_journal(files)
    assert sequences(again) == [1, 2]
    synced(again, 1, b"new")
    assert [bytes(frame.body) for frame in open_journal(files).replay(2)] == [b"new"]


def test_frames_not_known_to_be_durable_are_copied_before_they_are_served() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 2)
    append(journal, 3)
    journal.close()
    again = open_journal(files)  # The process died, the machine didn't.
    assert sequences(again) == [1, 2, 3, 4, 5]
    assert segments(files) == [1, 3]
    assert [frame.epoch for frame in again.replay(0)] == [1, 1, 2, 2, 2]
    for seed in range(10):
        assert sequences(open_journal(files.crash(random.Random(seed)))) == [1, 2, 3, 4, 5]
    # What was copied was durable when the segment was born, so its loss is no torn tail.
    files.flip_bit(segment_name("journal", 3), 64 + 2 * STEP + 75)
    with pytest.raises(Corruption, match="born with frames up to 5"):
        open_journal(files)


def test_on_a_full_disk_such_frames_are_synced_where_they_lie() -> None:
    files = SimulatedFiles()
    journal = open_journal(files, reserve_bytes=0)
    synced(journal, 1)
    append(journal, 2)
    journal.close()
    files.capacity_bytes = SEGMENT_BYTES
    again = open_journal(files, reserve_bytes=0)
    assert sequences(again) == [1, 2, 3]
    assert segments(files) == [1]
    for seed in range(10):
        assert sequences(open_journal(files.crash(random.Random(seed)))) == [1, 2, 3]


def test_an_opening_that_writes_nothing_leaves_nothing() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    journal.mark()
    journal.close()
    before = files.operations
    for _ in range(3):
        again = open_journal(files)
        assert (again.epoch, again.last_sequence) == (2, 3)
        again.close()
    assert files.operations == before + 3  # Names are synced, to be sure; nothing else.


def test_a_name_whose_sync_failed_is_synced_before_it_is_served() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 1)
    files.fail("sync_directory")
    with pytest.raises(StorageFailed):
        append(journal, 1, bytes(4000))
    journal.close()
    assert sequences(open_journal(files)) == [1, 2]
    for seed in range(20):
        assert sequences(open_journal(files.crash(random.Random(seed)))) == [1, 2]


def test_an_unfinished_group_over_several_segments_is_void() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 2)
    group = [Frame(n, 0, n == 3, False, [bytes(1000)]) for n in range(3, 13)]
    journal.append(group)
    journal.sync()
    assert len(segments(files)) > 2
    journal.close()
    again = open_journal(files)
    assert (again.last_sequence, segments(files)) == (2, [1])
    synced(again, 2)
    assert sequences(open_journal(files)) == [1, 2, 3, 4]


# ---------------------------------------------------------------------- failure


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failure_poisons_the_journal(kind: str) -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    files.fail(kind)
    with pytest.raises(StorageFailed):
        synced(journal)
    operations = files.operations
    for call in (lambda: append(journal), journal.sync, journal.mark, journal.prepare_spare):
        with pytest.raises(StorageFailed, match="Input/output error"):
            call()
    assert files.operations == operations  # Nothing was tried again.
    assert journal.synced_sequence == 3
    assert bytes(journal.body(3)) == BODY
    journal.close()
    again = open_journal(files, cut_after=3)
    assert again.last_sequence == 3
    synced(again, 2, b"new")
    assert [bytes(frame.body) for frame in open_journal(files).replay(3)] == [b"new"] * 2


def test_a_full_disk_found_in_the_middle_of_a_write_is_a_failure() -> None:
    """The file system broke its promise, so some of the batch may be there after a crash."""
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal)
    files.fail("write", error=errno.ENOSPC)
    with pytest.raises(StorageFailed):
        append(journal, 3)


def test_an_interrupted_write_poisons_too(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal)

    def interrupted(_: Sequence[object]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fasti.storage.files.journal.body_checksum", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append(journal)
    with pytest.raises(StorageFailed, match="KeyboardInterrupt"):
        journal.sync()


def test_cut_after_discards_for_good() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 100)
    journal.close()
    cut = open_journal(files, cut_after=30)
    assert (cut.last_sequence, cut.synced_sequence) == (30, 30)
    cut.close()
    again = open_journal(files)  # Without being told again.
    assert sequences(again) == list(range(1, 31))
    synced(again, 3)
    assert sequences(open_journal(files)) == list(range(1, 34))


def test_what_was_cut_stays_cut_over_any_number_of_openings() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    append(journal, 5)
    journal.close()
    for _ in range(3):
        journal = open_journal(files, cut_after=3)
        journal.close()
    for _ in range(3):
        journal = open_journal(files)
        assert (journal.last_sequence, segments(files)) == (3, [1, 4])
        journal.close()
    journal = open_journal(files)
    synced(journal, 1, b"new")
    assert segments(files) == [1, 4]
    assert [bytes(frame.body) for frame in open_journal(files).replay(3)] == [b"new"]


@pytest.mark.parametrize("cut", range(40, 81))
def test_a_cut_at_any_place(cut: int) -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    append(journal, 80)
    journal.sync()
    journal.trim(36)
    journal.close()
    for seed in range(3):
        disk = copy_of(files)
        journal = open_journal(disk, cut_after=cut)
        assert journal.last_sequence == cut
        assert open_journal(disk.crash(random.Random(seed))).last_sequence == cut


def test_a_cut_inside_a_group_voids_the_group() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 2)
    journal.append([Frame(n, 0, n == 3, n == 5, [BODY]) for n in (3, 4, 5)])
    journal.sync()
    journal.close()
    assert open_journal(files, cut_after=4).last_sequence == 2


def test_a_cut_that_cannot_be_is_refused() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 100)
    journal.trim(80)
    journal.close()
    with pytest.raises(Gone):
        open_journal(files, cut_after=5)
    with pytest.raises(Corruption, match="known to be durable"):
        open_journal(files, cut_after=101)


def test_a_full_disk_and_back() -> None:
    files = SimulatedFiles(capacity_bytes=4 * SEGMENT_BYTES)
    journal = open_journal(files)
    with pytest.raises(StorageFull) as caught:
        synced(journal, 1000)
    assert caught.value.retryable
    full = journal.last_sequence
    assert journal.synced_sequence == full
    with pytest.raises(StorageFull):
        append(journal)
    append(journal, 3, use_reserve=True)  # Acks go on ...
    journal.sync()
    with pytest.raises(StorageFull):
        append(journal)  # ... and don't make room for produce.
    journal.trim(full)
    synced(journal, 30)
    assert sequences(open_journal(files))[-1] == full + 33


def test_the_reserve_has_an_end() -> None:
    files = SimulatedFiles(capacity_bytes=2 * SEGMENT_BYTES + 1024)
    journal = open_journal(files)
    for _ in range(200):
        try:
            append(journal, use_reserve=True)
        except StorageFull:
            break
    assert len(segments(files)) == 2
    files.capacity_bytes = None
    synced(journal, 5)
    assert sequences(journal)[-1] == journal.last_sequence


def test_a_batch_that_needs_more_segments_than_there_is_room_for_writes_nothing() -> None:
    files = SimulatedFiles(capacity_bytes=4 * SEGMENT_BYTES + 1024)
    journal = open_journal(files)
    synced(journal, 2)
    data = content(files, FIRST)
    with pytest.raises(StorageFull):
        append(journal, 10, bytes(2000))
    assert content(files, FIRST) == data
    assert journal.last_sequence == 2
    assert journal.room_bytes() > 2 * SEGMENT_BYTES  # What was made for it is kept for the next.
    synced(journal, 2)


def test_permission_denied_changes_nothing() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 3)
    names = files.list("")
    files.fail("open", 2, error=errno.EACCES)
    with pytest.raises(PermissionDenied, match=FIRST):
        open_journal(files)
    assert files.list("") == names
    assert sequences(open_journal(files)) == [1, 2, 3]


def test_a_bad_sector_is_an_error_and_not_a_dead_process() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 100)
    headers = len(segments(files))
    files.fail("read", headers + 1)  # Behind the segment headers the tail is read first.
    with pytest.raises(StorageFailed, match=segment_name("journal", segments(files)[-1])):
        open_journal(files)
    journal = open_journal(files)
    files.fail("read")
    with pytest.raises(StorageFailed, match=FIRST):
        sequences(journal)
    assert sequences(journal) == list(range(1, 101))


def test_sealed_segments_need_no_descriptors(tmp_path: Path) -> None:
    journal = open_journal(LocalFiles(tmp_path))
    synced(journal, 3)
    descriptors = "/proc/self/fd"
    if not os.path.isdir(descriptors):
        pytest.skip("there is no /proc here")

    def count() -> int:
        targets = (os.path.realpath(f"{descriptors}/{name}") for name in os.listdir(descriptors))
        return sum(target.startswith(str(tmp_path)) for target in targets)

    assert count() <= 3  # A segment, its map before Python 3.13, and the end.
    synced(journal, 200)
    maps_keep_one = sys.version_info < (3, 13)
    assert count() <= 3 + maps_keep_one * len(list((tmp_path / "journal").iterdir()))
    journal.close()
    assert count() == 0


@pytest.mark.parametrize("first", [64 + STEP, 64 + STEP + 1, 64 + 2 * STEP - 1])
@pytest.mark.parametrize("count", [1, 30, 64 + 13, STEP + 1])
def test_bytes_that_were_cut_out_are_no_torn_tail(first: int, count: int) -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 8)
    data = content(files, FIRST)
    del data[first : first + count]
    overwrite(files, FIRST, 0, bytes(data.ljust(SEGMENT_BYTES, b"\0")))
    with pytest.raises(Corruption, match="knew it to be durable"):
        open_journal(files)
    assert [finding.kind for finding in survey(files, "journal").findings] == ["damaged_frame"]


# ---------------------------------------------------------------------- formats and settings


def test_a_newer_segment_is_not_touched() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    header = bytearray(encode_segment_header(SegmentHeader(1, 7, 1, 0, 5)))
    header[8:12] = (9).to_bytes(4, "little")
    header[56:] = body_checksum([header[:56]]).to_bytes(8, "little")
    overwrite(files, FIRST, 0, bytes(header))
    expect_newer(files, found=9, supported=1)


def test_a_newer_frame_is_not_touched() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 3)
    nonce = decode_segment_header(bytes(content(files, FIRST)[:64]), FIRST).nonce
    newer = Header(2, BEGIN | END, 0, 1, 7, 4, 3, 0, body_checksum([]), nonce)
    overwrite(files, FIRST, 64 + 3 * STEP, codec.encode_header(newer))
    expect_newer(files, found=2, supported=1)


def expect_newer(files: SimulatedFiles, found: int, supported: int) -> None:
    before = {name: content(files, name) for name in files.list("")}
    operations = files.operations
    with pytest.raises(NewerFormat) as caught:
        open_journal(files)
    assert (caught.value.found, caught.value.supported) == (found, supported)
    assert caught.value.details["file"] == FIRST
    assert files.operations == operations
    assert {name: content(files, name) for name in files.list("")} == before


def test_another_incarnation_is_refused() -> None:
    files = SimulatedFiles()
    synced(open_journal(files), 1)
    with pytest.raises(Corruption, match="incarnation 7, not 8"):
        open_journal(files, incarnation=8)
    assert FileJournal(files, segment_bytes=SEGMENT_BYTES).incarnation == 7


def test_segments_of_two_incarnations_or_out_of_epoch_are_corruption() -> None:
    for incarnation, epoch in ((8, 1), (7, 0)):
        files = SimulatedFiles()
        synced(open_journal(files), 1)
        header = encode_segment_header(SegmentHeader(epoch, incarnation, 2, 1, 5))
        files.create(segment_name("journal", 2), SEGMENT_BYTES).write_at(0, [header])
        with pytest.raises(Corruption) as caught:
            open_journal(files)
        assert caught.value.file == segment_name("journal", 2)


def test_leftovers_are_put_to_use_or_removed() -> None:
    files = SimulatedFiles()
    files.create("journal/spare-00000003.ready", SEGMENT_BYTES)
    files.create("journal/spare-00000004.ready", SEGMENT_BYTES // 2)
    files.create("journal/spare-00000005.preparing", SEGMENT_BYTES)
    journal = open_journal(files)
    assert files.list("") == ["journal/spare-00000003.ready"]
    journal.prepare_spare()
    assert files.list("")[-1] == "journal/spare-00000006.ready"


def test_another_segment_size_can_be_chosen_later() -> None:
    files = SimulatedFiles()
    journal = open_journal(files)
    synced(journal, 100)
    journal.close()
    journal = open_journal(files, segment_bytes=3 * SEGMENT_BYTES)
    synced(journal, 100)
    assert sequences(open_journal(files, segment_bytes=2 * SEGMENT_BYTES)) == list(range(1, 201))


def test_a_segment_too_small_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_journal(SimulatedFiles(), segment_bytes=100)
    assert caught.value.field == "segment_bytes"


def test_a_segment_header_survives_the_way_to_bytes_and_back() -> None:
    header = SegmentHeader(2**32 - 1, 2**64 - 1, 12345, 12399, 2**32 - 2)
    name = segment_name("journal", 12345)
    assert decode_segment_header(encode_segment_header(header), name) == header


def test_all_errors_are_ours(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"a file where the folder should be")
    with pytest.raises(FastiError):
        synced(open_journal(LocalFiles(tmp_path)), 1)
