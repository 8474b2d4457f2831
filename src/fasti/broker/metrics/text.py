"""The broker's metrics in Prometheus' text format, built anew for each scrape.

What the service counted comes from `Metrics`; the rest is read from the shard at this moment. The
counts per state are asked of the sequencer in small pieces, a step for each, so that a scrape of
ten thousand topics doesn't hold up what is due.

A scrape of a shard that has failed, or hangs, still answers, without what only its engine knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fasti.broker.clock import ClockState, EngineClock
from fasti.broker.cron import metrics as cron_metrics
from fasti.broker.kv import metrics as kv_metrics
from fasti.broker.log import metrics as log_metrics
from fasti.broker.memory import anonymous_bytes
from fasti.broker.metrics import damage
from fasti.broker.metrics import shares as share_metrics
from fasti.broker.metrics.counts import OTHER, Distribution, Metrics, TopicCounts, series_of
from fasti.broker.metrics.series import SeriesBound
from fasti.broker.routing import metrics as routing_metrics
from fasti.broker.sinks import metrics as sink_metrics
from fasti.core.commands import Count
from fasti.core.queries import ReadTopics, TopicView
from fasti.core.traits import KINDS
from fasti.errors import FastiError, Overloaded
from fasti.model import SECOND_US, Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_WORDS = [outcome.word for outcome in Outcome]
_PENDING = ("scheduled", "ready", "leased", "dead", "staged")
_FINISHED = ("done", "cancelled")
# Partitions that are counted in one step, each in some microseconds.
_PARTITIONS_PER_CALL = 64
_COUNT_TIMEOUT_S = 10.0
# A scrape that has to wait longer for others is refused.
_SCRAPE_WAIT_S = 8.0

States = dict[str, dict[str, int]]


def write(metrics: Metrics, shard: Shard) -> str:
    """One scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BrokerCollector(metrics, shard))
    ProcessCollector(registry=registry)
    # One at a time: whoever asks a hundred times at once takes the memory of one page.
    if not metrics.scraping.acquire(timeout=_SCRAPE_WAIT_S):
        raise Overloaded("other scrapes are under way", retry_after_us=SECOND_US)
    try:
        return generate_latest(registry).decode()
    finally:
        metrics.scraping.release()


class _BrokerCollector(Collector):
    def __init__(self, metrics: Metrics, shard: Shard) -> None:
        self._metrics, self._shard = metrics, shard

    def collect(self) -> Iterator[Metric]:
        series_max = self._metrics.series_max
        bound = SeriesBound(series_max)
        answers = self._shard.pulse.beats()
        yield from bound.pass_on(self._all(answers))
        if answers:
            # Those of logs make room for themselves, with what the others left.
            yield from log_metrics.collect(self._shard, bound)
        yield GaugeMetricFamily(
            "fasti_metrics_series_left_out",
            "Series that this page would have beyond metrics_series_max.",
            bound.left_out,
        )
        self._metrics.notice.note(bound.left_out, series_max)

    def _all(self, answers: bool) -> Iterator[Metric]:
        yield InfoMetricFamily("fasti_build", "The running version.", {"version": version("fasti")})
        known_before = self._metrics.named()
        try:
            if not answers:
                raise TimeoutError
            counted, oldest = _count_states(self._shard)
            states = _inboxes_as_one(counted)
        except (FastiError, TimeoutError):
            # The shard has failed, hangs or is closing: what the service counted is still true.
            yield GaugeMetricFamily("fasti_up", "Whether the shard answers.", 0)
        else:
            yield GaugeMetricFamily("fasti_up", "Whether the shard answers.", 1)
            self._metrics.forget(known_before - set(states))
            named = self._metrics.name(sorted(states))
            yield from _states(_folded(states, named))
            yield _oldest(oldest, named, self._shard.clock.now_us())
            yield _consumers(self._metrics.consumers(), named)
            yield from _paused(self._shard, named)
            yield _unopened(self._shard, named)
        yield from _topics(self._metrics.topics())
        yield from _service(self._metrics)
        yield from _clock(self._shard.clock)
        if self._metrics.shares is not None:
            yield from share_metrics.collect(self._metrics.shares)
        yield from _journal(self._shard)
        yield from _checkpoints(self._shard)
        yield from _memory(self._shard)
        yield from _disk(self._shard)
        yield from _threads(self._shard)
        yield from damage.collect(self._shard)
        # Each of them would wait for the shard in vain, and whoever scrapes for all of them.
        if answers:
            for kind in (kv_metrics, cron_metrics, routing_metrics, sink_metrics):
                yield from kind.collect(self._shard)


