"""The public hash: what the library says, for every length and however many keys there are."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from fasti.core.columns.xxh64 import FEW_ROWS, public_hashes
from fasti.core.keys import Keys


def expected(keys: list[bytes | None]) -> list[int]:
    return [0 if key is None else xxh64_intdigest(key) for key in keys]


@pytest.mark.parametrize("copies", [1, FEW_ROWS + 1])
@pytest.mark.parametrize("first", range(0, 201, 25))
def test_every_length(first: int, copies: int) -> None:
    draw = random.Random(first)
    for length in range(first, first + 25):
        keys = [draw.randbytes(length) for _ in range(copies)]
        assert public_hashes(pa.array(keys, pa.binary())).tolist() == expected(keys)


@given(st.lists(st.none() | st.binary(max_size=200), max_size=40), st.integers(0, 50))
def test_any_keys_alone_in_a_slice_and_among_many(keys: list[bytes | None], offset: int) -> None:
    many = keys * (1 + (FEW_ROWS + 10) // max(1, len(keys)))
    column = pa.array(many, pa.binary())
    assert public_hashes(column).tolist() == expected(many)
    assert public_hashes(column.slice(offset)).tolist() == expected(many[offset:])
    assert public_hashes(pa.array(keys, pa.large_binary())).tolist() == expected(keys)


def test_more_keys_than_one_piece() -> None:
    keys = [f"größe-{n * 7919}".encode() for n in range(20_000)]
    hashes = public_hashes(pa.array([key.decode() for key in keys]))
    assert hashes.tolist() == expected(keys)
    partitions = Keys(pa.array(keys, pa.binary()), (0, 0)).partitions(12)
    assert partitions.tolist() == (hashes % np.uint64(12)).tolist()
    assert not Keys(pa.array(keys, pa.binary()), (0, 0)).partitions(1).any()
