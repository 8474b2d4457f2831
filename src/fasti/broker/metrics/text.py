"""The broker's metrics in Prometheus' text format, built anew for each scrape.

What the service counted comes from `Metrics`; the rest is read from the shard at this moment.

A scrape of a shard that has failed, or hangs, still answers, without what only its engine knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fasti.broker.clock import ClockState, EngineClock
from fasti.broker.cron import metrics as cron_metrics
from fasti.broker.kv import metrics as kv_metrics
from fasti.broker.log import metrics as log_metrics
from fasti.broker.memory import anonymous_bytes, heap_bytes
from fasti.broker.metrics import damage
from fasti.broker.metrics import shares as share_metrics
from fasti.broker.metrics.counts import OTHER, Metrics, series_of
from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import Scrape
from fasti.broker.metrics.series import SeriesBound
from fasti.broker.routing import metrics as routing_metrics
from fasti.broker.sinks import metrics as sink_metrics
from fasti.core.commands import Count
from fasti.core.queries import TopicView
from fasti.core.replies import Counts
from fasti.core.traits import KINDS
from fasti.errors import FastiError, Overloaded
from fasti.model import SECOND_US, Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_WORDS = [outcome.word for outcome in Outcome]
_PENDING = ("scheduled", "ready", "leased", "dead", "staged")
_FINISHED = ("done", "cancelled")
_ENDINGS = ("bytes_before_call", "no_call_in_time", "too_many_waiting", "request_too_large")
# A scrape that has to wait longer for others is refused.
_SCRAPE_WAIT_S = 8.0
# The rooms that ask the engine for what they tell.
_ROOMS = (
    kv_metrics.collect,
    cron_metrics.collect,
    routing_metrics.collect,
    sink_metrics.collect,
)

_OF_TOPICS = """
fasti_messages{topic,state}                 Messages that are there, by state.
fasti_messages_finished_total{topic,state}  Messages that ever ended, also before this start.
fasti_oldest_ready_age_seconds{topic}       How long the oldest message that is ready has been due.
fasti_consumers{topic}                      Consumers' sessions that are open, by topic.
fasti_topic_paused{topic}                   1 for a topic that hands nothing out until it is resumed.
fasti_leases_unopened_total{topic}          Leases that ended at consumers that fell silent, since the start: no attempts.
"""
_OF_THE_SERVICE = """
fasti_mutations_total{op,topic,status}  Rows of mutations, by what became of them.
fasti_delivered_messages_total{topic}   Leased messages sent to consumers.
fasti_lateness_seconds_bucket{topic}    From max(due, produced) to user code, as consumers report it.
fasti_refusals_total{op,code,caller}    Commands refused as a whole.
fasti_unauthenticated_calls_total       Calls without a token that is known here.
fasti_connections                       Connections of clients.
fasti_connections_waiting               Those of which no call was let in yet.
fasti_connections_ended_total{why}      Connections that the broker ended.
fasti_sessions_opened_total             Consumers' sessions ever opened.
fasti_sessions                          Consumers' sessions that are open.
fasti_sessions_ended_silent_total       Consumers' sessions that were ended because nothing came from them.
fasti_start_recovery_seconds            How long opening the data directory took at the start.
"""
_OF_THE_SHARD = """
fasti_clock_steps_total{direction}      Leaps of the wall clock.
fasti_clock_last_step_seconds           The last leap: ahead, or back if negative.
fasti_clock_offset_seconds              The wall clock less the broker's clock.
fasti_clock_state{state}                How the broker's clock goes: 1 for one of them.
fasti_journal_sync_seconds_bucket       Syncs of the journal.
fasti_journal_waiting_commits           Steps that wait to be written.
fasti_journal_waiting_bytes             Bytes of those steps.
fasti_journal_since_checkpoint_bytes    Journal since the last checkpoint began.
fasti_inbox_rows                        Rows that wait for the sequencer.
fasti_inbox_rows_max                    How many may.
fasti_no_quorum                         Whether the shard waits because too few servers answer that keep its journal.
fasti_outages_total                     How often it began to wait for them.
fasti_recoveries_total                  Failed writes, syncs and steps that the shard got over.
fasti_stalls_total{cause,command}       What held messages up for long, by cause; of steps, by what took longest.
fasti_faults_total{command,engine}      Commands that the engine failed on, and whether it was kept (only the command is refused).
fasti_checkpoint_seconds_bucket         Checkpoints.
fasti_checkpoint_age_seconds            Since the last checkpoint, or the opening.
fasti_checkpoint_failures_total         Given up; tried again later.
fasti_checkpoint_written_bytes_total    Written by them.
fasti_compacted_blocks_total            Blocks put out of force.
fasti_compacted_bytes_total             Bytes of those blocks.
fasti_memory_used_bytes                 What counts into the memory budget.
fasti_memory_bytes{part}                The same by what it is for.
fasti_memory_resident_bytes             Memory of the process that is its own: without mapped files.
fasti_memory_heap_bytes{state}          What the C library has allocated (used), and keeps of what was freed (free).
fasti_memory_budget_bytes               What it may be.
fasti_leases                            Leases that are out.
fasti_leases_max                        How many may be.
fasti_storage_bytes{part}               On disk: the journal, what of it only the change feed needs, and blocks.
fasti_disk_free_bytes                   What the data directory's disk has left.
fasti_storage_full                      Whether producing is refused because the disk is full.
fasti_directory_copied                  Whether the data directory looked like a copy of another when it was opened.
fasti_thread_stalled_seconds{thread}    For how long a thread has made no progress though it has work; 0: it works.
fasti_thread_deaths_total{thread}       Faults of the program that ended a thread.
"""
_UP = "fasti_up  Whether the shard answers."
_LEFT_OUT = (
    "fasti_metrics_series_left_out  Series that this page would have beyond metrics_series_max."
)


def write(metrics: Metrics, shard: Shard) -> str:
    """One scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(metrics, shard))
    ProcessCollector(registry=registry)
    return one_scrape(metrics, lambda: generate_latest(registry).decode())


