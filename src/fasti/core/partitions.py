"""The partitions of a topic, or a group's places in them: each is made when it is first needed.

A topic of 4,096 partitions that nobody uses costs a few hundred bytes, not 4,096 times a calendar,
an index and a ring. What changes a partition takes it by its number (`partitions[7]`), which makes
it. What only looks takes `look(7)`, which gives a stand-in for a partition that is not made: empty,
and thrown away, so that questions take no memory. Iterating looks at all of them, in order.

Whether a partition is made or not is no state: a replay may make others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Partitions(Generic[T]):
    """So many partitions. `make(number)` makes one; `note(count)` is told of those that are kept."""

    __slots__ = ("_count", "_listed", "_made", "_make", "_note")

    def __init__(self, count: int, make: Callable[[int], T], note: Callable[[int], None]) -> None:
        self._count, self._make, self._note = count, make, note
        self._made: dict[int, T] = {}
        # In order, if nothing was made since: every step goes through them.
        self._listed: list[T] | None = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> T:
        found = self._made.get(number)
        if found is None:
            if not 0 <= number < self._count:
                raise IndexError(number)
            found = self._made[number] = self._make(number)
            self._listed = None
            self._note(1)
        return found

    def __iter__(self) -> Iterator[T]:
        return map(self.look, range(self._count))

    def get(self, number: int) -> T | None:
        """The partition, if it is made."""
        return self._made.get(number)

    def look(self, number: int) -> T:
        """The partition, to be read only: an empty one if it isn't made."""
        found = self._made.get(number)
        return self._make(number) if found is None else found

    def made(self) -> Sequence[T]:
        """Those that are made, in order. One that is made meanwhile is not among them."""
        if self._listed is None:
            self._listed = [self._made[number] for number in sorted(self._made)]
        return self._listed

    def numbers(self) -> list[int]:
        """The numbers of those that are made, in order."""
        return sorted(self._made)

    def clear(self) -> None:
        """The topic, or the group, is gone."""
        self._note(-len(self._made))
        self._made.clear()
        self._listed = []


def ignore(count: int) -> None:
    """For those that nobody counts."""
