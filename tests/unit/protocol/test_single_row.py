"""A part of one row in a header is its values, if Arrow would take them; of others Arrow says what is wrong."""

from typing import Any

import pyarrow as pa
import pytest

from fasti.errors import InvalidArgument
from fasti.protocol import envelope
from fasti.protocol.envelope import dump, pack, unpack
from fasti.protocol.single_row import SingleRow, as_batch, is_plain


def unpacked(columns: Any) -> Any:
    text = dump({"parts": [columns]})
    _, (part,) = unpack(len(text).to_bytes(4, "little") + text, of_request=True)
    return part


def test_a_row_comes_back_and_is_a_batch_when_asked() -> None:
    values = {"key": "größe", "version": -(1 << 63), "delay_us": (1 << 63) - 1}
    body = pack({"topic": "t"}, [SingleRow(values)], inline=True)
    header, (row,) = unpack(body, of_request=True)
    assert header == {"topic": "t"}
    assert isinstance(row, SingleRow)
    assert row.values == values
    expected = pa.RecordBatch.from_pydict({name: [value] for name, value in values.items()})
    assert as_batch(row).equals(expected)
    assert as_batch(expected) is expected
    # The same bytes as the batch, in the header and outside.
    assert body == pack({"topic": "t"}, [expected], inline=True)
    assert pack({}, [row]) == pack({}, [expected])


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"id": 7},
        {"id": []},
        {"id": [None]},
        {"id": [True]},
        {"id": [1.5]},
        {"id": [[1]]},
        {"id": [1 << 63]},
        {"id": [-(1 << 63) - 1]},
        {"key": ["\ud800"]},
        {"\ud800": ["a"]},
        {"id": [1], "key": ["a", "b"]},
        {"id": [1, 2]},
        {"id": [1], "key": [2, "b"]},
    ],
    ids=repr,
)
def test_everything_else_is_arrows(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of it, or the error, is what it would be without rows by their values."""

    def told() -> Any:
        try:
            part = unpacked(columns)
        except InvalidArgument as error:
            return str(error), error.details
        assert isinstance(part, pa.RecordBatch)
        return part

    now = told()
    monkeypatch.setattr(envelope.SingleRow, "of_columns", lambda columns: None)
    assert told() == now


@pytest.mark.parametrize("value", [None, True, 1.0, b"x", 1 << 63, "\ud800", [1], float("nan")])
def test_what_is_not_plain(value: Any) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize("value", [0, -(1 << 63), (1 << 63) - 1, "", "a\0", "größe"])
def test_what_is_plain(value: Any) -> None:
    assert is_plain(value)
