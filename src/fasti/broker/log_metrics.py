"""Metrics of logs and their groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

if TYPE_CHECKING:
    from fasti.broker.shard import Shard


def collect(shard: Shard) -> Iterator[Metric]:
    """All that there are."""
    yield from ()
