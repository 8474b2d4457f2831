"""Where the rows of a log's partition lie, beside a plain list that remembers each of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fasti.core.log.commands import LogPiece
from fasti.core.log.partition import LogPartition, is_range
from fasti.core.rows.location import in_block, in_frame
from fasti.model import SECOND_US, TopicSettings

SETTINGS = TopicSettings(kind="log")


def rows(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def flat(pieces: list[LogPiece]) -> list[tuple[int, int]]:
    """(offset, location) of every row."""
    found = []
    for piece in pieces:
        extras = list(range(piece.count))
        if piece.rows is not None:
            extras = [int(row) - int(piece.rows[0]) for row in piece.rows]
        for place, extra in enumerate(extras):
            found.append((piece.first_offset + place, piece.location + extra))
    return found


class Remembered:
    """A partition, and every row's place and time by its offset."""

    def __init__(self, settings: TopicSettings = SETTINGS) -> None:
        self.partition = LogPartition(0)
        self.settings = settings
        self.places: list[int] = []
        self.times: list[int] = []
        self.frame = 0

    def append(self, values: list[int], at_us: int, size_bytes: int = 100) -> None:
        self.frame += 1
        row = rows(*values)
        self.partition.append(self.frame, row, at_us, size_bytes, self.settings)
        self.places += in_frame(self.frame, row).tolist()
        self.times += [at_us] * len(values)

    def check(self) -> None:
        log = self.partition
        assert log.next_offset == len(self.places)
        alive = np.arange(log.earliest, log.next_offset)
        assert log.locations_of(alive).tolist() == self.places[log.earliest :]
        # Every third, backwards, and a part in the middle.
        for some in (alive[::3], alive[::-1], alive[len(alive) // 3 : len(alive) // 2 + 1]):
            places = [self.places[offset] for offset in some.tolist()]
            assert log.locations_of(some).tolist() == places
            if len(some):
                assert (log.times_of(some) <= [self.times[offset] for offset in some]).all()
        assert flat(log.locate(log.earliest, 1 << 20)) == list(
            zip(alive.tolist(), self.places[log.earliest :], strict=True)
        )
        assert sum(segment.size_bytes for segment in log.segments) == log.segments.size_bytes


def test_rows_that_are_a_range_and_rows_that_are_not() -> None:
    log = Remembered()
    log.append([0, 1, 2], 10)
    log.append([1, 3, 4], 20)
    log.append([7], 30)
    log.check()
    assert log.partition.times_of(rows(0, 3, 6)).tolist() == [10, 20, 30]
    assert flat(log.partition.locate(1, 3)) == list(enumerate(log.places))[1:4]
    assert flat(log.partition.locate(4, 1)) == [(4, log.places[4])]
    assert log.partition.locate(7, 5) == []
    log.partition.trim(4)
    log.check()
    assert log.partition.locate(3, 5) == []
    assert is_range(rows(5, 6, 7))
    assert not is_range(rows(5, 7, 6))
    assert not is_range(rows(5, 6, 8))


def test_an_append_that_is_taken_back_leaves_no_trace() -> None:
    settings = TopicSettings(kind="log", segment_bytes=250)
    log = Remembered(settings)
    for values in ([0, 1], [0, 2], [5]):
        log.append(values, 10)
        before = log.partition.capture()
        mark = log.partition.mark()
        log.partition.append(99, rows(1, 5, 9), 10, 1_000, settings)
        assert log.partition.capture() != before
        log.partition.restore_mark(mark)
        assert log.partition.capture() == before
        log.check()
    empty = LogPartition(0)
    before = empty.capture()
    mark = empty.mark()
    empty.append(1, rows(0), 10, 10, settings)
    empty.restore_mark(mark)
    assert empty.capture() == before
    assert not empty.segments


def test_segments_roll_by_size_and_by_age() -> None:
    by_size = Remembered(TopicSettings(kind="log", segment_bytes=250))
    for _ in range(7):
        by_size.append([0, 1], 10)
    assert [segment.base for segment in by_size.partition.segments] == [0, 6, 12]
    by_age = Remembered(TopicSettings(kind="log", segment_age_us=80 * SECOND_US))
    for second in (0, 9, 10, 19, 20):
        by_age.append([0], second * SECOND_US)
    assert [segment.base for segment in by_age.partition.segments] == [0, 2, 4]


def test_segments_are_small_enough_for_what_is_retained() -> None:
    log = Remembered(TopicSettings(kind="log", retained_bytes=1600))
    for _ in range(40):
        log.append([0], 10)
    assert log.partition.too_large(log.settings) == 24
    log.partition.trim(24)
    assert log.partition.segments.size_bytes == 1600


def test_old_segments_go_and_the_last_one_too() -> None:
    settings = TopicSettings(kind="log", segment_age_us=80 * SECOND_US)
    log = Remembered(settings)
    for second in (0, 5, 10, 15):
        log.append([0], second * SECOND_US)
    assert log.partition.segments.next_age_us(settings) == 85 * SECOND_US
    assert log.partition.too_old(85 * SECOND_US - 1, settings) == 0
    assert log.partition.too_old(85 * SECOND_US, settings) == 2
    assert log.partition.too_old(95 * SECOND_US, settings) == 4
    log.partition.trim(4)
    log.check()
    assert log.partition.segments.next_age_us(settings) is None
    assert not log.partition.segments.size_bytes
    log.append([0], 100 * SECOND_US)
    log.check()
    assert log.partition.earliest == 4
    assert log.partition.next_offset == 5


def test_the_first_row_at_or_after_a_time() -> None:
    log = Remembered()
    for at_us in (10, 10, 30):
        log.append([0, 1], at_us)

    def found(time_us: int) -> int | None:
        piece = log.partition.find_time(time_us)
        return None if piece is None else piece.first_offset

    assert [found(time_us) for time_us in (0, 10, 11, 30, 31)] == [0, 0, 4, 4, None]
    log.partition.trim(1)
    assert found(5) == 1


def test_blocks_without_some_rows_are_refused() -> None:
    log = Remembered()
    log.append([0, 1, 2, 3], 10)
    described = log.partition.capture()
    for blocks in (
        [],
        [(1, 3, 5, 10, 10)],
        [(0, 3, 5, 10, 10)],
        [(0, 2, 5, 1, 1), (3, 1, 6, 1, 1)],
    ):
        fresh = LogPartition(0)
        fresh.restore(described)
        with pytest.raises(AssertionError):
            fresh.restore_blocks(blocks)


@pytest.mark.parametrize("seed", range(20))
def test_random_appends_trims_and_checkpoints(seed: int) -> None:
    rng = random.Random(seed)
    log = Remembered(TopicSettings(kind="log", segment_bytes=rng.choice([200, 1000])))
    begun = None
    block = 0
    for step in range(200):
        choice = rng.random()
        if choice < 0.6:
            values = sorted(rng.sample(range(12), rng.randint(1, 6)))
            log.append(values, step * 10)
        elif choice < 0.75:
            part = log.partition
            part.trim(rng.randint(part.earliest, part.next_offset))
        elif begun is None:
            begun = log.partition.tail()
        else:
            pieces = list(begun.pieces())
            expected = list(enumerate(log.places))[begun.first_offset : begun.next_offset]
            assert flat(pieces) == expected
            blocks = []
            reached = begun.first_offset
            while reached < begun.next_offset:
                block += 1
                count = min(rng.randint(1, 9), begun.next_offset - reached)
                times = log.times[reached], log.times[reached + count - 1]
                blocks.append((reached, count, block, *times))
                log.places[reached : reached + count] = in_block(
                    block, np.arange(count, dtype=np.int64)
                ).tolist()
                reached += count
            log.partition.install(begun.first_offset, begun.next_offset, blocks)
            begun = None
        log.check()