def _count_states(shard: Shard) -> tuple[States, dict[str, int | None]]:
    """Messages by state of every topic, a piece at a time; and since when the oldest is ready."""
    topics: list[TopicView] = shard.ask(ReadTopics()).result(_COUNT_TIMEOUT_S)
    states: States = {}
    oldest: dict[str, int | None] = {}
    waiting: list[str] = []
    partitions = 0
    logs = {topic.name for topic in topics if KINDS[topic.settings.kind].has_groups}
    queues = {topic.name for topic in topics if KINDS[topic.settings.kind].is_queue}
    for place, view in enumerate(topics, 1):
        waiting.append(view.name)
        partitions += view.settings.partitions
        if partitions >= _PARTITIONS_PER_CALL or place == len(topics):
            replies = shard.submit([Count(topic) for topic in waiting]).result(_COUNT_TIMEOUT_S)
            for topic, reply in zip(waiting, replies, strict=True):
                # One that was deleted since is left out.
                if reply.error is None:
                    states[topic] = reply.states
                    if topic in queues:
                        oldest[topic] = reply.oldest_ready_us
                    if topic in logs:
                        # Rows of a log stay when they were read: they are no backlog.
                        states[topic]["ready"] = 0
            waiting, partitions = [], 0
    return states, oldest


def _inboxes_as_one(states: States) -> States:
    """With the inboxes of all callers added up."""
    found: States = {}
    for topic, counts in states.items():
        name = series_of(topic)
        known = found.get(name)
        if known is None:
            found[name] = counts
        else:
            found[name] = {word: known[word] + counts[word] for word in known}
    return found


def _paused(shard: Shard, named: set[str]) -> Iterator[Metric]:
    paused = GaugeMetricFamily(
        "fasti_topic_paused",
        "1 for a topic that hands nothing out until it is resumed.",
        labels=["topic"],
    )
    topics = list(shard.engine.state.topics.values())
    for name in sorted(topic.name for topic in topics if topic.paused and topic.name in named):
        paused.add_metric([name], 1)
    yield paused


def _unopened(shard: Shard, named: set[str]) -> Metric:
    family = CounterMetricFamily(
        "fasti_leases_unopened",
        "Leases that ended at consumers that fell silent, since the start: no attempts.",
        labels=["topic"],
    )
    counts: Counter[str] = Counter()
    for topic in list(shard.engine.state.topics.values()):
        series = series_of(topic.name)
        counts[series if series in named else OTHER] += topic.unopened
    for series, count in sorted(counts.items()):
        family.add_metric([series], count)
    return family


def _folded(states: States, named: set[str]) -> States:
    """With the topics that have no series of their own added up."""
    shown = {topic: counts for topic, counts in sorted(states.items()) if topic in named}
    rest = [counts for topic, counts in states.items() if topic not in named]
    if rest:
        shown[OTHER] = {word: sum(counts[word] for counts in rest) for word in rest[0]}
    return shown


def _states(states: States) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "fasti_messages", "Messages that are there, by state.", labels=["topic", "state"]
    )
    finished = CounterMetricFamily(
        "fasti_messages_finished",
        "Messages that ever ended, also before this start.",
        labels=["topic", "state"],
    )
    for topic, counts in states.items():
        for word in _PENDING:
            pending.add_metric([topic, word], counts[word])
        for word in _FINISHED:
            finished.add_metric([topic, word], counts[word])
    yield pending
    yield finished


def _oldest(oldest: dict[str, int | None], named: set[str], now_us: int) -> Metric:
    """0 where nothing is ready, so that an alarm has something to compare with."""
    family = GaugeMetricFamily(
        "fasti_oldest_ready_age_seconds",
        "How long the oldest message that is ready has been due.",
        labels=["topic"],
    )
    ages: dict[str, float] = {}
    for topic, due_us in oldest.items():
        series = series_of(topic)
        series = series if series in named else OTHER
        age = 0.0 if due_us is None else max(0, now_us - due_us) / 1e6
        ages[series] = max(ages.get(series, 0.0), age)
    for series, age in sorted(ages.items()):
        family.add_metric([series], age)
    return family


