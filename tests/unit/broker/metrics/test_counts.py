"""Lateness is started − max(due, created), for whatever part of a delivery is heard of."""

import numpy as np

from fasti.broker.metrics import counts
from fasti.broker.metrics.counts import LatenessBook


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_whole_delivery() -> None:
    book = LatenessBook()
    book.delivered(7, ints(3, 1, 2), ints(100, 200, 300))
    late = book.started(ints(3, 1, 2), ints(7, 7, 7), ints(150, 200, 301))
    assert late.tolist() == [50, 0, 1]


def test_one_by_one_over_two_tokens_and_in_any_order() -> None:
    book = LatenessBook()
    book.delivered(7, ints(3, 1, 2), ints(100, 200, 300))
    book.delivered(8, ints(9), ints(1000))
    late = book.started(ints(9, 2, 3), ints(8, 7, 7), ints(1001, 310, 120))
    assert sorted(late.tolist()) == [1, 10, 20]
    assert book.started(ints(1), ints(7), ints(205)).tolist() == [5]
    # Both are done with: nothing is kept.
    assert book.started(ints(1), ints(7), ints(205)).tolist() == []


def test_parts_of_one_delivery_belong_together() -> None:
    book = LatenessBook()
    book.delivered(7, ints(1), ints(100))
    book.delivered(7, ints(2), ints(200))
    assert book.started(ints(1, 2), ints(7, 7), ints(101, 202)).tolist() == [1, 2]


def test_strangers_and_messages_that_nobody_started_count_for_nothing() -> None:
    book = LatenessBook()
    book.delivered(7, ints(1, 2), ints(100, 100))
    assert book.started(ints(5), ints(6), ints(101)).tolist() == []
    assert book.started(ints(1, 5), ints(7, 7), ints(0, 101)).tolist() == []


def test_the_book_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(counts, "_ROWS_MAX", 10)
    book = LatenessBook()
    for token in range(100):
        book.delivered(token, ints(1, 2), ints(100, 100))
    assert book._rows <= 10
    assert book.started(ints(1), ints(0), ints(101)).tolist() == []
    assert book.started(ints(1), ints(99), ints(101)).tolist() == [1]
