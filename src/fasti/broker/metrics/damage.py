"""What a scrape tells of damage: files, messages that died of it, and scrubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.broker.metrics.families import Families

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_TABLE = """
fasti_damaged_files           Files of the data directory in which damage was found since it was opened.
fasti_corrupt_messages_total  Messages that can't be read any more, and became dead with the reason corrupt.
fasti_scrubbed_bytes_total    Read by scrubs since the start.
fasti_scrub_finished_timestamp_seconds  When the last scrub since the start was complete.
fasti_scrub_findings          Damaged files that it found.
"""


def collect(shard: Shard) -> Families:
    """Called once per scrape."""
    families = Families(_TABLE)
    families.add("fasti_damaged_files", len(shard.store.payloads.damages))
    families.add("fasti_corrupt_messages_total", sum(shard.damage.corrupt.values()))
    families.add("fasti_scrubbed_bytes_total", shard.scrubber.read_bytes)
    last = shard.scrubber.last
    if last is not None and last.finished_us is not None:
        families.add("fasti_scrub_finished_timestamp_seconds", last.finished_us / 1e6)
        families.add("fasti_scrub_findings", len(last.findings))
    return families
