"""Key hashes, a whole column at a time.

A key's identity in the engine is a seeded 128-bit hash of its bytes; the bytes themselves stay
with the payload. The seed is a secret of the data directory, so that nobody outside can prepare
keys that collide. The partition of a key comes from a public hash (xxh64.py), because every client
must be able to compute it.

Two lanes of 64 bits each take every 8-byte little-endian word of the key, the last one padded
with zeros, and start from the seed and the length; both end in the finaliser of MurmurHash3. The
loop below runs once per word position, not once per key. A key that comes alone is hashed by plain
integers.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

_M1 = np.uint64(0x9E3779B97F4A7C15)
_M2 = np.uint64(0xC2B2AE3D27D4EB4F)
_M3 = np.uint64(0xFF51AFD7ED558CCD)
_M4 = np.uint64(0xC4CEB9FE1A85EC53)
_33 = np.uint64(33)
# Up to here sorting is as quick.
_FEW = 256
# The same for single keys.
_N1, _N2, _N3, _N4 = int(_M1), int(_M2), int(_M3), int(_M4)
_ALL = (1 << 64) - 1


def hash_keys(keys: pa.Array, seed: tuple[int, int]) -> UInt64s:
    """(n, 2) hashes of a string or binary column; a null key is (0, 0), which no key hashes to."""
    if len(keys) == 1 and not keys.null_count:
        return hash_one(keys[0].as_buffer().to_pybytes(), seed)
    offsets, data = layout(keys)
    lengths = np.diff(offsets)
    first = np.uint64(seed[0]) ^ (lengths.astype(np.uint64) * _M1)
    second = np.uint64(seed[1]) + (lengths.astype(np.uint64) * _M2)
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    counts, starts = (lengths + 7) >> 3, offsets[:-1]
    # Keys of one kind are mostly of one length: up to the shortest one's end, no row is picked out.
    shortest = int(lengths.min()) if len(lengths) else 0
    for position in range(int(counts.max(initial=0))):
        some = shortest <= position * 8
        rows: slice | NDArray[np.intp] = np.flatnonzero(counts > position) if some else slice(None)
        word: UInt64s = words[starts[rows] + position * 8]
        if shortest < position * 8 + 8:
            word &= _tail_mask(lengths[rows] - position * 8)
        first[rows] = _stir(first[rows] ^ word, _M2, 29)
        second[rows] = _stir(second[rows] + word * _M3, _M1, 33)
    hashes = np.empty((len(keys), 2), dtype=np.uint64)
    hashes[:, 0] = _finish(first + second)
    hashes[:, 1] = _finish(second ^ _stir(first, _M4, 32))
    # 0 marks an empty slot of the index and a missing key.
    hashes[hashes[:, 0] == 0, 0] = 1
    if keys.null_count:
        hashes[np.asarray(keys.is_null())] = 0
    return hashes


def hash_one(key: bytes, seed: tuple[int, int]) -> UInt64s:
    """The same for one key: numpy's calls take ten times as long as what they work out."""
    first = seed[0] ^ (len(key) * _N1 & _ALL)
    second = seed[1] + len(key) * _N2 & _ALL
    for position in range(0, len(key), 8):
        word = int.from_bytes(key[position : position + 8], "little")
        lane = (first ^ word) * _N2 & _ALL
        first = (lane << 29 | lane >> 35) & _ALL
        lane = (second + word * _N3) * _N1 & _ALL
        second = (lane << 33 | lane >> 31) & _ALL
    lane = first * _N4 & _ALL
    stirred = (lane << 32 | lane >> 32) & _ALL
    hashes = [_finish_one(first + second & _ALL) or 1, _finish_one(second ^ stirred)]
    return np.array([hashes], dtype=np.uint64)


def _finish_one(lane: int) -> int:
    lane = (lane ^ lane >> 33) * _N3 & _ALL
    lane = (lane ^ lane >> 33) * _N4 & _ALL
    return lane ^ lane >> 33


