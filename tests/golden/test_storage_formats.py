"""Files of the journal and the manifest, byte for byte: written the same and read for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasti.errors import NewerFormat
from fasti.storage.files.blocks import FileBlocks, decode_manifest, encode_manifest
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_end import SyncedEnd, decode_ends, encode_end
from fasti.storage.frames import BEGIN, END, MARK, Frame, Header, decode_header
from fasti.testing.disk import SimulatedFiles

HERE = Path(__file__).parent
SEGMENT = HERE / "journal.segment"
END_FILE = HERE / "journal-end"
MANIFEST = HERE / "manifest"
NAME = "journal/00000000000000000001.segment"
DATA = b"what the manifest says"

FRAMES = [
    Frame(1, 1_700_000_000_000_001, True, True, [b"alone"]),
    Frame(2, 1_700_000_000_000_002, True, False, [b"a group ", b"begins"]),
    Frame(3, -3, False, True, [b""]),
    Frame(4, 1_700_000_000_000_004, True, True, [bytes(range(256))]),
]


def written_segment() -> bytes:
    files = SimulatedFiles()
    drawn = iter([0x0123456789ABCDEF, 0xFEDCBA9876543210])
    journal = FileJournal(files, segment_bytes=4096, draw=lambda: next(drawn))
    journal.append(FRAMES[:1])
    journal.sync()
    journal.append(FRAMES[1:])
    journal.sync()
    assert journal.mark()
    return bytes(files.open(NAME, writable=False).map())


def written_end() -> bytes:
    return encode_end(SyncedEnd(1, 0x0123456789ABCDEF, 1, 4, 704, 0x76543210), 3)


def written() -> dict[Path, bytes]:
    return {
        SEGMENT: written_segment().rstrip(b"\0"),
        MANIFEST: encode_manifest(7, DATA),
        END_FILE: written_end(),
    }


def stored_segment() -> bytes:
    return SEGMENT.read_bytes().ljust(4096, b"\0")  # The zeros at its end are not kept.


def test_a_segment_is_written_as_ever() -> None:
    assert written_segment() == stored_segment()


def test_a_segment_is_read_as_ever() -> None:
    files = SimulatedFiles()
    files.create(NAME, 0).write_at(0, [stored_segment()])
    journal = FileJournal(files, segment_bytes=4096)
    assert (journal.incarnation, journal.epoch) == (0x0123456789ABCDEF, 2)
    stored = list(journal.replay(0))
    for was, now in zip(FRAMES, stored, strict=True):
        assert bytes(now.body) == b"".join(map(bytes, was.body))
        assert (now.sequence, now.at_us, now.epoch) == (was.sequence, was.at_us, 1)
        assert (now.begins_group, now.ends_group) == (was.begins_group, was.ends_group)


def test_a_journal_of_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    with monkeypatch.context() as later:
        later.setattr("fasti.storage.files.journal_segment.SEGMENT_FORMAT_VERSION", 2)
        journal = FileJournal(files, segment_bytes=4096)
        journal.append(FRAMES[:1])
        journal.sync()
        journal.close()
    with pytest.raises(NewerFormat) as caught:
        FileJournal(files, segment_bytes=4096)
    assert (caught.value.found, caught.value.supported) == (2, 1)


def test_headers_lie_where_they_always_did() -> None:
    view = memoryview(stored_segment())
    incarnation, nonce = 0x0123456789ABCDEF, 0x76543210
    flags = {64: BEGIN | END, 192: BEGIN, 320: END, 384: BEGIN | END, 704: MARK}
    for offset, (sequence, synced) in zip(
        flags, [(1, 0), (2, 1), (3, 1), (4, 1), (4, 4)], strict=True
    ):
        header = decode_header(view, offset)
        assert header is not None
        assert header[:2] == (1, flags[offset])
        assert header[3:7] == (1, incarnation, sequence, synced)
    assert decode_header(view, 384) == Header(
        1, BEGIN | END, 256, 1, incarnation, 4, 1, 1_700_000_000_000_004, 0x9408A4433B952D71, nonce
    )


def test_the_manifest_is_written_and_read_as_ever() -> None:
    assert encode_manifest(7, DATA) == MANIFEST.read_bytes()
    assert decode_manifest(MANIFEST.read_bytes(), "MANIFEST") == (7, DATA)
    files = SimulatedFiles()
    files.create("blocks/MANIFEST", 0).write_at(0, [MANIFEST.read_bytes()])
    blocks = FileBlocks(files)
    assert blocks.read_manifest() == (7, DATA)
    assert blocks.switch_manifest(7, b"next") == 8


def test_the_end_is_written_and_read_as_ever() -> None:
    assert written_end() == END_FILE.read_bytes()
    end = SyncedEnd(1, 0x0123456789ABCDEF, 1, 4, 704, 0x76543210)
    assert decode_ends(END_FILE.read_bytes()) == (3, end)
    assert decode_ends(bytes(512) + END_FILE.read_bytes()) == (3, end)


@pytest.mark.parametrize("path", [SEGMENT, MANIFEST, END_FILE], ids=lambda path: path.name)
def test_golden_files_are_small(path: Path) -> None:
    assert path.stat().st_size < 4096
