"""The pointer in its leader's hands: one change at a time, and nothing deleted before it stands."""

import pytest

from fasti.cluster.pointer_owner import FreeSpace, PointerOwner
from fasti.cluster.writer import ClaimPointer, LoseShard, PointerHeader, ReadPointer

OLD = PointerHeader(4, 2, "a", "1-1", 10)
NEW = PointerHeader(0, 2, "a", "2-1", 30)
FREED = FreeSpace(30, frozenset({"1-1"}))


def owner_with_a_change() -> PointerOwner:
    owner = PointerOwner(OLD, ["1-1", "1-1.rows"])
    assert owner.switch("2-1", 30, ["2-1", "2-1.rows", "1-1.rows"]) == ClaimPointer(4, NEW)
    return owner


def test_a_change_that_stands_frees_what_only_the_old_manifest_needed() -> None:
    owner = owner_with_a_change()
    assert owner.changed(5) == FREED
    assert owner.pointer == NEW._replace(revision=5)


@pytest.mark.parametrize("answer", ["refused", "unanswered"])
def test_a_change_in_doubt_is_read_for_and_repeated_as_it_was(answer: str) -> None:
    owner = owner_with_a_change()
    assert getattr(owner, answer)() == ReadPointer()
    assert owner.pointer_read(OLD) == ClaimPointer(4, NEW)
    assert getattr(owner, answer)() == ReadPointer()
    assert owner.pointer_read(NEW._replace(revision=5)) == FREED


def test_a_pointer_that_another_claimed_is_lost_and_nothing_more_is_deleted() -> None:
    owner = owner_with_a_change()
    owner.refused()
    assert owner.pointer_read(PointerHeader(5, 3, "b", "1-1", 10)) == LoseShard(3, None)
    assert owner.leftovers([("1-9", 1)]) == []
    with pytest.raises(RuntimeError, match="one change at a time"):
        owner.switch("2-2", 40, [])


def test_a_second_change_waits_for_the_first() -> None:
    owner = owner_with_a_change()
    with pytest.raises(RuntimeError, match="one change at a time"):
        owner.switch("2-2", 40, [])


def test_a_manifest_never_goes_back() -> None:
    with pytest.raises(ValueError, match="must not be older"):
        PointerOwner(OLD, ["1-1"]).switch("2-1", 9, [])


def test_leftovers_are_of_lower_epochs_and_not_in_force() -> None:
    owner = owner_with_a_change()
    blocks = [("1-1", 1), ("1-1.rows", 1), ("1-2", 1), ("2-1", 2), ("2-9", 2), ("3-1", 3)]
    assert owner.leftovers(blocks) == ["1-2"]


def test_a_result_that_nobody_asked_for_is_an_error() -> None:
    owner = PointerOwner(OLD, [])
    for call in (lambda: owner.changed(5), owner.refused, lambda: owner.pointer_read(OLD)):
        with pytest.raises(RuntimeError, match="no result"):
            call()


def test_only_a_claimed_pointer_has_an_owner() -> None:
    with pytest.raises(ValueError, match="never claimed"):
        PointerOwner(OLD._replace(revision=0), [])
