"""The page of a process with several shards: what is a shard's has its number as a label, first.

What belongs to the process (connections, limits that callers share, the clock, memory of the process,
threads) stands there once, without that label. Where there is one shard the page is as text.py has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from fasti.broker.metrics import cluster
from fasti.broker.metrics import shares as share_metrics
from fasti.broker.metrics.text import (
    BrokerCollector,
    one_scrape,
    service_families,
    shard_families,
)
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.host import Host

# By the names of families: without `_total`.
_OF_THE_SERVICE = frozenset(
    (
        "fasti_unauthenticated_calls",
        *("fasti_connections", "fasti_connections_waiting", "fasti_connections_ended"),
        *("fasti_sessions_ended_silent", "fasti_start_recovery_seconds"),
    )
)
_OF_THE_SHARD = frozenset(
    (
        *("fasti_clock_steps", "fasti_clock_last_step_seconds"),
        *("fasti_clock_offset_seconds", "fasti_clock_state"),
        *("fasti_memory_resident_bytes", "fasti_memory_heap_bytes"),
        *("fasti_thread_stalled_seconds", "fasti_thread_deaths", "fasti_disk_free_bytes"),
    )
)
_OF_THE_PROCESS = _OF_THE_SERVICE | _OF_THE_SHARD | {"fasti_build"}


def write(host: Host) -> str:
    """One scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HostCollector(host))
    ProcessCollector(registry=registry)
    return one_scrape(host.metrics, lambda: generate_latest(registry).decode())


class _HostCollector(Collector):
    def __init__(self, host: Host) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        yield from self._of_process()
        families: dict[str, Metric] = {}
        for number, service in sorted(self._host.services.items()):
            collector = BrokerCollector(service.metrics, service.placement.catalogue)
            for family in collector.collect():
                if family.name not in _OF_THE_PROCESS:
                    _label(family, str(number))
                    known = families.setdefault(family.name, family)
                    if known is not family:
                        known.samples += family.samples
        yield from families.values()

    def _of_process(self) -> Iterator[Metric]:
        host = self._host
        yield from BrokerCollector.build()
        yield from _only(service_families(host.metrics), _OF_THE_SERVICE)
        yield from share_metrics.collect(host.first.shares)
        if host.cluster_view is not None:
            # One that has just come has nothing to tell yet.
            with suppress(FastiError):
                yield from cluster.collect(host.cluster_view())
        for first in host.all_shards()[:1]:
            yield from _only(shard_families(first), _OF_THE_SHARD)


def _only(families: Iterable[Metric], names: frozenset[str]) -> Iterator[Metric]:
    return (family for family in families if family.name in names)


def _label(family: Metric, shard: str) -> None:
    family.samples = [
        Sample(sample.name, {"shard": shard, **sample.labels}, *sample[2:])
        for sample in family.samples
    ]
