"""What is left of a damaged object: every value is as it was written, or told to be damaged."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core.fields import FIELDS
from fasti.errors import Corruption
from fasti.storage.damaged_rows import Salvaged, salvage
from fasti.storage.seals import PIECE_BYTES, open_seal, seal

ROWS = 40


def batch() -> pa.RecordBatch:
    columns = {
        "payload": [bytes([row]) * (20 + row) for row in range(ROWS)],
        "key": [f"key-{row}" if row % 3 else None for row in range(ROWS)],
        "headers": [
            [("name", f"value {row}")] * (row % 4) if row % 5 else None for row in range(ROWS)
        ],
        "content_type": ["text/plain" if row % 2 else None for row in range(ROWS)],
        "created_us": list(range(1_000, 1_000 + ROWS)),
    }
    arrays = [pa.array(values, FIELDS[name].type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([FIELDS[name] for name in columns]))


def sealed() -> bytes:
    return b"".join(bytes(memoryview(part).cast("B")) for part in seal(batch()))


def check(salvaged: Salvaged, was: pa.RecordBatch, but: tuple[str, ...] = ("created_us",)) -> int:
    """Values that are not told to be damaged are as they were; how many rows are damaged."""
    lost = np.zeros(was.num_rows, dtype=np.bool_)
    for name in was.schema.names:
        mask = salvaged.damaged[name][: was.num_rows]
        values = salvaged.batch.column(name).slice(0, was.num_rows).to_pylist()
        for value, right, damaged in zip(values, was.column(name).to_pylist(), mask, strict=True):
            assert damaged or value == right
            assert not damaged or value is None or name in but
        lost |= mask
    return int(lost.sum())


def test_whatever_byte_is_flipped_what_is_undamaged_is_told_from_what_is_not() -> None:
    data, was = bytearray(sealed()), batch()
    costs = {}
    for offset in [*range(64), *range(64, len(data), 5), len(data) - 1]:
        bit = 1 << offset % 8
        data[offset] ^= bit
        with pytest.raises(Corruption):
            open_seal(memoryview(data), "b")
        costs[offset] = check(salvage(memoryview(data)), was)
        data[offset] ^= bit
    (head,) = struct.unpack_from("<I", data, 12)
    begin = data.index(data[-32 - head : -32])
    # Header and head are there twice: no bit of them costs anything.
    free = [*range(32), *range(begin, begin + head), *range(len(data) - 32 - head, len(data))]
    assert [offset for offset in free if costs.get(offset)] == []
    # An offset says where one value ends and where the next begins; eight rows share the bits of a byte.
    assert set(costs.values()) >= {0, 1, 2}
    assert max(costs.values()) <= 8


@pytest.mark.parametrize("end", [0, 10, 31, 32, 400, 900, 1500, 2000, -40, -1])
def test_a_shorter_file_keeps_what_it_still_has(end: int) -> None:
    data = sealed()
    check(salvage(memoryview(data[:end])), batch())
    if end == -1:
        assert check(salvage(memoryview(data[:end])), batch()) == 0


def large() -> tuple[bytearray, pa.RecordBatch, int]:
    """An object of a thousand rows, and where in it row 500 lies."""
    payloads = pa.array([row.to_bytes(4, "big") * 25 for row in range(1_000)], pa.binary())
    was = pa.record_batch([payloads], schema=pa.schema([FIELDS["payload"]]))
    data = bytearray(b"".join(bytes(memoryview(part).cast("B")) for part in seal(was)))
    return data, was, data.index((500).to_bytes(4, "big") * 25)


def test_a_flipped_bit_in_a_large_block_costs_the_row_that_it_is_in() -> None:
    data, was, place = large()
    data[place + 50] ^= 4
    salvaged = salvage(memoryview(data))
    assert np.flatnonzero(salvaged.damaged["payload"]).tolist() == [500]
    assert salvaged.offset == place + 50
    check(salvaged, was)


def test_a_flipped_bit_in_the_checksum_of_a_piece_costs_nothing() -> None:
    data, was, _ = large()
    data[32 + 8 * 40] ^= 16
    assert check(salvage(memoryview(data)), was) == 0


def test_more_than_a_flipped_bit_costs_the_rows_of_its_piece() -> None:
    data, was, place = large()
    data[place + 50] ^= 4
    data[place + 51] ^= 4
    salvaged = salvage(memoryview(data))
    lost = np.flatnonzero(salvaged.damaged["payload"]).tolist()
    assert 500 in lost
    assert 1 < len(lost) <= PIECE_BYTES // 100 + 2
    assert salvaged.rows == len(lost)
    check(salvaged, was)


def test_empty_and_odd_batches_survive_their_own_damage() -> None:
    for rows in (0, 1, 2):
        was = batch().slice(3, rows)
        data = bytearray(b"".join(bytes(memoryview(part).cast("B")) for part in seal(was)))
        for offset in range(0, len(data), 7):
            data[offset] ^= 1
            check(salvage(memoryview(data)), was)
            data[offset] ^= 1


def test_much_damage_never_reads_beyond_a_buffer() -> None:
    rng = np.random.default_rng(1)
    clean, was = sealed(), batch()
    for _ in range(100):
        data = bytearray(clean)
        for offset in rng.integers(0, len(data), rng.integers(1, 200)).tolist():
            data[offset] = int(rng.integers(0, 256))
        found: Any = salvage(memoryview(data))
        found.batch.validate(full=True)
        check(found, was)
