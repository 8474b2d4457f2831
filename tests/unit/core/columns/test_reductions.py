"""Reductions give what numpy gives."""

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers, lists

from fasti.core.columns.reductions import distinct


@given(lists(integers(-(1 << 63), (1 << 63) - 1) | integers(0, 5)))
def test_distinct_values_are_in_order_and_once(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))
