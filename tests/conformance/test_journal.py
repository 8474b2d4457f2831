"""What every `Journal` promises, checked on every kind of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fasti.cluster.stream_journal import StreamJournal
from fasti.errors import Closed, Gone, InvalidArgument, NotFound, StorageFull
from fasti.storage.files import Files, LocalFiles
from fasti.storage.files.journal import FileJournal
from fasti.storage.frames import Frame, body_checksum
from fasti.storage.journal import Journal
from fasti.storage.memory.journal import MemoryJournal
from fasti.testing.disk import SimulatedFiles
from tests.cluster.stream_rig import ShardStreams

SEGMENT_BYTES = 4096


@dataclass
class Kind:
    """How to open a journal, and how to open it again after its process is gone."""

    open: Callable[[], Journal]
    reopen: Callable[[Journal], Journal]
    # What comes before a trim: a manifest that tells all up to a frame.
    checkpoint: Callable[[Journal, int], None] = lambda _, position: None


def on_streams(streams: ShardStreams) -> Kind:
    def reopen(journal: Journal) -> Journal:
        journal.close()
        return streams.open_journal()

    def checkpoint(journal: Journal, position: int) -> None:
        assert isinstance(journal, StreamJournal)
        streams.checkpoint(journal, position)

    return Kind(streams.open_journal, reopen, checkpoint)


def on_files(files: Files) -> Kind:
    def open_journal() -> Journal:
        return FileJournal(files, segment_bytes=SEGMENT_BYTES)

    def reopen(journal: Journal) -> Journal:
        journal.close()
        return open_journal()

    return Kind(open_journal, reopen)


def in_memory() -> Kind:
    def reopen(journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        return journal.reopened()

    return Kind(MemoryJournal, reopen)


@pytest.fixture(params=["local", "memory", "simulated", "streams"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "streams":
        with ShardStreams(request.getfixturevalue("nats")) as streams:
            yield on_streams(streams)
    elif request.param == "local":
        yield on_files(LocalFiles(tmp_path))
    else:
        yield in_memory() if request.param == "memory" else on_files(SimulatedFiles())


@pytest.fixture
def journal(kind: Kind) -> Iterator[Journal]:
    opened = kind.open()
    yield opened
    opened.close()


def frame(sequence: int, body: bytes = b"", begins: bool = True, ends: bool = True) -> Frame:
    return Frame(sequence, 1000 + sequence, begins, ends, [body or b"body %d" % sequence])


def frames(first: int, last: int) -> list[Frame]:
    return [frame(sequence) for sequence in range(first, last + 1)]


def seen(journal: Journal, after: int = 0) -> list[int]:
    return [stored.sequence for stored in journal.replay(after)]


def append_synced(journal: Journal, batch: Sequence[Frame]) -> None:
    journal.append(batch)
    assert journal.sync() == batch[-1].sequence


def test_a_new_journal_is_empty(journal: Journal) -> None:
    assert (journal.last_sequence, journal.synced_sequence, journal.first_sequence) == (0, 0, 1)
    assert journal.epoch >= 1
    assert seen(journal) == []


def test_what_was_appended_is_replayed_in_order(journal: Journal) -> None:
    append_synced(journal, frames(1, 3))
    append_synced(journal, frames(4, 4))
    stored = list(journal.replay(0))
    assert [item.sequence for item in stored] == [1, 2, 3, 4]
    assert [bytes(item.body) for item in stored] == [b"body %d" % n for n in range(1, 5)]
    assert [item.at_us for item in stored] == [1001, 1002, 1003, 1004]
    assert {item.epoch for item in stored} == {journal.epoch}
    assert all(item.begins_group and item.ends_group for item in stored)


def test_replay_starts_after_a_sequence(journal: Journal) -> None:
    append_synced(journal, frames(1, 5))
    assert seen(journal, 3) == [4, 5]
    assert seen(journal, 5) == []
    with pytest.raises(NotFound):
        journal.replay(6)


def test_only_durable_frames_are_replayed(journal: Journal) -> None:
    append_synced(journal, frames(1, 2))
    journal.append(frames(3, 4))
    assert (journal.last_sequence, journal.synced_sequence) == (4, 2)
    assert seen(journal) == [1, 2]
    assert bytes(journal.body(4)) == b"body 4"
    journal.sync()
    assert seen(journal) == [1, 2, 3, 4]


def test_a_body_is_its_buffers_one_after_another(journal: Journal) -> None:
    parts = [
        b"abc",
        bytearray(b"de"),
        memoryview(b"xfghx")[1:4],
        np.arange(3, dtype=np.int64),
        np.empty(0, dtype=np.int64),
        pa.py_buffer(b"arrow"),
        b"",
    ]
    joined = b"abcdefgh" + np.arange(3, dtype=np.int64).tobytes() + b"arrow"
    append_synced(journal, [Frame(1, 0, True, True, parts)])
    append_synced(journal, [Frame(2, 0, True, True, parts, body_checksum(parts))])
    append_synced(journal, [Frame(3, 0, True, True, [])])
    assert [bytes(item.body) for item in journal.replay(0)] == [joined, joined, b""]


def test_a_group_is_seen_whole_or_not_at_all(journal: Journal) -> None:
    append_synced(journal, [frame(1), frame(2, ends=False)])
    assert seen(journal) == [1]
    append_synced(journal, [frame(3, begins=False, ends=False)])
    assert seen(journal) == [1]
    append_synced(journal, [frame(4, begins=False)])
    assert seen(journal) == [1, 2, 3, 4]
    assert seen(journal, 2) == [3, 4]


def test_an_unfinished_group_is_void_after_reopening(kind: Kind) -> None:
    journal = kind.open()
    append_synced(journal, [frame(1), frame(2, ends=False), frame(3, begins=False, ends=False)])
    journal = kind.reopen(journal)
    assert (journal.last_sequence, journal.synced_sequence) == (1, 1)
    append_synced(journal, [frame(2, b"again")])
    assert seen(journal) == [1, 2]
    assert bytes(journal.body(2)) == b"again"
    assert seen(kind.reopen(journal)) == [1, 2]


def test_group_flags_and_sequences_out_of_order_are_refused(journal: Journal) -> None:
    append_synced(journal, frames(1, 1))
    with pytest.raises(InvalidArgument):
        journal.append([frame(3)])
    with pytest.raises(InvalidArgument):
        journal.append([frame(2), frame(2)])
    with pytest.raises(InvalidArgument):
        journal.append([frame(2, begins=False)])
    with pytest.raises(InvalidArgument):
        journal.append([frame(2, ends=False), frame(3)])
    assert journal.last_sequence == 1
    append_synced(journal, frames(2, 2))


def test_what_was_synced_outlives_the_process(kind: Kind) -> None:
    journal = kind.open()
    append_synced(journal, frames(1, 200))
    incarnation, epoch = journal.incarnation, journal.epoch
    journal = kind.reopen(journal)
    assert (journal.incarnation, journal.epoch) == (incarnation, epoch + 1)
    assert (journal.last_sequence, journal.synced_sequence) == (200, 200)
    append_synced(journal, frames(201, 300))
    journal = kind.reopen(journal)
    assert seen(journal) == list(range(1, 301))
    assert bytes(journal.body(150)) == b"body 150"


def test_an_empty_append_is_nothing(journal: Journal) -> None:
    journal.append([])
    assert journal.sync() == 0


def test_marks_are_invisible(kind: Kind) -> None:
    journal = kind.open()
    assert journal.mark() is False
    append_synced(journal, frames(1, 2))
    journal.mark()
    assert journal.mark() is False
    append_synced(journal, frames(3, 3))
    journal.mark()
    assert seen(journal) == [1, 2, 3]
    journal = kind.reopen(journal)
    assert seen(journal) == [1, 2, 3]


def test_trimmed_frames_are_gone_and_the_rest_stays(kind: Kind) -> None:
    journal = kind.open()
    for first in range(1, 400, 20):
        append_synced(journal, frames(first, first + 19))
    kind.checkpoint(journal, 250)
    journal.trim(250)
    first = journal.first_sequence
    assert 1 < first <= 251
    assert seen(journal, first - 1) == list(range(first, 401))
    with pytest.raises(Gone):
        journal.replay(first - 2)
    with pytest.raises(Gone):
        journal.body(first - 1)
    assert bytes(journal.body(first)) == b"body %d" % first
    with pytest.raises(NotFound):
        journal.body(401)
    journal = kind.reopen(journal)
    assert journal.first_sequence == first
    assert seen(journal, first - 1) == list(range(first, 401))


def test_trimming_all_keeps_the_place(kind: Kind) -> None:
    journal = kind.open()
    append_synced(journal, frames(1, 100))
    kind.checkpoint(journal, 100)
    journal.trim(100)
    journal = kind.reopen(journal)
    assert journal.last_sequence == 100
    append_synced(journal, frames(101, 101))
    assert seen(kind.reopen(journal), 100) == [101]


def test_a_body_stays_good_when_its_frame_is_trimmed(journal: Journal) -> None:
    append_synced(journal, frames(1, 50))
    body = journal.body(1)
    for first in range(51, 1000, 50):
        append_synced(journal, frames(first, first + 49))
        journal.trim(first)
        while isinstance(journal, FileJournal) and journal.prepare_spare():
            pass
    assert bytes(body) == b"body 1"


def test_frames_larger_than_any_segment_fit(kind: Kind) -> None:
    journal = kind.open()
    large = bytes(range(256)) * 80
    append_synced(journal, [frame(1), frame(2, large), frame(3), frame(4, large), frame(5)])
    journal = kind.reopen(journal)
    assert seen(journal) == [1, 2, 3, 4, 5]
    assert bytes(journal.body(2)) == bytes(journal.body(4)) == large


def fill(journal: Journal) -> int:
    """Append until it is full; the sequence that was refused."""
    for sequence in range(1, 1000):
        try:
            append_synced(journal, [frame(sequence)])
        except StorageFull:
            return sequence
    pytest.fail("it never got full")


def test_a_full_journal_writes_nothing_and_keeps_a_reserve() -> None:
    size = 2 * SEGMENT_BYTES
    memory = MemoryJournal(limit_bytes=size, reserve_bytes=SEGMENT_BYTES)
    disk = SimulatedFiles(capacity_bytes=size)
    for journal in (memory, FileJournal(disk, segment_bytes=SEGMENT_BYTES)):
        sequence = fill(journal)
        assert sequence > 10
        assert journal.last_sequence == sequence - 1
        assert journal.room_bytes() < SEGMENT_BYTES
        journal.append(frames(sequence, sequence + 1), use_reserve=True)
        journal.sync()
        with pytest.raises(StorageFull):
            journal.append([frame(sequence + 2)])
        assert seen(journal) == list(range(1, sequence + 2))


def test_a_closed_journal_says_so(kind: Kind) -> None:
    journal = kind.open()
    append_synced(journal, frames(1, 1))
    journal.close()
    journal.close()
    for call in (lambda: journal.append(frames(2, 2)), journal.sync, lambda: journal.body(1)):
        with pytest.raises(Closed):
            call()


def test_a_proof_syncs_what_was_appended_and_shows_in_no_replay(kind: Kind) -> None:
    journal = kind.open()
    journal.append(frames(1, 2))
    journal.sync()
    took_bytes = journal.prove() + journal.prove()
    assert (took_bytes > 0) == journal.is_replicated
    journal.append(frames(3, 3))
    if journal.is_replicated:
        assert journal.prove() == 0
    journal.sync()
    journal.prove()
    assert (journal.last_sequence, journal.synced_sequence) == (3, 3)
    assert [stored.sequence for stored in journal.replay(0)] == [1, 2, 3]
    again = kind.reopen(journal)
    assert [stored.sequence for stored in again.replay(0)] == [1, 2, 3]
    assert bytes(again.body(3)) == b"body 3"
    again.append(frames(4, 4))
    again.sync()
    assert again.finished_sequence == 4
    again.close()
