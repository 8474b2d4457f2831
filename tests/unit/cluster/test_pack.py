"""Packs: values to bytes and back, and damage anywhere in them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from fasti.cluster.pack import (
    PACK_HEADER_BYTES_MAX,
    Pack,
    decode_pack,
    encode_pack,
    frames_in,
    groups_of,
    split_frame,
)
from fasti.cluster.pack_reader import PackHeader
from fasti.errors import Corruption, NewerFormat
from fasti.storage.frames import BEGIN, END, Header, body_checksum, encode_header, padding

HEADER = PackHeader(7, "broker-1", 0xABCDEF, 3, 4)


def frame(sequence: int, body: bytes) -> bytes:
    checksum = body_checksum([body])
    header = Header(1, BEGIN | END, len(body), 7, 99, sequence, 2, -5, checksum, 0)
    return encode_header(header) + body + padding(len(body))


def pack(body: bytes, **changes: object) -> Pack:
    return replace(Pack("c", 5, 99, 12, HEADER, 1_700, 0x1234, body), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [os.urandom(1000), b"text " * 1000, b""])
def test_a_pack_is_decoded_as_it_was_encoded(body: bytes) -> None:
    message, sent = encode_pack(pack(body, part=1, parts=3))
    found = decode_pack(message, "stream")
    assert bytes(memoryview(found.body)) == body
    assert replace(found, body=b"") == replace(sent, body=b"")
    assert found.checksum


def test_text_is_compressed_and_noise_is_not() -> None:
    assert len(encode_pack(pack(b"text " * 1000))[0]) < 1000
    assert len(encode_pack(pack(os.urandom(5000)))[0]) > 5000
    names = {"cluster": "c" * 64, "header": HEADER._replace(broker="b" * 255)}
    assert len(encode_pack(pack(b"", **names))[0]) <= PACK_HEADER_BYTES_MAX


@pytest.mark.parametrize("body", [os.urandom(300), b"text " * 100])
def test_damage_at_any_byte_is_found(body: bytes) -> None:
    message, _ = encode_pack(pack(body))
    for offset in range(len(message)):
        damaged = bytearray(message)
        damaged[offset] ^= 0x10
        with pytest.raises(Corruption):
            decode_pack(bytes(damaged), "stream")
    for length in range(len(message)):
        with pytest.raises(Corruption):
            decode_pack(message[:length], "stream")
    with pytest.raises(Corruption):
        decode_pack(message + b"\0", "stream")


def test_a_newer_format_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasti.cluster.pack.PACK_VERSION", 2)
    message, _ = encode_pack(pack(b"x"))
    monkeypatch.undo()
    with pytest.raises(NewerFormat):
        decode_pack(message, "stream")


def test_frames_are_found_again_and_their_damage_too() -> None:
    body = frame(3, b"three") + frame(4, b"four" * 100)
    found = list(frames_in(body, "stream", 1))
    assert [(one.sequence, bytes(one.body)) for one in found] == [
        (3, b"three"),
        (4, b"four" * 100),
    ]
    assert [(one.epoch, one.at_us, one.begins_group, one.ends_group) for one in found] == [
        (7, -5, True, True)
    ] * 2
    for damaged in (body[:-70], body[:70], b"x" + body[1:], body[:64] + b"x" + body[65:]):
        with pytest.raises(Corruption):
            list(frames_in(damaged, "stream", 1))


def test_a_large_frame_is_split_and_small_ones_share_a_pack() -> None:
    data = os.urandom(1000)
    parts = split_frame(data, 300)
    assert [len(part) for part in parts] == [300, 300, 300, 100]
    assert b"".join(parts) == data
    assert groups_of([10, 20, 30, 100, 5, 5], 60) == [3, 1, 2]
    assert groups_of([200], 60) == [1]
