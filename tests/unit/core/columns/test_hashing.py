"""Key hashes: the same for the same bytes, whatever the column looks like."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fasti.core.columns.hashing import (
    first_rows,
    hash_keys,
    repeated_keys,
)

SEED = (0x1234, 0x5678)
keys = st.lists(st.none() | st.text(min_size=1, max_size=40), max_size=30)


@given(keys, st.integers(0, 5))
def test_a_key_hashes_alike_alone_in_a_batch_and_in_a_slice(values, offset):
    column = pa.array(values, type=pa.string())
    whole = hash_keys(column, SEED)
    for row, value in enumerate(values):
        alone = hash_keys(pa.array([value], type=pa.string()), SEED)[0]
        assert alone.tolist() == whole[row].tolist()
        assert (value is None) == (whole[row, 0] == 0)
    cut = column.slice(min(offset, len(values)))
    assert hash_keys(cut, SEED).tolist() == whole[min(offset, len(values)) :].tolist()


@given(keys)
def test_strings_and_bytes_and_large_columns_hash_alike(values):
    plain = hash_keys(pa.array(values, type=pa.string()), SEED)
    encoded = [None if value is None else value.encode() for value in values]
    assert (hash_keys(pa.array(encoded, type=pa.binary()), SEED) == plain).all()
    assert (hash_keys(pa.array(values, type=pa.large_string()), SEED) == plain).all()


def test_a_hundred_thousand_similar_keys_do_not_collide():
    column = pa.array([f"user-{n}" for n in range(100_000)])
    hashes = hash_keys(column, SEED)
    assert len(np.unique(hashes[:, 0])) == 100_000
    assert len(np.unique(hashes[:, 1])) == 100_000
    # Buckets come from the high bits: they must be even as well.
    counts = np.bincount((hashes[:, 0] >> np.uint64(56)).astype(int), minlength=256)
    assert counts.min() > 300
    assert counts.max() < 500


def test_zeros_at_the_end_and_lengths_make_a_difference():
    column = pa.array([b"a", b"a\0", b"a\0\0", b"\0", b"\0" * 8, b"\0" * 9], type=pa.binary())
    assert len(np.unique(hash_keys(column, SEED)[:, 0])) == 6


def test_seeds_make_a_difference():
    column = pa.array(["user-7"])
    assert hash_keys(column, (1, 2))[0, 0] != hash_keys(column, (1, 3))[0, 0]


def test_keys_that_stand_in_a_batch_twice() -> None:
    def found(*pairs: tuple[int, int]) -> list[int] | None:
        later = repeated_keys(np.array(pairs, dtype=np.uint64))
        return None if later is None else np.flatnonzero(later).tolist()

    assert found((5, 1), (6, 1), (7, 1)) is None
    # No key is not a key that comes again.
    assert found((0, 0), (6, 1), (0, 0)) is None
    assert found((0, 0), (6, 1), (0, 0), (6, 1), (5, 1), (6, 1)) == [3, 5]
    # Alike in half of their bits only.
    assert found((5, 1), (5, 2), (7, 1), (5, 1), (7, 1), (5, 2), (0, 0), (0, 0)) == [3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_the_first_row_with_the_same_key(pairs: list[tuple[int, int]]) -> None:
    hashes = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
    assert first_rows(hashes).tolist() == [pairs.index(pair) for pair in pairs]


def test_keys_that_stand_in_a_large_batch_twice() -> None:
    """Where places are compared first, and whole keys only where two share one."""
    random = np.random.default_rng(5)
    for count in (257, 5_000, 65_536):
        hashes = random.integers(1, 1 << 64, (count, 2), dtype=np.uint64)
        hashes[random.integers(0, count, count // 3)] = 0
        assert repeated_keys(hashes) is None
        hashes[[3, 100]] = 7, 9
        hashes[250] = hashes[100]
        assert np.flatnonzero(repeated_keys(hashes)).tolist() == [100, 250]
        hashes[250] = 7, 8
        assert np.flatnonzero(repeated_keys(hashes)).tolist() == [100]
