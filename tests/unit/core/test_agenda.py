"""Moments of many things, in one heap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fasti.core.agenda import FOREVER, Agenda


def test_things_come_when_their_moment_does_in_the_order_of_planning() -> None:
    agenda: Agenda[str] = Agenda()
    assert agenda.next_us() == FOREVER
    assert agenda.pop(FOREVER - 1) is None
    for thing, at_us in (("late", 30), ("b", 10), ("a", 10)):
        agenda.plan(thing, at_us)
    assert agenda.next_us() == 10
    assert agenda.pop(9) is None
    assert [agenda.pop(10) for _ in range(3)] == ["b", "a", None]
    assert agenda.next_us() == 30
    assert "late" in agenda
    assert "a" not in agenda


def test_the_last_plan_counts_and_an_earlier_one_if_asked_for() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.plan("x", 10)
    agenda.plan("x", 20)
    assert agenda.next_us() == 20
    agenda.plan_by("x", 30)
    assert agenda.next_us() == 20
    agenda.plan_by("x", 5)
    assert agenda.next_us() == 5
    agenda.plan("x", FOREVER)
    assert agenda.next_us() == FOREVER
    assert not len(agenda)


def test_a_moment_that_comes_back_counts_once() -> None:
    """An entry that no longer counted must not count again because its moment is the same."""
    agenda: Agenda[str] = Agenda()
    agenda.plan("x", 10)
    agenda.plan("x", 20)
    agenda.plan("x", 10)
    assert agenda.pop(10) == "x"
    assert agenda.pop(50) is None


def test_entries_that_no_longer_count_are_dropped() -> None:
    agenda: Agenda[int] = Agenda()
    agenda.plan(0, 1_000_000)
    for moment in range(1_000):
        agenda.plan(1, 500_000 - moment)
    assert len(agenda) == 2
    assert len(agenda._heap) <= 64


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plan", "plan_by", "drop", "pop"]),
            st.integers(0, 5),
            st.integers(0, 20),
        )
    )
)
def test_it_is_a_dict_of_moments(calls: list[tuple[str, int, int]]) -> None:
    agenda: Agenda[int] = Agenda()
    naive: dict[int, int] = {}
    for call, thing, at_us in calls:
        if call == "plan":
            agenda.plan(thing, at_us)
            naive[thing] = at_us
        elif call == "plan_by":
            agenda.plan_by(thing, at_us)
            naive[thing] = min(at_us, naive.get(thing, FOREVER))
        elif call == "drop":
            agenda.drop(thing)
            naive.pop(thing, None)
        else:
            due = agenda.pop(at_us)
            assert (due is None) == (min(naive.values(), default=FOREVER) > at_us)
            if due is not None:
                assert naive.pop(due) <= min(naive.values(), default=FOREVER)
        assert agenda.first_us <= agenda.next_us() == min(naive.values(), default=FOREVER)
        assert len(agenda) == len(naive)
