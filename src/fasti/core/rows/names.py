"""Numbers for names that many rows share: owners, consumers, reasons.

Number 0 is the empty name. Counted names are forgotten with their last use, so that workers with
ever new names don't fill the memory. Where names are whatever people write (reasons), there is a
bound besides: beyond it new ones are not kept, and `LEFT_OUT` stands for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every

# What a name costs beside its own bytes, about.
_NAME_BYTES = 192
LEFT_OUT = "(not kept: there are too many different reasons)"


class Names:
    """Names to numbers and back. Numbers mean nothing outside this process."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max, self.size_bytes = bytes_max, 0
        self._numbers: dict[str, int] = {"": 0}
        self._names: list[str | None] = [""]
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def number(self, name: str) -> int:
        """The number of a name, given if it is new."""
        known = self._numbers.get(name)
        if known is not None:
            return known
        size = _size(name)
        if self._bytes_max is not None and self.size_bytes + size > self._bytes_max:
            if name != LEFT_OUT:
                return self.number(LEFT_OUT)
        self.size_bytes += size
        if self._free:
            number = self._free.pop()
            self._names[number], self._uses[number] = name, 0
        else:
            number = len(self._names)
            self._names.append(name)
            self._uses.append(0)
        self._numbers[name] = number
        return number

    def find(self, name: str) -> int | None:
        """The number of a name that is in use."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """The name behind a number."""
        return self._names[number] or ""

    def __len__(self) -> int:
        """How many there are beside the empty one."""
        return len(self._numbers) - 1

    def look_up(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.object_]:
        """The names behind numbers; None behind 0."""
        distinct, places = np.unique(numbers, return_inverse=True)
        names = [self._names[number] or None for number in distinct.tolist()]
        return np.array(names, dtype=np.object_)[places]

    def uses(self, number: int) -> int:
        """How many rows name it."""
        return self._uses[number]

    def use(self, number: int, count: int) -> None:
        """`count` more rows name it; with a negative count, fewer."""
        self._uses[number] += count
        if number and not self._uses[number]:
            name = self.name(number)
            del self._numbers[name]
            self.size_bytes -= _size(name)
            self._names[number] = None
            self._free.append(number)

    def unuse_all(self, numbers: NDArray[np.integer[Any]]) -> None:
        """One use fewer for each row's name."""
        if len(numbers) and every(numbers == numbers[0]):
            self.use(int(numbers[0]), -len(numbers))
            return
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self.use(int(number), -int(count))

    def restore(self, names: list[str]) -> None:
        """The same names under the same numbers; those without a name are free."""
        for number, name in enumerate(names[1:], start=1):
            self._names.append(name or None)
            self._uses.append(0)
            if name:
                self._numbers[name] = number
                self.size_bytes += _size(name)
            else:
                self._free.append(number)

    def all(self) -> list[str]:
        """Every name by its number, for translating a column of numbers."""
        return [name or "" for name in self._names]


def _size(name: str) -> int:
    return len(name.encode()) + _NAME_BYTES
