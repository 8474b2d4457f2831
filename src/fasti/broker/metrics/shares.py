"""What callers use of the limits that they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from fasti.broker.shares import Shares

# Of each limit, the callers that have most of it have series of their own; the others are one.
_CALLERS_MAX = 20
_OTHERS = "_other"


def collect(shares: Shares) -> Iterator[Metric]:
    """How much is used, how much may be, and how often more was refused."""
    used = GaugeMetricFamily(
        "fasti_limit_used", "What callers hold of a limit.", labels=["limit", "caller"]
    )
    most = GaugeMetricFamily(
        "fasti_limit_max", "How much they all may hold together.", labels=["limit"]
    )
    refusals = CounterMetricFamily(
        "fasti_limit_refusals",
        "Refusals because a caller had its share, or all was in use.",
        labels=["limit", "caller"],
    )
    for name, share in shares.named().items():
        most.add_metric([name], share.bound.most)
        for caller, count in _largest(share.held()).items():
            used.add_metric([name, caller], count)
        for caller, count in sorted(share.refusals().items()):
            refusals.add_metric([name, caller], count)
    yield used
    yield most
    yield refusals


def _largest(counts: dict[str, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = dict(ordered[:_CALLERS_MAX])
    rest = sum(count for _, count in ordered[_CALLERS_MAX:])
    return found | {_OTHERS: found.get(_OTHERS, 0) + rest} if rest else found
