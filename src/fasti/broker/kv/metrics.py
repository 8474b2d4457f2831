"""Metrics of key-value topics: how many entries there are, of a bounded number of topics."""

from __future__ import annotations

from fasti.broker.metrics.counts import TOPICS_MAX
from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import Scrape
from fasti.core.kv.commands import KvDescribe

_TABLE = """
fasti_kv_entries{topic}                Entries that are there.
fasti_kv_expiring_entries{topic}       Entries that have a time to live.
fasti_kv_removed_entries_total{topic}  Entries that were deleted or have expired, also before this start.
"""


def collect(scrape: Scrape) -> Families:
    """Called once per scrape."""
    families = Families(_TABLE)
    for topic, reply in scrape.ask_all(scrape.of_kind("kv")[:TOPICS_MAX], KvDescribe):
        families.add("fasti_kv_entries", topic.name, reply.value["entries"])
        families.add("fasti_kv_expiring_entries", topic.name, reply.value["expiring"])
        families.add("fasti_kv_removed_entries_total", topic.name, reply.value["removed"])
    return families
