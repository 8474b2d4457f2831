"""Messages of a cluster's streams, byte for byte: written the same and read for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fasti.cluster.block_part import Part, decode_part, encode_part
from fasti.cluster.pack import Pack, decode_pack, encode_pack
from fasti.cluster.pack_reader import PackHeader, PackReader
from fasti.cluster.pointer import Place, PointerRecord

HERE = Path(__file__).parent
START, FRAMES, PART, POINTER = (
    HERE / name for name in ("pack-start", "pack-frames", "block-part", "pointer")
)

STARTED = Pack(
    "c", 2, 0x0123456789ABCDEF, 6, PackHeader(3, "broker", 0x77, 9, 8, True), -1, 0x1122334455
)
# Noise that is the same everywhere: what LZ4 makes of text may differ from version to version.
BODY = bytes((number * 167 + 13) % 251 for number in range(200))
PACKED = Pack(
    "c", 2, 0x0123456789ABCDEF, 7, PackHeader(3, "broker", 0x77, 9, 9), 1_700, 0x66, BODY, 1, 3
)
BLOCK = Part(1, 2, 150, 100, 0x99, memoryview(BODY[:50]))
RECORD = PointerRecord(
    4, 3, "broker", "host:1", "3-5.ab", 5, 8, 0x0123456789ABCDEF,
    Place(6, PackReader(3, 0x77, 8), 0x1122334455), ("c-j-2",),
)  # fmt: skip


def written() -> dict[Path, bytes]:
    return {
        START: encode_pack(STARTED)[0],
        FRAMES: encode_pack(PACKED)[0],
        PART: b"".join(encode_part("3-4.rows", BLOCK)),
        POINTER: RECORD.encode(),
    }


def test_messages_are_written_as_ever() -> None:
    for path, data in written().items():
        assert path.read_bytes() == data, path.name


def test_messages_are_read_as_ever() -> None:
    for path, pack in ((START, STARTED), (FRAMES, PACKED)):
        found = decode_pack(path.read_bytes(), "stream")
        assert bytes(memoryview(found.body)) == pack.body
        assert replace(found, body=b"", checksum=0) == replace(pack, body=b"")
    assert decode_part("3-4.rows", 1, PART.read_bytes()) == BLOCK
    assert PointerRecord.decode(POINTER.read_bytes(), 4, "stream") == RECORD


def test_a_part_is_the_same_compressed_or_not() -> None:
    text = Part(0, 1, 4_000, 4_000, 0x99, memoryview(b"again and " * 400))
    data = b"".join(encode_part("3-4.rows", text, compressed=True))
    assert len(data) < 400
    assert decode_part("3-4.rows", 0, data) == text
    noise = b"".join(encode_part("3-4.rows", BLOCK, compressed=True))
    assert noise == PART.read_bytes()