def ranked_partitions(hashes: UInt64s, count: int) -> NDArray[np.int64]:
    """The partition of each key of a log, from its public hash: the one that scores highest.

    Rendezvous hashing: each partition scores each key, and of two counts of partitions the keys
    that one more partition gets are the only ones that lie elsewhere. Scores never tie, since the
    finaliser maps different numbers to different numbers.
    """
    chosen = np.zeros(len(hashes), dtype=np.int64)
    if count == 1:
        return chosen
    best = _finish(hashes ^ _M1)
    score, shifted = np.empty_like(hashes), np.empty_like(hashes)
    for number in range(1, count):
        salt = np.uint64((number + 1) * int(_M1) & 0xFFFF_FFFF_FFFF_FFFF)
        np.bitwise_xor(hashes, salt, out=score)
        # `_finish`, in place: this is done for every partition.
        for factor in (_M3, _M4, None):
            np.right_shift(score, _33, out=shifted)
            np.bitwise_xor(score, shifted, out=score)
            if factor is not None:
                np.multiply(score, factor, out=score)
        np.copyto(chosen, number, where=score > best)
        np.maximum(best, score, out=best)
    return chosen


def repeated_keys(hashes: UInt64s) -> NDArray[np.bool_] | None:
    """Which rows bring a key that stood before, of those that bring one; None if none does."""
    lane = np.ascontiguousarray(hashes[:, 0])
    if not _some_repeat(lane):
        return None
    order = np.argsort(lane, kind="stable")
    again = (lane[order[1:]] == lane[order[:-1]]) & (lane[order[1:]] != 0)
    later = np.zeros(len(lane), dtype=np.bool_)
    later[order[1:][again]] = True
    if (hashes[order[1:], 1] != hashes[order[:-1], 1])[again].any():
        # Equal in half of their bits only: hardly ever, but they are not the same key.
        later = (lane != 0) & (first_rows(hashes) != np.arange(len(lane)))
    return later


def _some_repeat(lane: UInt64s) -> bool:
    """Whether a number other than 0 stands twice. They are well mixed: few share their first bits."""
    if len(lane) > _FEW:
        numbers = np.arange(len(lane), dtype=np.int32)
        bits = (4 * len(lane)).bit_length()
        places = (lane >> np.uint64(64 - bits)).astype(np.intp)
        # One of those that share a place stands there; only they, and it, can be alike.
        table = np.empty(1 << bits, dtype=np.int32)
        table[places] = numbers
        there = table.take(places)
        others = np.flatnonzero(there != numbers)
        lane = np.concatenate([lane[others], lane[np.unique(there[others])]])
    ordered = np.sort(lane)
    return bool(((ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)).any())


def first_rows(hashes: UInt64s) -> NDArray[np.int64]:
    """Of each row, the first one that has the same key: itself, if none stood before."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    pairs = hashes[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(begins)[np.cumsum(begins) - 1]]
    return first


def layout(keys: pa.Array) -> tuple[NDArray[np.int64], bytes]:
    """Offsets and bytes of the column; the bytes are followed by eight zeros."""
    if pa.types.is_string(keys.type) or pa.types.is_binary(keys.type):
        kind: type[np.signedinteger] = np.int32
    else:
        kind = np.int64
    buffers = keys.buffers()
    offsets = np.frombuffer(buffers[1], dtype=kind)[keys.offset : keys.offset + len(keys) + 1]
    wide = offsets.astype(np.int64)
    begin, end = (int(wide[0]), int(wide[-1])) if len(wide) else (0, 0)
    data = bytes(memoryview(buffers[2])[begin:end]) if buffers[2] is not None else b""
    return wide - begin, data + bytes(8)


def _tail_mask(bytes_left: NDArray[np.int64]) -> UInt64s:
    bits = (np.minimum(bytes_left, 8) * 8).astype(np.uint64)
    return ~np.uint64(0) >> (np.uint64(64) - bits)


def _stir(lane: UInt64s, factor: np.uint64, turn: int) -> UInt64s:
    lane = lane * factor
    return (lane << np.uint64(turn)) | (lane >> np.uint64(64 - turn))


def _finish(lane: UInt64s) -> UInt64s:
    lane = (lane ^ (lane >> np.uint64(33))) * _M3
    lane = (lane ^ (lane >> np.uint64(33))) * _M4
    return lane ^ (lane >> np.uint64(33))