def one_scrape(metrics: Metrics, scrape: Callable[[], str]) -> str:
    """One at a time: a hundred scrapes at once take the memory of one page. Raises `overloaded`."""
    if not metrics.scraping.acquire(timeout=_SCRAPE_WAIT_S):
        raise Overloaded("other scrapes are under way", retry_after_us=SECOND_US)
    try:
        return scrape()
    finally:
        metrics.scraping.release()


class BrokerCollector(Collector):
    """What a page tells of one shard and its service."""

    def __init__(self, metrics: Metrics, shard: Shard) -> None:
        self._metrics, self._shard = metrics, shard

    def collect(self) -> Iterator[Metric]:
        series_max = self._metrics.series_max
        bound = SeriesBound(series_max)
        scrape = Scrape(self._shard, bound)
        yield from bound.pass_on(self._all(scrape))
        if scrape.answers:
            # Logs make room for themselves, with what the others left.
            yield from _room(log_metrics.collect, scrape)
        yield from _one(_LEFT_OUT, bound.left_out)
        self._metrics.notice.note(bound.left_out, series_max)

    @staticmethod
    def build() -> Iterator[Metric]:
        """The version that runs."""
        yield InfoMetricFamily("fasti_build", "The running version.", {"version": version("fasti")})

    def _all(self, scrape: Scrape) -> Iterator[Metric]:
        metrics, shard = self._metrics, self._shard
        yield from self.build()
        before = metrics.named()
        counted: list[tuple[TopicView, Counts]] = []
        try:
            scrape.read_topics()
            counted += scrape.ask_all(scrape.topics, Count)
        except (FastiError, TimeoutError):
            # The shard has failed, hangs or is closing: what the service counted is still true.
            scrape.answers = False
        yield from _one(_UP, scrape.answers)
        if scrape.answers:
            here = {series_of(topic.name) for topic, _ in counted}
            metrics.forget(before - here)
            named = metrics.name(sorted(here))
            yield from _topics(counted, metrics.consumers(), named, shard.clock.now_us())
        yield from service_families(metrics)
        if metrics.shares is not None:
            yield from share_metrics.collect(metrics.shares)
        yield from shard_families(shard)
        yield from damage.collect(shard)
        # Each of them would wait for the shard in vain, and the scrape for all of them.
        if scrape.answers:
            for collect in _ROOMS:
                yield from _room(collect, scrape)


def _room(collect: Callable[[Scrape], Families], scrape: Scrape) -> Iterable[Metric]:
    """What a room tells; nothing if the shard doesn't answer any more."""
    try:
        return collect(scrape)
    except (FastiError, TimeoutError):
        return ()


def _one(line: str, value: float) -> Families:
    families = Families(line)
    families.add(line.split()[0], value)
    return families


def _topics(
    counted: list[tuple[TopicView, Counts]],
    consumers: dict[str, int],
    named: set[str],
    now_us: int,
) -> Families:
    """Topics that have no series of their own, and the inboxes of callers, are added up."""
    families = Families(_OF_TOPICS)
    states: Counter[tuple[str, str]] = Counter()
    unopened: Counter[str] = Counter()
    # 0 where nothing is ready, so that an alarm has something to compare with.
    oldest_s: dict[str, float] = {}
    sessions = dict.fromkeys(sorted(named), 0)
    for topic, counts in counted:
        traits = KINDS[topic.settings.kind]
        series = _series(topic.name, named)
        for word in (*_PENDING, *_FINISHED):
            # Rows of a log stay when they were read: they are no backlog.
            is_backlog = word != "ready" or not traits.has_groups
            states[series, word] += counts.states[word] if is_backlog else 0
        unopened[series] += topic.unopened
        if traits.is_queue:
            since_us = counts.oldest_ready_us
            age_s = 0.0 if since_us is None else max(0, now_us - since_us) / 1e6
            oldest_s[series] = max(oldest_s.get(series, 0.0), age_s)
        if topic.paused and topic.name in named:
            families.add("fasti_topic_paused", topic.name, 1)
    for name, count in consumers.items():
        series = _series(name, named)
        sessions[series] = sessions.get(series, 0) + count
    for (series, word), count in states.items():
        name = "fasti_messages_finished_total" if word in _FINISHED else "fasti_messages"
        families.add(name, series, word, count)
    families.add_all("fasti_oldest_ready_age_seconds", oldest_s)
    families.add_all("fasti_consumers", sessions)
    families.add_all("fasti_leases_unopened_total", unopened)
    return families


