"""What callers use of the limits that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.broker.metrics.counts import OTHER
from fasti.broker.metrics.families import Families

if TYPE_CHECKING:
    from fasti.broker.shares import Shares

# Of each limit, the callers that have most of it have series of their own; the others are one.
_CALLERS_MAX = 20
_TABLE = """
fasti_limit_used{limit,caller}            What callers hold of a limit.
fasti_limit_max{limit}                    How much they all may hold together.
fasti_limit_refusals_total{limit,caller}  Refusals because a caller had its share, or all was in use.
"""


def collect(shares: Shares) -> Families:
    """How much is used, how much may be, and how often more was refused."""
    families = Families(_TABLE)
    for limit, share in shares.named().items():
        families.add("fasti_limit_max", limit, share.bound.most)
        for caller, count in _largest(share.held()).items():
            families.add("fasti_limit_used", limit, caller, count)
        for caller, count in sorted(share.refusals().items()):
            families.add("fasti_limit_refusals_total", limit, caller, count)
    return families


def _largest(counts: dict[str, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest = dict(ordered[:_CALLERS_MAX])
    rest = sum(count for _, count in ordered[_CALLERS_MAX:])
    return largest | {OTHER: largest.get(OTHER, 0) + rest} if rest else largest
