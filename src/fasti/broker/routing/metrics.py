"""Metrics of bindings."""

from __future__ import annotations

from fasti.broker.metrics.counts import OTHER, TOPICS_MAX
from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import Scrape

_TABLE = """
fasti_bindings{topic}        Bindings to other topics, by topic.
fasti_unrouted_total{topic}  What a relay got and no binding fitted, since the start: kept nowhere.
"""


def collect(scrape: Scrape) -> Families:
    """How many bindings there are, and what relays passed on to no topic."""
    families = Families(_TABLE)
    routing = [topic for topic in scrape.topics if topic.bindings or topic.settings.relay]
    for topic in routing[:TOPICS_MAX]:
        families.add("fasti_bindings", topic.name, len(topic.bindings))
        if topic.settings.relay:
            families.add("fasti_unrouted_total", topic.name, topic.unrouted)
    if rest := routing[TOPICS_MAX:]:
        families.add("fasti_bindings", OTHER, sum(len(topic.bindings) for topic in rest))
        families.add("fasti_unrouted_total", OTHER, sum(topic.unrouted for topic in rest))
    return families
