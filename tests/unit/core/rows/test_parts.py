"""Smaller parts of the core: ledger, leases, outcomes, marks, names, retry, rows."""

import numpy as np
import pyarrow as pa
import pytest

from fasti.core.delivery.leases import LeaseTable
from fasti.core.delivery.retry import retry_delays
from fasti.core.keys import Rows
from fasti.core.rows.arena import FRAME_ROWS, Arena, Ledger
from fasti.core.rows.location import in_block, in_frame, is_in_run, number_of, row_of
from fasti.core.rows.memory import Marks, Names, Outcomes
from fasti.errors import InvalidArgument, Overloaded
from fasti.model import Limits, RetryPolicy, State


def test_memory_follows_the_rows_that_live():
    arena = Arena(64 << 20)
    ledger = Ledger(arena)
    total = 300 * FRAME_ROWS
    sequences = np.arange(1, total + 1)
    slots = ledger.append(total)
    arena.flags[slots] = State.SCHEDULED
    arena.due[slots] = sequences * 7
    survivors = sequences[::1000]
    gone = np.setdiff1d(sequences, survivors)
    used = arena.frames_used
    for part in np.array_split(gone, 50):
        where = ledger.slots(part)
        arena.flags[where] = State.NONE
        ledger.finish(part, where)
        ledger.tidy()
    while ledger.tidy():
        pass
    assert arena.frames_used < used - 40
    assert (arena.due[ledger.slots(survivors)] == survivors * 7).all()
    assert not arena.flags[ledger.slots(gone)].any()
    assert not arena.flags[ledger.slots(np.array([0, -5, total + 1, 1 << 50]))].any()


def test_a_spent_budget_is_refused_and_leaves_the_ledger_as_it_was():
    arena = Arena(16 * FRAME_ROWS * 32)
    ledger = Ledger(arena)
    ledger.append(3 * FRAME_ROWS)
    before = ledger.next_sequence
    with pytest.raises(Overloaded):
        ledger.append(100 * FRAME_ROWS)
    assert ledger.next_sequence == before


def test_leases_expire_in_bounded_pieces_and_slots_serve_again():
    leases = LeaseTable(100)
    first = leases.open(np.arange(1, 61), 1, 0, 5, 1, 10)
    leases.arm(first, 1000)
    second = leases.open(np.arange(61, 101), 1, 0, 6, 2, 10)
    leases.arm(second, 2000)
    with pytest.raises(Overloaded):
        leases.open(np.array([101]), 1, 0, 5, 3, 10)
    assert len(leases.expired(999, 1000)) == 0
    assert len(leases.expired(1000, 50)) == 50
    leases.close(leases.expired(1000, 50))
    assert len(leases.expired(1000, 50)) == 10
    assert leases.held_by(6, 1).tolist() == sorted(second.tolist())
    assert leases.free == 50
    assert leases.repeats(np.array([3, 4, 3]))
    assert not leases.repeats(np.array([3, 4, 5]))


def test_outcomes_are_forgotten_by_age_and_by_count():
    outcomes = Outcomes()
    for batch in range(40):
        outcomes.remember(np.arange(batch * 5000, (batch + 1) * 5000), State.DONE, batch)
    states, times = outcomes.find(np.array([0, 199_999, 200_000]), since_us=0)
    assert states.tolist() == [State.DONE, State.DONE, 0]
    assert times.tolist() == [0, 39, 0]
    assert outcomes.find(np.array([0]), since_us=1)[0].tolist() == [0]
    outcomes.forget(before_us=0, count_max=100_000)
    assert outcomes.remembered < 200_000
    assert outcomes.find(np.array([199_999]), since_us=0)[0].tolist() == [State.DONE]
    restored = Outcomes()
    restored.restore(outcomes.columns())
    restored.remember(np.array([900_000]), State.CANCELLED, 99)
    assert restored.find(np.array([199_999, 900_000]), 0)[0].tolist() == [
        State.DONE,
        State.CANCELLED,
    ]


def test_marks_are_kept_per_block():
    marks = Marks()
    marks.add_block(3, 10)
    marks.add_block(4, 70_000 % 65_536)
    marks.kill(in_block(3, np.array([0, 9])))
    marks.kill(in_frame(3, np.array([5])))
    assert marks.dead(3) == 2
    assert marks.dead(4) == 0
    marks.revive(in_block(3, np.array([9])))
    assert marks.dead(3) == 1
    marks.remove_block(3)
    assert marks.blocks() == [4]


def test_locations_tell_frames_from_blocks():
    places = np.concatenate([in_frame(7, np.array([1, 2])), in_block(7, np.array([65_535]))])
    assert is_in_run(places).tolist() == [False, False, True]
    assert number_of(places).tolist() == [7, 7, 7]
    assert row_of(places).tolist() == [1, 2, 65_535]


def test_a_name_is_forgotten_with_its_last_use():
    names = Names()
    number = names.number("worker-1")
    names.use(number, 2)
    names.unuse_all(np.array([number]))
    assert names.find("worker-1") == number
    names.use(number, -1)
    assert names.find("worker-1") is None
    assert names.number("worker-2") == number


def test_retry_delays_grow_to_the_limit_and_are_always_the_same():
    policy = RetryPolicy(base_us=1000, factor=2, limit_us=6000, jitter=0)
    ids = np.array([5, 5, 5, 5])
    attempts = np.array([1, 2, 3, 9], dtype=np.uint16)
    assert retry_delays(policy, ids, attempts).tolist() == [1000, 2000, 4000, 6000]
    spread = RetryPolicy(base_us=1_000_000, factor=1, limit_us=1_000_000, jitter=0.5)
    many = retry_delays(spread, np.arange(1000), np.ones(1000, dtype=np.uint16))
    assert many.min() >= 500_000
    assert many.max() <= 1_000_000
    assert len(np.unique(many)) > 900
    again = retry_delays(spread, np.arange(1000), np.ones(1000, dtype=np.uint16))
    assert (many == again).all()


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"payloads": [b"x" * 11]}, "payload_bytes_max"),
        ({"payloads": [b"x"], "key": ["k" * 6]}, "key_bytes_max"),
        ({"payloads": [b"x"], "key": [""]}, "key"),
        ({"payloads": [b"x"], "headers": [{"a": "b" * 9}]}, "headers_bytes_max"),
        ({"payloads": [b"x"] * 4}, "batch_rows_max"),
        ({"payloads": [None]}, "payload"),
        ({"payloads": [b"x"], "key": ["a", "b"]}, "payload"),
        ({"payloads": ["text"], "colour": ["red"]}, "colour"),
        ({"payloads": [b"x"], "key": [7.5]}, "key"),
    ],
)
def test_rows_beyond_a_limit_are_refused_by_name(columns, field):
    limits = Limits(payload_bytes_max=10, key_bytes_max=5, headers_bytes_max=8, batch_rows_max=3)
    headers = columns.get("headers")
    if headers:
        columns = {**columns, "headers": [list(h.items()) for h in headers]}
    with pytest.raises(InvalidArgument) as refused:
        Rows.of(limits=limits, **columns)
    assert refused.value.field == field


def test_rows_take_arrow_columns_of_several_kinds():
    chunked = pa.chunked_array([[b"a"], [b"b"]])
    rows = Rows.of(chunked, key=pa.array(["k", None], type=pa.large_string()))
    assert len(rows) == 2
    assert rows.batch.column("key").to_pylist() == ["k", None]
    assert rows.keys((1, 2)).given.tolist() == [True, False]
