"""Whose clock is off, as one broker sees it: what its own is beside those of the others that live.

The median of all is taken for right, one's own among them: one that is alone is never off. Of two, who is
ahead is off, because early is worse than late; who is behind is off where three or more can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from statistics import median

from fasti.cluster.member_records import Sighting

# So many clocks can tell which one of them is behind.
_CLOCKS_MIN = 3


class MemberClocks:
    """For whoever has the sightings. `alive` are names, this broker's own among them."""

    def __init__(self, own: str, others: Mapping[str, Sighting], max_skew_ms: int) -> None:
        self._own, self._others, self._max_skew_ms = own, others, max_skew_ms

    def ahead_ms(self, name: str, alive: Set[str]) -> float:
        """How far a member's clock is ahead of the median of all that live; not known: 0."""
        clocks = self._known_ms(alive)
        return clocks[name] - median(clocks.values()) if name in clocks else 0.0

    def is_right(self, alive: Set[str]) -> bool:
        """Whether enough others say that this broker's own clock is."""
        known = len(self._known_ms(alive)) >= _CLOCKS_MIN
        return known and abs(self.ahead_ms(self._own, alive)) <= self._max_skew_ms

    def skewed(self, alive: Set[str]) -> tuple[set[str], set[str]]:
        """Whose clocks are ahead by too much, and whose are off either way."""
        ahead_ms = {name: self.ahead_ms(name, alive) for name in alive}
        early = {name for name, ahead in ahead_ms.items() if ahead > self._max_skew_ms}
        if len(self._known_ms(alive)) < _CLOCKS_MIN:
            return early, early
        return early, early | {n for n, ahead in ahead_ms.items() if ahead < -self._max_skew_ms}

    def forget(self) -> None:
        """This broker's own clock leapt: those of the others are not known until their next beats."""
        for other in self._others.values():
            other.forget_clock()

    def _known_ms(self, alive: Set[str]) -> dict[str, float]:
        """How far clocks are ahead of this broker's own."""
        clocks = {self._own: 0.0}
        for name in alive - {self._own}:
            ahead_us = self._others[name].ahead_us
            if ahead_us is not None:
                clocks[name] = ahead_us / 1000
        return clocks
