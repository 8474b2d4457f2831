"""Arrow streams that would grow when they are read are refused before they are."""

import struct

import pyarrow as pa
import pyarrow.ipc
import pytest

from fasti.errors import InvalidArgument
from fasti.protocol.ipc_check import BATCHES_MAX, check_stream

ROWS = pa.RecordBatch.from_pydict({"payload": [b"x" * 1000] * 100, "key": ["k"] * 100})


def stream(batches: list[pa.RecordBatch], compression: str | None = None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def test_plain_streams_pass() -> None:
    assert check_stream(stream([ROWS])) == 1
    assert check_stream(stream([ROWS.slice(0, 0)])) == 1
    assert check_stream(stream([ROWS] * 7)) == 7
    named = ROWS.replace_schema_metadata({"pandas": "{}"})
    assert check_stream(stream([named])) == 1
    nested = pa.RecordBatch.from_pydict(
        {"headers": pa.array([[("a", "b")]], pa.map_("str", "str"))}
    )
    assert check_stream(stream([nested])) == 1


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_batches_are_refused_before_they_are_unpacked(codec: str) -> None:
    before = pa.default_memory_pool().bytes_allocated()
    bomb = stream([pa.RecordBatch.from_pydict({"payload": [bytes(8 << 20)]})], codec)
    size = pa.default_memory_pool().bytes_allocated() - before
    with pytest.raises(InvalidArgument, match="compressed"):
        check_stream(bomb)
    assert pa.default_memory_pool().bytes_allocated() - before == size


def test_dictionaries_are_refused() -> None:
    encoded = pa.RecordBatch.from_pydict({"key": pa.array(["a", "b"]).dictionary_encode()})
    with pytest.raises(InvalidArgument, match="something other"):
        check_stream(stream([encoded]))


def test_many_batches_many_columns_and_large_metadata_are_refused() -> None:
    empty = pa.RecordBatch.from_pydict({"a": pa.array([], pa.int64())})
    with pytest.raises(InvalidArgument, match="too many batches"):
        check_stream(stream([empty] * (BATCHES_MAX + 1)))
    with pytest.raises(InvalidArgument, match="too many fields"):
        check_stream(stream([pa.RecordBatch.from_pydict({f"c{n}": [1] for n in range(300)})]))
    with pytest.raises(InvalidArgument, match="metadata"):
        check_stream(stream([ROWS.replace_schema_metadata({"a": "x" * 70_000})]))


def test_one_text_that_is_pointed_to_many_times_is_refused() -> None:
    """20 kB of metadata of which Arrow would make 300 copies, and as many for every further pointer."""
    pairs = 300
    named = ROWS.replace_schema_metadata(
        {f"{n:03}": "v" for n in range(pairs)} | {"big": "x" * 20_000}
    )
    shared = _point_all_to_one(stream([named]).to_pybytes(), pairs + 1)
    # Arrow reads it, and makes a copy for each pointer: that is what must not happen to a broker.
    assert sum(map(len, pa.ipc.open_stream(shared).schema.metadata.values())) >= 20_000
    with pytest.raises(InvalidArgument, match="too many fields or pairs"):
        check_stream(pa.py_buffer(shared))


def test_fields_that_are_shared_count_as_often_as_they_are_pointed_to() -> None:
    deep: pa.DataType = pa.int64()
    for _ in range(8):
        deep = pa.struct([pa.field("a", deep), pa.field("b", deep)])
    # 511 fields, written out: as the check sees one whose children are all the same table.
    batch = pa.RecordBatch.from_arrays([pa.nulls(0, deep)], names=["deep"])
    with pytest.raises(InvalidArgument, match="too many fields"):
        check_stream(stream([batch]))


def _point_all_to_one(data: bytes, pairs: int) -> bytes:
    """The vector of the schema's pairs, with every pointer aimed at the longest of them."""
    made = bytearray(data)
    begin = 8
    root = begin + struct.unpack_from("<I", data, begin)[0]
    header = _slot(data, root, 2)
    schema = header + struct.unpack_from("<I", data, header)[0]
    vector = _slot(data, schema, 2)
    vector += struct.unpack_from("<I", data, vector)[0]
    (count,) = struct.unpack_from("<I", data, vector)
    assert count == pairs
    places = [vector + 4 + 4 * n for n in range(count)]
    targets = [place + struct.unpack_from("<I", data, place)[0] for place in places]
    longest = max(targets, key=lambda table: _text_length(data, table))
    for place in places:
        if longest > place:
            struct.pack_into("<I", made, place, longest - place)
    return bytes(made)


def _text_length(data: bytes, table: int) -> int:
    place = _slot(data, table, 1)
    length: int = struct.unpack_from("<I", data, place + struct.unpack_from("<I", data, place)[0])[
        0
    ]
    return length


def _slot(data: bytes, table: int, slot: int) -> int:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    return table + int(struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0])
