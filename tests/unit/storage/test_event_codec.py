"""Columns and events survive the way to bytes and back, in whatever form they are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.core import events as ev
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.errors import NewerFormat
from fasti.storage import event_codec
from fasti.storage.event_codec import decode, decode_rows, encode, pack_column, unpack_column

SEED = (3, 4)
KINDS = {"<i8": (-(2**63), 2**63 - 1), "<u8": (0, 2**64 - 1), "|u1": (0, 255)}


@st.composite
def columns(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(sorted(KINDS)))
    low, high = KINDS[kind]
    number = st.integers(low, high)
    form = draw(st.sampled_from(["any", "alike", "counting"]))
    if form == "any":
        values = draw(st.lists(number, max_size=40))
    elif form == "alike":
        values = [draw(number)] * draw(st.integers(0, 40))
    else:
        count = draw(st.integers(0, 40))
        first = draw(st.integers(low, high - count))
        values = list(range(first, first + count))
    return np.array(values, dtype=kind)


@given(st.lists(columns(), max_size=6))
def test_columns_come_back(values: list[Any]) -> None:
    buffers: list[Any] = []
    described = [pack_column(column, column.dtype.str, buffers) for column in values]
    body = memoryview(b"".join(bytes(memoryview(b).cast("B")) for b in buffers))
    offset = 0
    for column, description in zip(values, described, strict=True):
        read, offset = unpack_column(body, offset, column.dtype.str, description)
        assert read.dtype == column.dtype
        assert read.tolist() == column.tolist()
    assert offset == len(body)


def test_a_column_that_one_number_describes_takes_no_bytes() -> None:
    buffers: list[Any] = []
    assert pack_column(np.full(9, 7), "<i8", buffers) == ["c", 9, 7]
    assert pack_column(np.arange(5, 9), "<i8", buffers) == ["r", 4, 5]
    assert buffers == []
    # The ends fit, but not what lies between; and a difference that overflows is none of one.
    assert pack_column(np.array([1, 3, 2, 4]), "<i8", buffers)[0] == "a"
    assert pack_column(np.array([2**63 - 1, -(2**63)]), "<i8", buffers)[0] == "a"


def body_of(frame: Frame) -> memoryview:
    return memoryview(b"".join(bytes(memoryview(b).cast("B")) for b in encode(frame)))


def test_a_frame_without_payloads() -> None:
    frame = Frame(1, [ev.Cancelled(5, 1, 2, np.array([3, 9]))], None)
    [event], rows = decode(body_of(frame), SEED)
    assert rows is None
    assert isinstance(event, ev.Cancelled)
    assert (event.at_us, event.topic, event.partition, event.sequence.tolist()) == (5, 1, 2, [3, 9])
    assert decode_rows(body_of(frame)) == (None, 5)


def test_hashes_are_those_of_the_keys_that_lie_beside_the_payloads() -> None:
    rows = Rows.of([b"a", b"b", b"c"], key=["x", None, "y"])
    none = np.zeros(0, dtype=np.int64)
    events: list[ev.Event] = [
        ev.Produced(5, 1, 0, 1, "", "", none[:0], none),
        ev.Produced(5, 1, 1, 1, "", "", np.array([9, 9]), np.array([2, 1])),
    ]
    read, _ = decode(body_of(Frame(1, events, rows)), SEED)
    keys = rows.keys(SEED)
    assert keys is not None
    assert isinstance(read[1], ev.Produced)
    assert read[1].hashes is not None
    assert read[1].hashes.tolist() == keys.hashes[[2, 1]].tolist()
    assert read[1].hashes[1].tolist() == [0, 0]


def test_a_newer_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(event_codec, "BATCH_FORMAT_VERSION", 99)
        body = body_of(Frame(1, [ev.TopicDeleted(5, 1)], None))
    for read in (lambda: decode(body, SEED), lambda: decode_rows(body)):
        with pytest.raises(NewerFormat) as caught:
            read()
        assert caught.value.details["found"] == 99


def test_an_event_that_only_another_version_knows() -> None:
    event = ev.TopicDeleted(5, 1)
    body = b"".join(bytes(memoryview(part)) for part in encode(Frame(1, [event], None)))
    body = body.replace(b"[[3,", b"[[9,")
    with pytest.raises(
        NewerFormat, match="an event of code 9, which this version of Fasti does not know"
    ):
        decode(memoryview(body), (1, 2))


def test_a_message_that_came_alone_is_its_values() -> None:
    rows = Rows.single(b"hello", key="größe", content_type="text/plain")
    produced = ev.Produced(5, 1, 0, 1, "", "", np.array([9]), np.array([0]))
    body = body_of(Frame(1, [produced], rows))
    assert bytes(body).endswith(b"hello" + "größe".encode() + b"text/plain")
    events, found = decode(body, SEED)
    assert found is not None
    assert found.values == rows.values
    assert found.batch.equals(rows.batch)
    keys = rows.keys(SEED)
    assert keys is not None
    assert events[0].hashes.tolist() == keys.hashes.tolist()  # type: ignore[attr-defined]
    again, at_us = decode_rows(body)
    assert (again.values if again else None, at_us) == (rows.values, 5)
