"""A bound on the series of one scrape, so that nobody's topics and groups make the page too long.

Every family passes here; what is beyond the bound is left out, and counted. Those that can say the
same in fewer series ask first (`take`), and come last: what tells of the broker as a whole is never
left out for their sake.

A scrape has one of its own. The log has a line when something is left out that was not before, and
none for the scrapes that follow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fasti.broker.logs import fields

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_log = logging.getLogger("fasti.broker.metrics")

SERIES_MAX = 50_000
# So many of a family are never left out: they tell of the broker as a whole.
_FAMILY_MIN = 64


class SeriesBound:
    """How many series one scrape may still have, and how many were left out."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self.left = series_max
        self.left_out = 0

    def pass_on(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Families with as many series as there is room for."""
        for family in families:
            samples = family.samples
            room = max(self.left, _FAMILY_MIN)
            if len(samples) > room:
                self.left_out += len(samples) - room
                family.samples = samples[:room]
            self.left = max(0, self.left - len(family.samples))
            yield family

    def take(self, series: int) -> bool:
        """Whether there is room for so many, which are then promised; else they are left out."""
        if series > self.left:
            self.left_out += series
            return False
        self.left -= series
        return True


class LeftOutNotice:
    """Says in the log that a scrape leaves series out: once, until one leaves out none."""

    def __init__(self) -> None:
        self._said = False

    def note(self, left_out: int, series_max: int) -> None:
        """A scrape is done."""
        if left_out and not self._said:
            _log.warning(
                "metrics: there are more series than one page has; the smallest topics and groups, "
                "and single partitions, are left out",
                extra=fields(left_out=left_out, metrics_series_max=series_max),
            )
        self._said = left_out > 0
