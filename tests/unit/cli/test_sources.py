"""Where the messages of `fasti produce` come from."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fasti.cli import sources
from fasti.errors import InvalidArgument, NotFound


def payloads(tables: list[pa.Table]) -> list[bytes]:
    return [payload for table in tables for payload in table.column("payload").to_pylist()]


def read(path: Path, form: str | None = None, key_field: str | None = None) -> pa.Table:
    tables = list(sources.from_file(path, sources.format_of(path, form), key_field))
    return pa.concat_tables(tables)


def test_every_line_is_a_message() -> None:
    tables = list(sources.from_stream(io.BytesIO(b"a\r\n\nb\nlast")))
    assert payloads(tables) == [b"a", b"", b"b", b"last"]


def test_lines_of_a_pipe_are_given_before_it_ends() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as end:
        found = sources.from_stream(stream)
        end.write(b"one\ntwo\nthr")
        assert payloads([next(found)]) == [b"one", b"two"]
        end.write(b"ee\n")
        assert payloads([next(found)]) == [b"three"]


def test_many_lines_and_large_ones_come_in_parts() -> None:
    text = b"".join(b"%d\n" % n for n in range(12_001))
    tables = list(sources.from_stream(io.BytesIO(text)))
    assert payloads(tables) == [b"%d" % n for n in range(12_001)]
    assert max(table.num_rows for table in tables) <= sources.ROWS
    large = [b"x" * (3 << 20)] * 5
    assert [table.num_rows for table in sources.from_payloads(large)] == [2, 2, 1]


@pytest.mark.parametrize("copies", [1, 2, 4_999, 5_001, 12_345])
def test_copies(copies: int) -> None:
    tables = list(sources.from_payloads([b"a", b"b"], copies))
    assert payloads(tables) == [b"a", b"b"] * copies
    assert max(table.num_rows for table in tables) <= sources.ROWS


def test_a_file_as_lines_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "mail.txt"
    path.write_bytes(b"a\nb\n")
    assert payloads([read(path)]) == [b"a", b"b"]
    assert payloads([read(path, "whole")]) == [b"a\nb\n"]


def test_a_key_from_a_field_of_each_line() -> None:
    lines = b'{"user": "u-1", "n": 5}\n{"user": 7}\n'
    (table,) = sources.from_stream(io.BytesIO(lines), key_field="user")
    assert table.column("key").to_pylist() == ["u-1", "7"]
    assert table.column("payload").to_pylist()[0] == b'{"user": "u-1", "n": 5}'
    for broken in (b"no json\n", b'{"other": 1}\n', b"[1]\n"):
        with pytest.raises(InvalidArgument):
            list(sources.from_stream(io.BytesIO(broken), key_field="user"))


def test_json_lines_with_columns(tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_text(
        '{"payload": "text", "key": "a", "due": "2026-12-24T18:00+01:00"}\n\n'
        '{"payload": {"n": 1}, "headers": {"lang": "en"}, "delay": "5m"}\n'
    )
    table = read(path)
    assert table.column("payload").to_pylist() == [b"text", b'{"n": 1}']
    assert table.column("key").to_pylist() == ["a", None]
    assert table.column("due_us").to_pylist() == [1_798_131_600_000_000, None]
    assert table.column("delay_us").to_pylist() == [None, 300_000_000]
    assert table.column("headers").to_pylist() == [None, [("lang", "en")]]


def test_csv_keeps_payloads_that_look_like_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mail.csv"
    path.write_text("payload,key,due\n007,1,2026-12-24T18:00+01:00\n1e3,2,2026-12-24T17:00Z\n")
    table = read(path)
    assert table.column("payload").to_pylist() == [b"007", b"1e3"]
    assert table.column("key").to_pylist() == ["1", "2"]
    assert (
        table.column("due").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        == [1_798_131_600_000_000] * 2
    )


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "mail.parquet"
    due = datetime(2026, 12, 24, 17, tzinfo=UTC)
    columns = {
        "payload": pa.array([b"\xff", b"b"]),
        "due": pa.array([due, None], pa.timestamp("ms", "Europe/Paris")),
        "delay": pa.array([None, timedelta(minutes=5)], pa.duration("ms")),
    }
    pa.parquet.write_table(pa.table(columns), path)
    assert read(path).equals(pa.table(columns))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"payload": "a", "due": "2026-12-24T18:00"}', "zone"),
        ('{"payload": "a", "due": "tomorrow"}', "ISO 8601"),
        ('{"payload": "a", "delay": "soon"}', "length of time"),
        ("no json", "not JSON"),
        ("[1]", "not an object"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(InvalidArgument, match=said):
        read(path)


def test_a_file_that_is_not_there_or_not_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read(tmp_path / "nothing.txt")
    path = tmp_path / "mail.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(InvalidArgument, match="parquet"):
        read(path)
