"""The frame codec; its bytes are pinned in tests/golden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.storage import frames
from fasti.storage.frames import Header

HEADER = Header(1, frames.BEGIN | frames.END, 5, 3, 2**63, 9, 8, -1, 0x1122334455667788, 77)

I64 = st.integers(-(2**63), 2**63 - 1)
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(
    st.builds(Header, U16, U16, U32, U32, U64, U64, U64, I64, U64, U32),
    st.integers(0, 4).map(lambda places: places * 64),
)
def test_headers_survive_the_way_to_bytes_and_back(header: Header, offset: int) -> None:
    data = frames.encode_header(header)
    assert len(data) == frames.HEADER_BYTES
    assert frames.decode_header(memoryview(bytes(offset) + data), offset) == header


def test_every_bit_of_a_header_counts() -> None:
    data = frames.encode_header(HEADER)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert frames.decode_header(memoryview(damaged), 0) is None


def test_a_header_cut_off_is_none() -> None:
    data = frames.encode_header(HEADER)
    for length in range(len(data)):
        assert frames.decode_header(memoryview(data[:length]), 0) is None


@pytest.mark.parametrize("length", range(140))
def test_frames_end_aligned(length: int) -> None:
    assert frames.frame_bytes(length) == 64 + length + len(frames.padding(length))
    assert frames.frame_bytes(length) % 64 == 0
    assert not any(frames.padding(length))
    assert len(frames.padding(length)) < 64


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_checksum_does_not_depend_on_how_the_body_is_cut(parts: list[bytes]) -> None:
    assert frames.body_checksum(parts) == frames.body_checksum([b"".join(parts)])
    assert frames.body_bytes(parts) == len(b"".join(parts))


def test_lengths_are_in_bytes_whatever_the_items_are() -> None:
    assert frames.body_bytes([np.zeros((3, 2), dtype=np.int32), b"x"]) == 25


def test_a_stored_body_is_checked_and_not_copied() -> None:
    body = b"hello"
    header = HEADER._replace(body_checksum=frames.body_checksum([body]))
    data = bytearray(frames.encode_header(header) + body)
    view = memoryview(data)
    stored = frames.stored_body(view, 0, header)
    assert stored is not None
    assert stored.obj is data
    assert stored == body
    assert frames.stored_body(view[:-1], 0, header) is None
    data[-1] ^= 1
    assert frames.stored_body(view, 0, header) is None
