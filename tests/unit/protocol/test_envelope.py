"""Envelopes carry a header and tables through bytes, and refuse everything else by name."""

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.errors import InvalidArgument
from fasti.protocol.envelope import dump, join_row, pack, parse, parse_request, split_row, unpack
from fasti.protocol.single_row import as_batch

PART = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})
OTHER = pa.RecordBatch.from_pydict({"key": ["a", None]})


def test_header_and_parts_come_back() -> None:
    header, parts = unpack(pack({"topic": "emails", "n": 7}, [PART, OTHER]))
    assert header == {"topic": "emails", "n": 7}
    assert [part.to_pydict() for part in parts] == [PART.to_pydict(), OTHER.to_pydict()]


def test_a_header_alone_needs_no_parts() -> None:
    assert unpack(pack({"a": None})) == ({"a": None}, [])


def test_a_part_without_rows_keeps_its_schema() -> None:
    _, (part,) = unpack(pack({}, [PART.slice(0, 0)]))
    assert part.schema == PART.schema
    assert part.num_rows == 0


def body(header: bytes, rest: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<I", len(header) if length is None else length) + header + rest


@pytest.mark.parametrize(
    ("bytes_in", "field"),
    [
        (b"", "body"),
        (b"\x01", "body"),
        (body(b"{}", length=99), "body"),
        (body(b"nonsense"), "json"),
        (body(b"[1]"), "json"),
        (body(b'{"parts": 3}'), "parts"),
        (body(b'{"parts": [-1]}'), "parts"),
        (body(b'{"parts": [true]}', b"x"), "parts"),
        (body(b'{"parts": [5]}', b"1234"), "parts"),
        (body(b'{"parts": [4]}', b"1234"), "parts"),
        (body(b"{}", b"more"), "parts"),
    ],
)
def test_what_is_no_envelope_is_refused(bytes_in: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        unpack(bytes_in)
    assert refused.value.field == field


@given(st.binary(max_size=300))
def test_no_bytes_break_it(noise: bytes) -> None:
    for attempt in (noise, body(b"{}", noise), body(b'{"parts":[%d]}' % len(noise), noise)):
        with contextlib.suppress(InvalidArgument):
            unpack(attempt)
        with contextlib.suppress(InvalidArgument):
            unpack(attempt, of_request=True)


@given(st.data())
def test_a_damaged_part_is_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray(pack({}, [OTHER]))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    for of_request in (False, True):
        with contextlib.suppress(InvalidArgument):
            unpack(bytes(whole), of_request=of_request)


def test_deep_json_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse(b'{"a":' * 100_000)


def test_json_of_a_request_is_bounded() -> None:
    text = b'{"a":"' + b"x" * (8 << 20) + b'"}'
    assert len(unpack(body(text))[0]["a"]) == 8 << 20
    with pytest.raises(InvalidArgument):
        unpack(body(text), of_request=True)


def test_a_small_part_may_stand_in_the_header() -> None:
    part = pa.RecordBatch.from_pydict({"key": ["größe", "b"], "delay_us": [1, -(1 << 63)]})
    body_bytes = pack({"topic": "t"}, [part], inline=True)
    assert b"ARROW" not in body_bytes
    header, (found,) = unpack(body_bytes, of_request=True)
    assert header == {"topic": "t"}
    assert found.schema == part.schema
    assert found.to_pydict() == part.to_pydict()


@pytest.mark.parametrize(
    "part",
    [
        PART.slice(0, 0),
        OTHER,
        pa.RecordBatch.from_pydict({"payload": [b"x"]}),
        pa.RecordBatch.from_pydict({"priority": pa.array([1], pa.int32())}),
        pa.RecordBatch.from_pydict({"id": list(range(1000))}),
    ],
)
def test_other_parts_are_arrow_streams_whatever_is_asked_for(part: pa.RecordBatch) -> None:
    """Without rows, with null, of other types, large."""
    both = pa.RecordBatch.from_pydict({"id": [7]})
    _, (small, found, last) = unpack(pack({}, [both, part, both], inline=True), of_request=True)
    assert found.schema == part.schema
    assert found.to_pydict() == part.to_pydict()
    assert as_batch(small).equals(both)
    assert as_batch(last).equals(both)


@pytest.mark.parametrize("payload", [b"", b"hello", b"\0", b"a\0b\0", b"{}"])
def test_a_row_is_its_header_and_its_payload(payload: bytes) -> None:
    header = {"sequence": 3, "row": {"key": "a\0b", "due_us": 5}}
    text, found = split_row(join_row(header, payload))
    assert (parse_request(text), found) == (header, payload)


def test_metadata_without_a_payload_is_no_row() -> None:
    assert split_row(dump({"end": True})) == (b'{"end":true}', None)
