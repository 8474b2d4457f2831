"""The hash index beside a dict."""

import mmap
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.core.columns.index import HashIndex, mix


def keep_all(keys, values):
    return np.ones(len(keys), dtype=bool)


def test_mix_is_one_to_one_and_never_zero_for_positive_numbers():
    numbers = np.arange(1, 200_001)
    mixed = mix(numbers)
    assert len(np.unique(mixed)) == len(numbers)
    assert (mixed != 0).all()


@given(st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=60, unique=True), max_size=30))
def test_finds_what_was_put_last(batches):
    index, truth = HashIndex(keep_all), {}
    for round_number, batch in enumerate(batches, start=1):
        numbers = np.array(batch)
        index.put(mix(numbers), numbers * 1000 + round_number)
        truth.update({n: n * 1000 + round_number for n in batch})
        asked = np.arange(1, 401)
        assert index.find(mix(asked)).tolist() == [truth.get(n, 0) for n in asked.tolist()]


def test_growing_step_by_step_loses_nothing():
    random = np.random.default_rng(5)
    keys = random.integers(1, 2**64 - 1, (60_000, 2), dtype=np.uint64)
    index = HashIndex(keep_all, wide=True)
    for begin in range(0, len(keys), 700):
        part = keys[begin : begin + 700]
        numbers = np.arange(begin + 1, begin + 1 + len(part))
        index.put(part[:, 0], numbers, part[:, 1], new=begin % 1400 == 0)
        known = keys[: begin + len(part)]
        sample = random.integers(0, len(known), 500)
        found = index.find(known[sample, 0], known[sample, 1])
        assert (found == sample + 1).all()
    strangers = random.integers(1, 2**64 - 1, (5_000, 2), dtype=np.uint64)
    assert not index.find(strangers[:, 0], strangers[:, 1]).any()


def test_keys_that_differ_only_in_the_last_half_are_told_apart():
    index = HashIndex(keep_all, wide=True)
    first = np.full(12, 7, dtype=np.uint64)
    last = np.arange(12, dtype=np.uint64)
    for row in range(12):  # more than a bucket of them
        index.put(first[row : row + 1], np.array([row + 1]), last[row : row + 1])
    assert index.find(first, last).tolist() == list(range(1, 13))
    assert index.find(first[:1], np.array([99], dtype=np.uint64)).tolist() == [0]


def test_what_is_not_kept_leaves_with_the_next_rebuild_and_gives_memory_back():
    alive: set[int] = set()
    index = HashIndex(lambda keys, values: np.isin(values, list(alive)))
    for begin in range(1, 200_001, 1000):
        numbers = np.arange(begin, begin + 1000)
        alive.clear()
        alive.update(numbers.tolist())
        index.put(mix(numbers), numbers)
    # A thousand live at a time: the table never grows to hold what has gone.
    assert index.size_bytes < 40_000 * 16
    assert (index.find(mix(numbers)) == numbers).all()


def test_what_a_rebuild_has_not_moved_yet_is_changed_where_it_is():
    index = HashIndex(keep_all)
    numbers = np.arange(1, 200_001)
    begin = 0
    while not (index.is_rebuilding and index._old.buckets > 8192):
        index.put(mix(numbers[begin : begin + 2000]), numbers[begin : begin + 2000], new=True)
        begin += 2000
    numbers = numbers[:begin]
    # One entry for each key, in one table or the other, however often it is put meanwhile.
    for turn in (1, 2, 3):
        for some in np.split(numbers, 40):
            index.put(mix(some[::7]), some[::7] + turn * 1_000_000)
        expected = np.where(
            (numbers - 1) % (begin // 40) % 7 == 0, numbers + turn * 1_000_000, numbers
        )
        assert (index.find(mix(numbers)) == expected).all()
    while index.tidy():
        pass
    assert (index.find(mix(numbers)) == expected).all()
    assert index._table.used == len(numbers)


def test_many_keys_of_one_bucket_take_its_slots_and_the_next_ones():
    index = HashIndex(keep_all, wide=True, expected=1000)
    buckets = index._table.buckets
    # The highest bits decide: all of these begin in the last bucket, and go on in the first.
    keys = np.uint64(2**64 - 1) - np.arange(30, dtype=np.uint64)
    tails = np.arange(30, dtype=np.uint64)
    assert set(index._table.home(keys).tolist()) == {buckets - 1}
    index.put(keys[:13], np.arange(1, 14), tails[:13], new=True)
    index.put(keys, np.arange(101, 131), tails)
    assert index.find(keys, tails).tolist() == list(range(101, 131))
    same_first_half = np.full(5, 77, dtype=np.uint64)
    index.put(same_first_half, np.arange(201, 206), tails[:5], new=True)
    assert index.find(same_first_half, tails[:5]).tolist() == list(range(201, 206))


@pytest.mark.parametrize("count", [1, 8, 9, 5000])
def test_a_whole_batch_into_an_empty_index(count):
    index = HashIndex(keep_all)
    numbers = np.arange(1, count + 1)
    index.put(mix(numbers), numbers)
    assert (index.find(mix(numbers)) == numbers).all()


@pytest.mark.skipif(sys.platform != "linux", reason="how much is resident is read from /proc")
def test_a_table_that_goes_leaves_no_hole_in_the_heap():
    """In a process of its own, whose C library takes large blocks from its heap by then."""
    assert subprocess.run([sys.executable, "-c", _REPLACED_TABLES], check=False).returncode == 0


_REPLACED_TABLES = """
import sys
import numpy as np
from fasti.core.columns.index import HashIndex

def resident_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

# glibc raises its bound for mappings to the size of one that was freed.
np.ones(24 << 20, dtype=np.uint8).sum()
before_kb = resident_kb()
pins = []
for _ in range(3):
    index = HashIndex(lambda keys, values: np.ones(len(keys), dtype=bool), True, 300_000)
    index._table.touch(index._table.buckets)
    assert resident_kb() > before_kb + 16_000
    # Something that stays, behind it in the heap.
    pins.append(np.ones(100_000, dtype=np.uint8))
    del index
sys.exit(resident_kb() > before_kb + 4_000)
"""


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has them")
def test_a_kernel_without_huge_pages_has_large_tables_too(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9_999)  # refused by every kernel
    index = HashIndex(keep_all)
    numbers = np.arange(1, 200_001)
    for begin in range(0, len(numbers), 10_000):
        batch = numbers[begin : begin + 10_000]
        index.put(mix(batch), batch)
    assert (index.find(mix(numbers)) == numbers).all()
