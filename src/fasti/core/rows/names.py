"""Numbers for names that many rows share: owners, consumers, reasons of death.

Number 0 is the empty name. Counted names are forgotten with their last use, so that workers with
ever new names don't fill the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every


class Names:
    """Names to numbers and back. Numbers mean nothing outside this process."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self._names: list[str | None] = [""]
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def number(self, name: str) -> int:
        """The number of a name, given if it is new."""
        known = self._numbers.get(name)
        if known is not None:
            return known
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

    def use(self, number: int, count: int) -> None:
        """`count` more rows name it; with a negative count, fewer."""
        self._uses[number] += count
        if number and not self._uses[number]:
            del self._numbers[self.name(number)]
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
            else:
                self._free.append(number)

    def all(self) -> list[str]:
        """Every name by its number, for translating a column of numbers."""
        return [name or "" for name in self._names]
