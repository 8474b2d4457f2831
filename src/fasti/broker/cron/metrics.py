"""Metrics of schedules."""

from __future__ import annotations

from fasti.broker.metrics.counts import TOPICS_MAX
from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import Scrape
from fasti.core.cron.commands import ScheduleSums, SumSchedules

_TABLE = """
fasti_schedules{topic,state}         Schedules, and whether they rest.
fasti_schedule_fired_total{topic}    Messages that schedules emitted.
fasti_schedule_skipped_total{topic}  Occurrences that a policy passed over.
fasti_schedule_misfired_total        Occurrences that were missed, since the start.
fasti_schedule_failures_total        Attempts to fire that failed and are repeated.
fasti_schedule_target_missing_total  Of those, because the target topic was not there.
fasti_schedule_late_seconds_bucket   From an occurrence until its message was durable; 0 if emitted ahead.
"""


def collect(scrape: Scrape) -> Families:
    """Called once per scrape."""
    families = Families(_TABLE)
    for topic, reply in scrape.ask_all(scrape.of_kind("cron")[:TOPICS_MAX], SumSchedules):
        sums: ScheduleSums = reply.value
        families.add("fasti_schedules", topic.name, "active", sums.schedules - sums.paused)
        families.add("fasti_schedules", topic.name, "paused", sums.paused)
        families.add("fasti_schedule_fired_total", topic.name, sums.emitted)
        families.add("fasti_schedule_skipped_total", topic.name, sums.skipped)
    counts = scrape.shard.fire_counts
    families.add("fasti_schedule_misfired_total", counts.misfired)
    families.add("fasti_schedule_failures_total", counts.failed)
    families.add("fasti_schedule_target_missing_total", counts.target_missing)
    families.add("fasti_schedule_late_seconds_bucket", counts.late)
    return families
