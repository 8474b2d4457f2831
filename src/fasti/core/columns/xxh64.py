"""XXH64 (seed 0) of every key of a column: the public hash, which decides a key's partition.

Every language has a library for it, so that every client can compute where a key belongs
(docs/protocol.md, "Keys and partitions"). Here the algorithm runs in numpy: keys are sorted by the
rounds that their lengths need, and each round is done for all that need it. For few keys, calling
the `xxhash` library for each is quicker. A test compares both.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s, layout

Int64s = NDArray[np.int64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
# P1 + P2, P2, 0 and -P1.
_LANES = (np.uint64(0x60EA27EEADC0B5D6), _P2, np.uint64(0), np.uint64(0x61C8864E7A143579))
FEW_ROWS = 200
# Columns of so many rows stay in the processor's cache.
_PIECE_ROWS = 8192


def public_hashes(keys: pa.Array) -> UInt64s:
    """The hash of each key of a string or binary column; 0 where there is no key."""
    offsets, data = layout(keys)
    if len(keys) <= FEW_ROWS:
        # Imported late: the SDK imports this module and has no use for it.
        from xxhash import xxh64_intdigest

        ends = offsets.tolist()
        digests = [xxh64_intdigest(data[begin:end]) for begin, end in pairwise(ends)]
        hashes = np.array(digests, dtype=np.uint64)
    else:
        hashes = np.empty(len(keys), dtype=np.uint64)
        words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
        for begin in range(0, len(keys), _PIECE_ROWS):
            ends = offsets[begin : begin + _PIECE_ROWS + 1]
            hashes[begin : begin + _PIECE_ROWS] = _hash_piece(words, ends[:-1], np.diff(ends))
    if keys.null_count:
        hashes[np.asarray(keys.is_null())] = 0
    return hashes


def _hash_piece(words: UInt64s, starts: Int64s, lengths: Int64s) -> UInt64s:
    hashes = lengths.astype(np.uint64) + _P5
    striped = np.flatnonzero(lengths >= 32)
    if len(striped):
        hashes[striped] = _hash_stripes(words, starts[striped], lengths[striped])
    left = lengths & 31
    by_words, begins = _sort(left >> 3)
    hashes = hashes[by_words]
    place = (starts + lengths - left)[by_words]
    for begin in begins[1:4]:
        if begin < len(hashes):
            _mix(hashes[begin:], _round(words[place[begin:]]), 27, _P1, _P4)
            place[begin:] += 8
    # What is left of a key now, at most seven bytes, lies in one word.
    tails = words[place]
    by_bytes, begins = _sort((left & 7)[by_words])
    hashes, tails = hashes[by_bytes], tails[by_bytes]
    four = begins[4]
    if four < len(hashes):
        _mix(hashes[four:], (tails[four:] & np.uint64(0xFFFF_FFFF)) * _P1, 23, _P2, _P3)
        tails[four:] >>= np.uint64(32)
    for begin, end in ((begins[n + m], begins[n + 4]) for n in (0, 4) for m in (1, 2, 3)):
        if begin < end:
            _mix(hashes[begin:end], (tails[begin:end] & np.uint64(0xFF)) * _P5, 11, _P1)
            tails[begin:end] >>= np.uint64(8)
    for bits, factor in ((33, _P2), (29, _P3)):
        hashes ^= hashes >> np.uint64(bits)
        hashes *= factor
    tails[by_bytes] = hashes ^ (hashes >> np.uint64(32))
    hashes[by_words] = tails
    return hashes


def _sort(groups: Int64s) -> tuple[slice | NDArray[np.intp], list[int]]:
    """An order of rows by their group (0 to 7), and where in it each group begins, and the end."""
    counts = np.bincount(groups, minlength=8)
    begins = [0, *np.cumsum(counts).tolist()]
    if int(counts.max()) == len(groups):
        return slice(None), begins
    return np.argsort(groups.astype(np.uint8), kind="stable"), begins


def _mix(
    hashes: UInt64s, words: UInt64s, bits: int, factor: np.uint64, term: np.uint64 | None = None
) -> None:
    words ^= hashes
    np.multiply(_turn(words, bits), factor, out=hashes)
    if term is not None:
        hashes += term


def _hash_stripes(words: UInt64s, starts: Int64s, lengths: Int64s) -> UInt64s:
    """What the stripes of 32 bytes make of keys that have at least one."""
    lanes = [np.full(len(starts), lane) for lane in _LANES]
    for begin in range(0, int(lengths.max()) - 31, 32):
        rows = np.flatnonzero(lengths >= begin + 32)
        place = starts[rows] + begin
        for lane in lanes:
            lane[rows] = _round(words[place], lane[rows])
            place += 8
    hashes = np.zeros(len(starts), dtype=np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        hashes += _turn(lane, bits)
    for lane in lanes:
        hashes = (hashes ^ _round(lane)) * _P1 + _P4
    return hashes + lengths.astype(np.uint64)


def _round(words: UInt64s, lane: UInt64s | None = None) -> UInt64s:
    product = words * _P2
    if lane is not None:
        product += lane
    return _turn(product, 31) * _P1


def _turn(words: UInt64s, bits: int) -> UInt64s:
    turned = words << np.uint64(bits)
    turned |= words >> np.uint64(64 - bits)
    return turned
