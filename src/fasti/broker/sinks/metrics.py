"""Metrics of sinks: what is staged, and how far the latest of them are."""

from __future__ import annotations

from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import TIMEOUT_S, Scrape
from fasti.core.sinks.commands import SinkSums, SumSinks

# So many sinks have series of their own: those that published last.
_NAMED = 50
_TABLE = """
fasti_stages             Stages that nobody has published (yet).
fasti_staged_rows        Rows of stages that are not published.
fasti_stages_publishing  Stages that are published and being carried out.
fasti_sinks              Sinks whose last batch is remembered.
fasti_sink_batch{sink}   The last batch of a sink that was published.
fasti_sink_busy{sink}    Whether a sink's last batch is still carried out.
"""


def collect(scrape: Scrape) -> Families:
    """All sinks together, and the latest by name."""
    families = Families(_TABLE)
    sums: SinkSums = scrape.shard.ask(SumSinks(_NAMED)).result(TIMEOUT_S)
    families.add("fasti_stages", sums.stages)
    families.add("fasti_staged_rows", sums.rows)
    families.add("fasti_stages_publishing", sums.publishing)
    families.add("fasti_sinks", sums.sinks)
    for name, batch, done in sums.latest:
        families.add("fasti_sink_batch", name, batch)
        families.add("fasti_sink_busy", name, not done)
    return families
