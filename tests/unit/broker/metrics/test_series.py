"""A page of metrics has a bound, fills it with what matters most, and says what it left out."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.core import GaugeMetricFamily

from fasti.broker.metrics.series import LeftOutNotice, SeriesBound


def family(series: int) -> GaugeMetricFamily:
    made = GaugeMetricFamily("g", "G.", labels=["n"])
    for number in range(series):
        made.add_metric([str(number)], number)
    return made


def test_what_is_beyond_the_bound_is_left_out_and_counted() -> None:
    bound = SeriesBound(1_000)
    passed = list(bound.pass_on([family(10), family(2_000), family(3)]))
    assert [len(each.samples) for each in passed] == [10, 990, 3]
    assert bound.left_out == 1_010
    assert not bound.take(1)
    assert bound.left_out == 1_011


def test_who_asks_first_has_what_it_was_promised() -> None:
    bound = SeriesBound(100)
    assert bound.take(60)
    assert not bound.take(41)
    assert bound.take(40)
    assert (bound.left, bound.left_out) == (0, 41)


def test_the_log_says_once_that_something_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    notice = LeftOutNotice()
    with caplog.at_level(logging.WARNING):
        for left_out in (0, 5, 7, 0, 9):
            notice.note(left_out, 100)
    assert len(caplog.records) == 2
