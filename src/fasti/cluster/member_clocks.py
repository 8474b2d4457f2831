"""How the clocks of members stand beside each other, as one of them sees them: by their beats.

Pure. The median of all that live is taken for the time. Of two, who is ahead is off, because early is worse
than late; who is behind is off where three or more can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from fasti.cluster.member_records import Sighting

# So many clocks can tell which one of them is behind.
_CLOCKS_MIN = 3


class Skew(NamedTuple):
    """Whose clocks are ahead by too much, and whose are off, either way."""

    early: set[str]
    off: set[str]


class MemberClocks:
    """Of this broker and the others. `alive` are the members that live, this one among them."""

    def __init__(self, own: str, others: Mapping[str, Sighting], max_skew_ms: float) -> None:
        self._own, self._others, self._max_skew_ms = own, others, max_skew_ms

    def was_set(self) -> None:
        """This broker's own clock leapt: those of the others are not known until their next beats."""
        for other in self._others.values():
            other.forget_clock()

    def ahead_ms(self, name: str, alive: set[str]) -> float:
        """How far a member's clock is ahead of the median of all that live; not known: 0."""
        clocks = self._ahead_of_own(alive)
        return clocks[name] - median(clocks.values()) if name in clocks else 0.0

    def is_right(self, alive: set[str]) -> bool:
        """Whether enough others say that this broker's clock is."""
        known = len(self._ahead_of_own(alive)) >= _CLOCKS_MIN
        return known and abs(self.ahead_ms(self._own, alive)) <= self._max_skew_ms

    def skew(self, alive: set[str]) -> Skew:
        """Of all that live."""
        ahead_ms = {name: self.ahead_ms(name, alive) for name in alive}
        early = {name for name, ahead in ahead_ms.items() if ahead > self._max_skew_ms}
        if len(self._ahead_of_own(alive)) < _CLOCKS_MIN:
            return Skew(early, early)
        late = {name for name, ahead in ahead_ms.items() if ahead < -self._max_skew_ms}
        return Skew(early, early | late)

    def _ahead_of_own(self, alive: set[str]) -> dict[str, float]:
        """How far the clocks that are known are ahead of this broker's own, in milliseconds."""
        clocks = {self._own: 0.0}
        for other in alive - {self._own}:
            ahead_us = self._others[other].ahead_us
            if ahead_us is not None:
                clocks[other] = ahead_us / 1000
        return clocks
