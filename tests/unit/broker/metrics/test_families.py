"""A table of metrics: what a line says, and how series get into it."""

from __future__ import annotations

import pytest

from fasti.broker.metrics.counts import Distribution
from fasti.broker.metrics.families import Families

TABLE = """
a_rows{topic,state}  Rows, by state.
a_calls_total        Calls.
a_wait_bucket        How long they waited.
"""


def test_a_name_says_what_a_family_is() -> None:
    families = Families(TABLE)
    waited = Distribution((1.0,))
    waited.add(0.5)
    families.add("a_rows", "t", "ready", 3)
    families.add("a_calls_total", 7)
    families.add("a_wait_bucket", waited)
    rows, calls, wait = families
    assert (rows.name, rows.type, rows.documentation) == ("a_rows", "gauge", "Rows, by state.")
    assert [(s.labels, s.value) for s in rows.samples] == [({"topic": "t", "state": "ready"}, 3)]
    assert [(s.name, s.value) for s in calls.samples] == [("a_calls_total", 7)]
    assert (wait.name, wait.type) == ("a_wait", "histogram")
    assert ("a_wait_count", 1) in [(s.name, s.value) for s in wait.samples]


def test_a_line_without_a_text_is_refused() -> None:
    with pytest.raises(AssertionError, match="a_rows"):
        Families("a_rows{topic}")