def _series(topic: str, named: set[str]) -> str:
    name = series_of(topic)
    return name if name in named else OTHER


def service_families(metrics: Metrics) -> Families:
    """What a service counted."""
    families = Families(_OF_THE_SERVICE)
    for topic, counts in metrics.topics().items():
        for op, by_status in sorted(counts.mutated.items()):
            for status, count in enumerate(by_status.tolist()):
                if count:
                    families.add("fasti_mutations_total", op, topic, _WORDS[status], count)
        families.add("fasti_delivered_messages_total", topic, counts.delivered)
        if any(counts.lateness.counts):
            families.add("fasti_lateness_seconds_bucket", topic, counts.lateness)
    for labels, count in metrics.refusals().items():
        families.add("fasti_refusals_total", *labels, count)
    families.add("fasti_unauthenticated_calls_total", metrics.unauthenticated_calls())
    connections, strangers, ended = metrics.connections()
    families.add("fasti_connections", connections)
    families.add("fasti_connections_waiting", strangers)
    families.add_all("fasti_connections_ended_total", {why: ended.get(why, 0) for why in _ENDINGS})
    opened, now_open = metrics.sessions()
    families.add("fasti_sessions_opened_total", opened)
    families.add("fasti_sessions", now_open)
    families.add("fasti_sessions_ended_silent_total", metrics.silent_sessions())
    families.add("fasti_start_recovery_seconds", metrics.recovery_seconds)
    return families


def shard_families(shard: Shard) -> Families:
    """What a shard tells by itself."""
    families = Families(_OF_THE_SHARD)
    _add_clock(families, shard.clock)
    _add_writing(families, shard)
    memory = shard.engine.memory
    parts = memory.parts()
    families.add("fasti_memory_used_bytes", sum(parts.values()))
    families.add_all("fasti_memory_bytes", parts)
    if resident_bytes := anonymous_bytes():
        families.add("fasti_memory_resident_bytes", resident_bytes)
    families.add_all("fasti_memory_heap_bytes", heap_bytes())
    families.add("fasti_memory_budget_bytes", memory.budget_bytes)
    families.add("fasti_leases", memory.leases.active)
    families.add("fasti_leases_max", shard.settings.leases_max)
    families.add_all("fasti_storage_bytes", shard.store.sizes())
    families.add("fasti_disk_free_bytes", shard.free_bytes())
    families.add("fasti_storage_full", shard.room.full)
    families.add("fasti_directory_copied", shard.is_copy)
    families.add_all("fasti_thread_stalled_seconds", shard.threads.stalls())
    families.add_all("fasti_thread_deaths_total", shard.threads.deaths)
    return families


def _add_clock(families: Families, clock: EngineClock) -> None:
    families.add_all("fasti_clock_steps_total", clock.steps)
    families.add("fasti_clock_last_step_seconds", clock.last_step_us / 1e6)
    reading = clock.read()
    families.add("fasti_clock_offset_seconds", (reading.wall_us - reading.now_us) / 1e6)
    for state in ClockState:
        families.add("fasti_clock_state", state, reading.state is state)


def _add_writing(families: Families, shard: Shard) -> None:
    """The inbox, the journal and checkpoints."""
    committer, keeper = shard.committer, shard.housekeeper
    families.add("fasti_journal_sync_seconds_bucket", committer.sync_times)
    families.add("fasti_journal_waiting_commits", committer.waiting_steps)
    families.add("fasti_journal_waiting_bytes", committer.waiting_bytes)
    families.add("fasti_journal_since_checkpoint_bytes", committer.written_bytes)
    families.add("fasti_inbox_rows", shard.inbox_rows)
    families.add("fasti_inbox_rows_max", shard.settings.inbox_rows_max)
    families.add("fasti_no_quorum", shard.committer.no_quorum is not None)
    families.add("fasti_outages_total", shard.committer.outages)
    families.add("fasti_recoveries_total", shard.recoveries)
    for labels, count in sorted(shard.faults.counts().items()):
        families.add("fasti_faults_total", *labels, count)
    for labels, count in sorted(shard.stalls.counts().items()):
        families.add("fasti_stalls_total", *labels, count)
    families.add("fasti_checkpoint_seconds_bucket", keeper.checkpoint_times)
    families.add("fasti_checkpoint_age_seconds", keeper.checkpoint_age_s)
    families.add("fasti_checkpoint_failures_total", keeper.failures)
    families.add("fasti_checkpoint_written_bytes_total", keeper.written_bytes)
    families.add("fasti_compacted_blocks_total", keeper.compacted_blocks)
    families.add("fasti_compacted_bytes_total", keeper.compacted_bytes)