def _consumers(counts: dict[str, int], named: set[str]) -> Metric:
    family = GaugeMetricFamily(
        "fasti_consumers", "Consumers' sessions that are open, by topic.", labels=["topic"]
    )
    shown = dict.fromkeys(sorted(named), 0)
    for topic, count in counts.items():
        series = topic if topic in named else OTHER
        shown[series] = shown.get(series, 0) + count
    for series, count in shown.items():
        family.add_metric([series], count)
    return family


def _topics(topics: dict[str, TopicCounts]) -> Iterator[Metric]:
    mutations = CounterMetricFamily(
        "fasti_mutations",
        "Rows of mutations, by what became of them.",
        labels=["op", "topic", "status"],
    )
    delivered = CounterMetricFamily(
        "fasti_delivered_messages", "Leased messages sent to consumers.", labels=["topic"]
    )
    lateness = HistogramMetricFamily(
        "fasti_lateness_seconds",
        "From max(due, produced) to user code, as consumers report it.",
        labels=["topic"],
    )
    for topic, counts in topics.items():
        for op, by_status in sorted(counts.mutated.items()):
            for status, count in enumerate(by_status.tolist()):
                if count:
                    mutations.add_metric([op, topic, _WORDS[status]], count)
        delivered.add_metric([topic], counts.delivered)
        if any(counts.lateness.counts):
            lateness.add_metric([topic], counts.lateness.cumulative(), counts.lateness.total)
    yield mutations
    yield delivered
    yield lateness


def _connections(metrics: Metrics) -> Iterator[Metric]:
    connections, strangers, ended_by_reason = metrics.connections()
    yield GaugeMetricFamily("fasti_connections", "Connections of clients.", connections)
    yield GaugeMetricFamily(
        "fasti_connections_waiting", "Those of which no call was let in yet.", strangers
    )
    ended = CounterMetricFamily(
        "fasti_connections_ended", "Connections that the broker ended.", labels=["why"]
    )
    for why in ("bytes_before_call", "no_call_in_time", "too_many_waiting", "request_too_large"):
        ended.add_metric([why], ended_by_reason.get(why, 0))
    yield ended


def _service(metrics: Metrics) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        "fasti_refusals", "Commands refused as a whole.", labels=["op", "code", "caller"]
    )
    for labels, count in metrics.refusals().items():
        refusals.add_metric(list(labels), count)
    yield refusals
    yield CounterMetricFamily(
        "fasti_unauthenticated_calls",
        "Calls without a token that is known here.",
        metrics.unauthenticated_calls(),
    )
    yield from _connections(metrics)
    opened, now_open = metrics.sessions()
    yield CounterMetricFamily("fasti_sessions_opened", "Consumers' sessions ever opened.", opened)
    yield GaugeMetricFamily("fasti_sessions", "Consumers' sessions that are open.", now_open)
    yield CounterMetricFamily(
        "fasti_sessions_ended_silent",
        "Consumers' sessions that were ended because nothing came from them.",
        metrics.silent_sessions(),
    )
    yield GaugeMetricFamily(
        "fasti_start_recovery_seconds",
        "How long opening the data directory took at the start.",
        metrics.recovery_seconds,
    )


def _clock(clock: EngineClock) -> Iterator[Metric]:
    stepped = CounterMetricFamily(
        "fasti_clock_steps", "Leaps of the wall clock.", labels=["direction"]
    )
    for direction, count in clock.steps.items():
        stepped.add_metric([direction], count)
    yield stepped
    yield GaugeMetricFamily(
        "fasti_clock_last_step_seconds",
        "The last leap: ahead, or back if negative.",
        clock.last_step_us / 1e6,
    )
    reading = clock.read()
    yield GaugeMetricFamily(
        "fasti_clock_offset_seconds",
        "The wall clock less the broker's clock.",
        (reading.wall_us - reading.now_us) / 1e6,
    )
    state = GaugeMetricFamily(
        "fasti_clock_state", "How the broker's clock goes: 1 for one of them.", labels=["state"]
    )
    for each in ClockState:
        state.add_metric([each], reading.state is each)
    yield state


