"""Calendar, ready line and histogram beside plain sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fasti.core.calendar.histogram import BUCKET_US, Histogram
from fasti.core.calendar.wheel import ROWS_PER_CALL, Calendar, Ready
from fasti.core.columns.reductions import sort_pairs

moments = st.one_of(
    st.integers(0, 200_000),
    st.integers(0, 1 << 32),
    st.integers(0, 1 << 45),
    st.integers(0, (1 << 62) - 1),
)


class Rows:
    """What a partition tells a calendar of its rows."""

    def __init__(self):
        self.due = {}

    def resolve(self, sequences):
        kept = [s for s in sequences.tolist() if s in self.due]
        return np.array(kept, dtype=np.int64), np.array([self.due[s] for s in kept], dtype=np.int64)


@given(st.lists(st.tuples(st.sampled_from(["add", "cancel", "move", "pull", "sweep"]), moments)))
def test_everything_leaves_the_calendar_when_due_and_nothing_before_its_slice(operations):
    calendar, rows = Calendar(), Rows()
    left: set[int] = set()
    now = next_sequence = 0
    for operation, moment in operations:
        if operation == "add":
            next_sequence += 1
            due = max(moment, calendar.cursor_us)
            rows.due[next_sequence] = due
            calendar.insert(np.array([next_sequence]), np.array([due]))
        elif operation in ("cancel", "move") and rows.due.keys() - left:
            sequence = sorted(rows.due.keys() - left)[moment % len(rows.due.keys() - left)]
            if operation == "cancel":
                del rows.due[sequence]
            else:
                rows.due[sequence] = max(moment, calendar.cursor_us)
                calendar.insert(np.array([sequence]), np.array([rows.due[sequence]]))
        elif operation == "sweep":
            calendar.sweep(rows.resolve)
        elif operation == "pull":
            now = max(now, moment)
            more = True
            while more:
                (sequences, due), more = calendar.pull(now, rows.resolve)
                for sequence, its_due in zip(sequences.tolist(), due.tolist(), strict=True):
                    assert rows.due[sequence] == its_due
                    assert its_due < max(now + (1 << 14), calendar.cursor_us)
                    left.add(sequence)
            assert calendar.cursor_us > now
            assert {s for s, due in rows.due.items() if due <= now} <= left
        first = calendar.next_us()
        waiting = [due for s, due in rows.due.items() if s not in left]
        assert first is None or not waiting or first <= min(waiting)
        assert not waiting or first is not None


def test_a_large_slice_is_swept_in_pieces_beside_what_comes_and_goes():
    calendar, due = Calendar(), 5 << 40
    live = set(range(1, 200_001, 7))
    looked_at = []

    def resolve(sequences):
        looked_at.append(len(sequences))
        kept = sequences[np.isin(sequences, np.array(sorted(live)))]
        return kept, np.full(len(kept), due)

    for begin in range(1, 200_001, 20_000):
        # Some stand here twice: they were moved away and back.
        numbers = np.concatenate([np.arange(begin, begin + 20_000), np.arange(begin, begin + 500)])
        calendar.insert(numbers, np.full(len(numbers), due))
    swept = 0
    while calendar.entries > len(live):
        calendar.sweep(resolve)
        swept += 1
        assert sum(looked_at) <= swept * (ROWS_PER_CALL + 20_500)
        if swept == 2:
            # What comes meanwhile stays.
            calendar.insert(np.array([300_000]), np.array([due]))
            live.add(300_000)
        assert swept < 100
    assert swept > 2
    (sequences, _), more = calendar.pull(due, resolve)
    while more:
        (others, _), more = calendar.pull(due, resolve)
        sequences = np.concatenate([sequences, others])
    assert sorted(sequences.tolist()) == sorted(live)


def test_a_large_slice_leaves_in_pieces_and_the_cursor_waits_for_the_last():
    calendar, rows = Calendar(), Rows()
    due = 5 << 14
    for begin in range(1, 200_001, 20_000):
        numbers = np.arange(begin, begin + 20_000)
        rows.due.update(dict.fromkeys(numbers.tolist(), due))
        calendar.insert(numbers, np.full(20_000, due))
    (sequences, _), more = calendar.pull(due, rows.resolve)
    assert more
    assert 0 < len(sequences) < 200_000
    assert calendar.cursor_us <= due
    total = len(sequences)
    while more:
        (sequences, _), more = calendar.pull(due, rows.resolve)
        total += len(sequences)
    assert total == 200_000
    assert calendar.cursor_us > due


def test_what_leaves_in_pieces_leaves_in_order():
    """Many that fell due long ago, in any order: each piece lies behind the one before."""
    calendar, random = Calendar(), np.random.default_rng(1)
    due = np.concatenate([[0], (3 << 20) + random.integers(0, 1 << 21, 300_000)])

    def resolve(sequences):
        return sequences, due[sequences]

    for begin in range(1, len(due), 5_000):
        numbers = np.arange(begin, min(begin + 5_000, len(due)))
        calendar.insert(numbers, due[numbers])
    left, last_us, more = [], 0, True
    while more:
        (sequences, moments), more = calendar.pull(1 << 30, resolve)
        assert len(sequences) <= ROWS_PER_CALL
        if len(sequences):
            assert moments.min() >= last_us
            last_us = int(moments.max())
            left.append(sequences)
    assert np.sort(np.concatenate(left)).tolist() == list(range(1, len(due)))
    assert calendar.entries == 0
    assert calendar.cursor_us > 1 << 30


def test_a_generation_can_be_forgotten_from_a_moment_on():
    calendar, rows = Calendar(), Rows()
    far = 1 << 40
    calendar.insert(np.array([1]), np.array([1000]))
    calendar.insert(np.array([2]), np.array([far]))
    calendar.generation = 2
    calendar.insert(np.array([3]), np.array([far]))
    rows.due = {1: 1000, 2: far, 3: far}
    calendar.forget(1, from_us=1 << 30)
    found: list[int] = []
    more = True
    while more:
        (sequences, _), more = calendar.pull(far, rows.resolve)
        found += sequences.tolist()
    assert found == [1, 3]
    assert calendar.entries == 0


@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=20),
            st.tuples(st.integers(1, 30), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_the_ready_line_hands_out_the_smallest_pairs(operations):
    ready, truth = Ready(), set()
    for operation in operations:
        if isinstance(operation, list):
            pairs = sorted(set(operation) - truth)
            truth |= set(pairs)
            ready.push(
                np.array([p[0] for p in pairs], dtype=np.int64),
                np.array([p[1] for p in pairs], dtype=np.int64),
            )
        else:
            count, limit = operation
            due, sequence = ready.take(count, limit)
            taken = list(zip(due.tolist(), sequence.tolist(), strict=True))
            assert taken == [pair for pair in sorted(truth) if pair[0] <= limit][:count]
            truth -= set(taken)
        assert ready.entries == len(truth)
        assert ready.first_due() == min((pair[0] for pair in truth), default=None)
        later = sorted({pair[1] for pair in truth if pair[0] > 25})
        assert ready.after(25).tolist() == later


def test_many_runs_beside_each_other_are_merged_ahead_of_what_is_asked_for():
    """And what comes between is handed out where it belongs."""
    ready, random = Ready(), np.random.default_rng(2)
    due = random.integers(0, 1_000_000, 120_000)
    for rows in np.split(np.arange(120_000), 12):
        ready.push(*sort_pairs(due[rows], rows))
    taken, late = [], 120_000
    while ready.entries:
        moments, sequences = ready.take(5_000, 1_000_000)
        taken += zip(moments.tolist(), sequences.tolist(), strict=True)
        if len(taken) % 20_000 == 0 and ready.entries:
            # Just behind what was taken: before all that was merged already.
            ready.push(np.array([taken[-1][0]]), np.array([late]))
            late += 1
    assert len(taken) == len(set(taken)) == late
    assert taken == sorted(taken)


@given(st.lists(st.tuples(moments, st.integers(1, 1 << 50))), st.booleans())
def test_pairs_are_sorted_once_each(pairs, of_runs):
    due, sequence = sort_pairs(
        np.array([p[0] for p in pairs], dtype=np.int64),
        np.array([p[1] for p in pairs], dtype=np.int64),
        of_runs,
    )
    assert list(zip(due.tolist(), sequence.tolist(), strict=True)) == sorted(set(pairs))


@given(
    st.lists(st.tuples(st.booleans(), st.lists(moments, min_size=1, max_size=30)), max_size=20),
    st.integers(0, 1 << 33),
    st.integers(1, 500),
    st.integers(1, 60),
)
def test_the_histogram_counts_what_a_scan_would(changes, begin, buckets, minutes):
    histogram, truth = Histogram(), []
    for add, due in changes:
        if add:
            truth += due
            histogram.add(np.array(due, dtype=np.int64))
        else:
            gone = truth[: len(due)]
            truth = truth[len(gone) :]
            histogram.remove(np.array(gone, dtype=np.int64))
    from_us, width = begin // BUCKET_US * BUCKET_US, minutes * BUCKET_US
    to_us = from_us + buckets * width
    starts, counts = histogram.between(from_us, to_us, width)
    expected: dict[int, int] = {}
    for due in truth:
        if from_us <= due < to_us:
            start = from_us + (due - from_us) // width * width
            expected[start] = expected.get(start, 0) + 1
    assert dict(zip(starts.tolist(), counts.tolist(), strict=True)) == expected
    assert histogram.total == len(truth)
