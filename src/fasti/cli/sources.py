"""Where the messages of `fasti produce` come from: arguments, lines, whole files, tables.

Every source gives Arrow tables of up to `ROWS` messages and about `BYTES` of payload, with the
columns that `Producer.send_batch` takes, which refuses others; so a file of any size is never in memory as a whole. Lines
from a pipe are given as soon as they come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import typer

from fasti.cli import moments
from fasti.errors import InvalidArgument, NotFound, PermissionDenied

ROWS = 5_000
BYTES = 8 << 20
FORMATS = ("lines", "whole", "jsonl", "csv", "parquet")
_FORMAT_OF_ENDING = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path, requested: str | None) -> str:
    """The one that was requested, else by the name's ending, else lines."""
    return requested or _FORMAT_OF_ENDING.get(path.suffix.lower(), "lines")


def from_payloads(payloads: Sequence[bytes], copies: int = 1) -> Iterator[pa.Table]:
    """The payloads one after another, and all of that `copies` times."""
    for table in _gathered(payloads):
        # One table is made and given again and again: a million copies cost no more than one.
        together = max(min(ROWS // table.num_rows, BYTES // table.nbytes, copies), 1)
        many = pa.concat_tables([table] * together).combine_chunks()
        for _ in range(copies // together):
            yield many
        if copies % together:
            yield many.slice(0, copies % together * table.num_rows)


def from_file(path: Path, form: str, key_field: str | None = None) -> Iterator[pa.Table]:
    """The messages of a file in one of `FORMATS`."""
    try:
        with path.open("rb") as stream:
            yield from from_stream(stream, form, key_field)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except PermissionError:
        raise PermissionDenied(f"{path} may not be read") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"{path} can't be read as {form}: {error}", field="file") from error


def from_stream(
    stream: BinaryIO, form: str = "lines", key_field: str | None = None
) -> Iterator[pa.Table]:
    """The messages of an open file or pipe."""
    if form == "whole":
        yield from _gathered([stream.read()])
    elif form == "lines":
        for lines in _lines(stream):
            for table in _gathered(lines):
                yield table if key_field is None else _keyed(table, key_field)
    else:
        for table in _READERS[form](stream):
            yield from _cut(_with_times(table))


def _lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that are there, without waiting for more, so that a slow pipe is sent at once."""
    read: Any = getattr(stream, "read1", stream.read)
    rest = b""
    while data := read(1 << 20):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _keyed(table: pa.Table, name: str) -> pa.Table:
    keys = []
    for line in table.column("payload").to_pylist():
        value = _json_object(line).get(name)
        if value is None:
            raise InvalidArgument(f"a line has no {name!r}: {line[:80]!r}", field="key_field")
        keys.append(value if isinstance(value, str) else json.dumps(value))
    return table.append_column("key", pa.array(keys, pa.string()))


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"a line is not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"a line is JSON, but not an object: {line[:80]!r}")
    return value


def _gathered(payloads: Iterable[bytes]) -> Iterator[pa.Table]:
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and (len(batch) == ROWS or size + len(payload) > BYTES):
            yield pa.table({"payload": pa.array(batch, pa.binary())})
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield pa.table({"payload": pa.array(batch, pa.binary())})


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """In parts of a size that can be sent."""
    rows = min(ROWS, max(BYTES * table.num_rows // max(table.nbytes, 1), 1))
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)


def _read_parquet(stream: BinaryIO) -> Iterator[pa.Table]:
    file = pa_parquet.ParquetFile(stream)
    for batch in file.iter_batches(ROWS):
        yield pa.Table.from_batches([batch])


def _read_csv(stream: BinaryIO) -> Iterator[pa.Table]:
    # Payloads and keys are texts, also where they look like numbers.
    texts = {"payload": pa.binary(), "key": pa.string(), "content_type": pa.string()}
    options = pa_csv.ConvertOptions(
        column_types=texts,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    for batch in pa_csv.open_csv(stream, convert_options=options):
        yield pa.Table.from_batches([batch])


def _read_jsonl(stream: BinaryIO) -> Iterator[pa.Table]:
    for lines in _lines(stream):
        rows = [_json_object(line) for line in lines if line.strip()]
        for begin in range(0, len(rows), ROWS):
            yield _table_of(rows[begin : begin + ROWS])


def _table_of(rows: list[dict[str, Any]]) -> pa.Table:
    for row in rows:
        payload = row.get("payload")
        if payload is not None and not isinstance(payload, str):
            row["payload"] = json.dumps(payload, ensure_ascii=False)
        if isinstance(row.get("headers"), dict):
            row["headers"] = [(name, str(value)) for name, value in row["headers"].items()]
    names = dict.fromkeys(name for row in rows for name in row)
    types = {"payload": pa.binary(), "headers": pa.map_(pa.string(), pa.string())}
    columns = {name: pa.array([row.get(name) for row in rows], types.get(name)) for name in names}
    return pa.table(columns)


def _with_times(table: pa.Table) -> pa.Table:
    """Times that CSV and JSON have as texts, as on a command line, in the microseconds of the SDK."""
    parsers: dict[str, Callable[[str], int]] = {
        "due": lambda text: moments.microseconds(moments.moment(text)),
        "delay": moments.length_us,
    }
    for name, parse in parsers.items():
        if name in table.column_names and pa.types.is_string(table.column(name).type):
            place, texts = table.column_names.index(name), table.column(name).to_pylist()
            try:
                values = [None if text is None else parse(text) for text in texts]
            except typer.BadParameter as error:
                raise InvalidArgument(f"{name}: {error.message}", field=name) from None
            table = table.set_column(place, f"{name}_us", pa.array(values, pa.int64()))
    return table


_READERS = {"parquet": _read_parquet, "csv": _read_csv, "jsonl": _read_jsonl}