def _journal(shard: Shard) -> Iterator[Metric]:
    committer = shard.committer
    yield _histogram("fasti_journal_sync_seconds", "Syncs of the journal.", committer.sync_times)
    yield GaugeMetricFamily(
        "fasti_journal_waiting_commits", "Steps that wait to be written.", committer.waiting_steps
    )
    yield GaugeMetricFamily(
        "fasti_journal_waiting_bytes", "Bytes of those steps.", committer.waiting_bytes
    )
    yield GaugeMetricFamily(
        "fasti_journal_since_checkpoint_bytes",
        "Journal since the last checkpoint began.",
        committer.written_bytes,
    )
    yield GaugeMetricFamily(
        "fasti_inbox_rows", "Rows that wait for the sequencer.", shard.inbox_rows
    )
    yield GaugeMetricFamily("fasti_inbox_rows_max", "How many may.", shard.settings.inbox_rows_max)
    yield CounterMetricFamily(
        "fasti_recoveries",
        "Failed writes, syncs and steps that the shard got over.",
        shard.recoveries,
    )
    faults = CounterMetricFamily(
        "fasti_faults",
        "Commands that the engine failed on, and whether it was kept (only the command is refused).",
        labels=["command", "engine"],
    )
    for (command, engine), count in sorted(shard.faults.counts().items()):
        faults.add_metric([command, engine], count)
    yield faults


def _checkpoints(shard: Shard) -> Iterator[Metric]:
    keeper = shard.housekeeper
    yield _histogram("fasti_checkpoint_seconds", "Checkpoints.", keeper.checkpoint_times)
    yield GaugeMetricFamily(
        "fasti_checkpoint_age_seconds",
        "Since the last checkpoint, or the opening.",
        keeper.checkpoint_age_s,
    )
    counters: list[tuple[str, str, Callable[[], float]]] = [
        ("fasti_checkpoint_failures", "Given up; tried again later.", lambda: keeper.failures),
        ("fasti_checkpoint_written_bytes", "Written by them.", lambda: keeper.written_bytes),
        ("fasti_compacted_blocks", "Blocks put out of force.", lambda: keeper.compacted_blocks),
        ("fasti_compacted_bytes", "Bytes of those blocks.", lambda: keeper.compacted_bytes),
    ]
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value())


def _memory(shard: Shard) -> Iterator[Metric]:
    memory = shard.engine.memory
    parts = memory.parts()
    yield GaugeMetricFamily(
        "fasti_memory_used_bytes", "What counts into the memory budget.", sum(parts.values())
    )
    by_part = GaugeMetricFamily(
        "fasti_memory_bytes", "The same by what it is for.", labels=["part"]
    )
    for part, size in parts.items():
        by_part.add_metric([part], size)
    yield by_part
    resident_bytes = anonymous_bytes()
    if resident_bytes:
        yield GaugeMetricFamily(
            "fasti_memory_resident_bytes",
            "Memory of the process that is its own: without mapped files.",
            resident_bytes,
        )
    yield GaugeMetricFamily("fasti_memory_budget_bytes", "What it may be.", memory.budget_bytes)
    yield GaugeMetricFamily("fasti_leases", "Leases that are out.", memory.leases.active)
    yield GaugeMetricFamily("fasti_leases_max", "How many may be.", shard.settings.leases_max)


def _disk(shard: Shard) -> Iterator[Metric]:
    sizes = GaugeMetricFamily(
        "fasti_storage_bytes",
        "On disk: the journal, what of it only the change feed needs, and blocks.",
        labels=["part"],
    )
    for part, size in shard.store.sizes().items():
        sizes.add_metric([part], size)
    yield sizes
    yield GaugeMetricFamily(
        "fasti_disk_free_bytes", "What the data directory's disk has left.", shard.free_bytes()
    )
    yield GaugeMetricFamily(
        "fasti_storage_full",
        "Whether producing is refused because the disk is full.",
        float(shard.room.full),
    )
    yield GaugeMetricFamily(
        "fasti_directory_copied",
        "Whether the data directory looked like a copy of another when it was opened.",
        float(shard.is_copy),
    )


def _threads(shard: Shard) -> Iterator[Metric]:
    stalled = GaugeMetricFamily(
        "fasti_thread_stalled_seconds",
        "For how long a thread has made no progress though it has work; 0: it works.",
        labels=["thread"],
    )
    died = CounterMetricFamily(
        "fasti_thread_deaths", "Faults of the program that ended a thread.", labels=["thread"]
    )
    for name, seconds in sorted(shard.threads.stalls().items()):
        stalled.add_metric([name], seconds)
    for name, count in sorted(shard.threads.deaths.items()):
        died.add_metric([name], count)
    yield stalled
    yield died


def _histogram(name: str, text: str, seen: Distribution) -> Metric:
    made = HistogramMetricFamily(name, text)
    made.add_metric([], seen.cumulative(), seen.total)
    return made
