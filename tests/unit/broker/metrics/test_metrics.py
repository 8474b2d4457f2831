"""What the broker counts, and how a scrape shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fasti.broker.metrics.counts import Distribution, Metrics
from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.model import Outcome, TopicSettings
from tests.integration.shard_rig import (
    NOW_US,
    SETTINGS,
    FakeClock,
    SharedFiles,
    make_topic,
    produce,
    serving,
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shard(clock: FakeClock) -> Iterator[Shard]:
    with serving(SharedFiles(), clock=clock) as opened:
        yield opened


def scrape(metrics: Metrics, shard: Shard) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text(shard))
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


def statuses(*outcomes: Outcome) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(outcomes, dtype=np.uint8)


def test_a_distribution_counts_values_up_to_each_bound() -> None:
    seen = Distribution((1.0, 10.0))
    seen.add(1.0)
    seen.add_all(np.array([0.5, 2.0, 10.0, 11.0]))
    assert seen.cumulative() == [("1.0", 2), ("10.0", 4), ("+Inf", 5)]
    assert seen.total == 24.5
    before = seen.copy()
    seen.add(1.0)
    assert before.cumulative()[-1] == ("+Inf", 5)


def test_rows_are_counted_by_operation_topic_and_outcome(shard: Shard) -> None:
    make_topic(shard, "a")
    metrics = Metrics()
    metrics.mutated("produce", "a", statuses(Outcome.OK, Outcome.OK, Outcome.CONFLICT))
    metrics.mutated("produce", "a", statuses(Outcome.OK))
    metrics.mutated("ack", "a", statuses(Outcome.STALE_LEASE))
    metrics.delivered("a", 7)
    samples = scrape(metrics, shard)
    name = "fasti_mutations_total"
    assert value(samples, name, op="produce", topic="a", status="ok") == 3
    assert value(samples, name, op="produce", topic="a", status="conflict") == 1
    assert value(samples, name, op="ack", topic="a", status="stale_lease") == 1
    assert value(samples, name, op="ack", topic="a", status="ok") is None
    assert value(samples, "fasti_delivered_messages_total", topic="a") == 7


def test_messages_are_counted_by_state(shard: Shard) -> None:
    make_topic(shard)
    ids = produce(shard, b"1", b"2", due_us=NOW_US + 1_000_000)
    produce(shard, b"3")
    shard.call(co.Cancel("t", co.Target(ids=np.array(ids[:1]))), 10)
    samples = scrape(Metrics(), shard)
    assert value(samples, "fasti_messages", topic="t", state="scheduled") == 1
    assert value(samples, "fasti_messages", topic="t", state="ready") == 1
    assert value(samples, "fasti_messages_finished_total", topic="t", state="cancelled") == 1
    assert value(samples, "fasti_up") == 1


def test_the_oldest_that_is_ready_is_told_before_anybody_consumes(shard: Shard) -> None:
    make_topic(shard)
    make_topic(shard, "empty")
    shard.call(co.CreateTopic("kept", TopicSettings(kind="kv")), 10)
    produce(shard, b"1", due_us=NOW_US - 90_000_000)
    produce(shard, b"2", due_us=NOW_US + 1_000_000)
    samples = scrape(Metrics(), shard)
    name = "fasti_oldest_ready_age_seconds"
    assert value(samples, name, topic="t") == 90
    assert value(samples, name, topic="empty") == 0
    assert value(samples, name, topic="kept") is None


def test_consumers_by_topic(shard: Shard) -> None:
    metrics = Metrics(topics_max=2)
    for topic in ("a", "b", "c"):
        make_topic(shard, topic)
    for topic in ("a", "a", "c", ""):
        metrics.session_opened(topic)
    samples = scrape(metrics, shard)
    counts = [value(samples, "fasti_consumers", topic=t) for t in ("a", "b", "_other", "c")]
    assert counts == [2, 0, 1, None]
    assert value(samples, "fasti_sessions") == 4
    metrics.session_closed("a")
    metrics.session_closed("c")
    metrics.session_closed("")
    samples = scrape(metrics, shard)
    assert value(samples, "fasti_consumers", topic="a") == 1
    assert value(samples, "fasti_consumers", topic="_other") is None
    assert value(samples, "fasti_sessions") == 1


def test_what_lies_on_disk() -> None:
    with serving(SharedFiles(), replace(SETTINGS, feed_bytes=1 << 20), clock=FakeClock()) as shard:
        make_topic(shard)
        before = scrape(Metrics(), shard)
        assert value(before, "fasti_storage_bytes", part="blocks") == 0
        for _ in range(40):
            produce(shard, b"x" * 4000, due_us=NOW_US + 10**12)
        shard.checkpoint()
        samples = scrape(Metrics(), shard)
        blocks = value(samples, "fasti_storage_bytes", part="blocks")
        assert blocks is not None
        assert blocks > 100_000
        feed = value(samples, "fasti_storage_bytes", part="feed")
        assert feed is not None
        # What the checkpoint holds, only the change feed needs in the journal.
        assert feed > 0
        assert value(samples, "fasti_storage_bytes", part="journal") == shard.settings.segment_bytes
        assert value(samples, "fasti_storage_full") == 0
        assert value(samples, "fasti_disk_free_bytes") is not None
        age = value(samples, "fasti_checkpoint_age_seconds")
        assert age is not None
        assert age >= 0


def test_lateness_goes_into_buckets_of_seconds(shard: Shard) -> None:
    make_topic(shard)
    metrics = Metrics()
    metrics.lateness("t", np.array([50, 100, 101, 2_000_000, 3_600_000_000]))
    samples = scrape(metrics, shard)
    name = "fasti_lateness_seconds_bucket"
    assert value(samples, name, topic="t", le="0.0001") == 2
    assert value(samples, name, topic="t", le="0.00025") == 3
    assert value(samples, name, topic="t", le="2.5") == 4
    assert value(samples, name, topic="t", le="600.0") == 4
    assert value(samples, name, topic="t", le="+Inf") == 5
    assert value(samples, "fasti_lateness_seconds_sum", topic="t") == pytest.approx(3602.000251)


def test_sessions_refusals_and_clock_steps(shard: Shard, clock: FakeClock) -> None:
    metrics = Metrics()
    metrics.session_opened()
    metrics.session_opened()
    metrics.session_closed()
    metrics.refused("produce", "overloaded", "anna")
    metrics.refused("produce", "overloaded", "anna")
    clock.set_wall(5_000_000)
    shard.clock.now_us()
    clock.set_wall(-2_000_000)
    samples = scrape(metrics, shard)
    assert value(samples, "fasti_sessions") == 1
    assert value(samples, "fasti_sessions_opened_total") == 2
    assert (
        value(samples, "fasti_refusals_total", op="produce", code="overloaded", caller="anna") == 2
    )
    assert value(samples, "fasti_clock_steps_total", direction="forward") == 1
    assert value(samples, "fasti_clock_steps_total", direction="backward") == 1
    assert value(samples, "fasti_clock_last_step_seconds") == -2
    assert value(samples, "fasti_clock_offset_seconds") == -2
    assert value(samples, "fasti_clock_state", state="slowed") == 1
    assert value(samples, "fasti_clock_state", state="following") == 0


def test_topics_beyond_the_bound_share_a_name_and_their_messages_are_added_up(
    shard: Shard,
) -> None:
    metrics = Metrics(topics_max=2)
    for name in ("a", "b", "c", "d"):
        make_topic(shard, name)
        metrics.mutated("produce", name, statuses(Outcome.OK))
        metrics.lateness(name, np.array([10]))
        shard.call(co.Produce(name, _rows(), co.When(due_us=NOW_US)), 10)
    samples = scrape(metrics, shard)
    named = {dict(labels)["topic"] for name, labels in samples if name == "fasti_messages"}
    assert named == {"a", "b", "_other"}
    assert value(samples, "fasti_messages", topic="_other", state="ready") == 2
    name = "fasti_mutations_total"
    assert value(samples, name, op="produce", topic="_other", status="ok") == 2
    assert value(samples, "fasti_lateness_seconds_count", topic="_other") == 2


def _rows() -> Rows:
    return Rows.of([b"x"])


def test_a_deleted_topic_makes_room_for_another(shard: Shard) -> None:
    metrics = Metrics(topics_max=1)
    make_topic(shard, "old")
    metrics.mutated("produce", "old", statuses(Outcome.OK))
    shard.call(co.DeleteTopic("old"), 10)
    make_topic(shard, "new")
    scrape(metrics, shard)
    metrics.mutated("produce", "new", statuses(Outcome.OK))
    samples = scrape(metrics, shard)
    name = "fasti_mutations_total"
    assert value(samples, name, op="produce", topic="new", status="ok") == 1
    assert value(samples, name, op="produce", topic="old", status="ok") is None


def test_the_journal_checkpoints_and_memory_show(shard: Shard) -> None:
    make_topic(shard)
    produce(shard, b"x", due_us=NOW_US + 10**12)
    shard.checkpoint()
    samples = scrape(Metrics(), shard)
    assert (value(samples, "fasti_journal_sync_seconds_count") or 0) >= 1
    assert value(samples, "fasti_checkpoint_seconds_count") == 1
    assert (value(samples, "fasti_checkpoint_written_bytes_total") or 0) > 0
    assert (value(samples, "fasti_memory_used_bytes") or 0) > 0
    assert value(samples, "fasti_memory_budget_bytes") == shard.settings.memory_bytes
    assert value(samples, "fasti_leases_max") == shard.settings.leases_max
    assert value(samples, "fasti_inbox_rows") == 0
    assert value(samples, "fasti_recoveries_total") == 0


def test_blocks_that_a_checkpoint_makes_needless_count_as_compacted(shard: Shard) -> None:
    make_topic(shard)
    ids = produce(shard, *[b"x"] * 10, due_us=NOW_US + 10**12)
    shard.checkpoint()
    shard.call(co.Cancel("t", co.Target(ids=np.array(ids[:8]))), 10)
    shard.checkpoint()
    samples = scrape(Metrics(), shard)
    assert value(samples, "fasti_compacted_blocks_total") == 1
    assert (value(samples, "fasti_compacted_bytes_total") or 0) > 0


def test_a_closed_shard_is_still_scraped() -> None:
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
    metrics = Metrics()
    metrics.mutated("produce", "t", statuses(Outcome.OK))
    samples = scrape(metrics, shard)
    assert value(samples, "fasti_up") == 0
    name = "fasti_mutations_total"
    assert value(samples, name, op="produce", topic="t", status="ok") == 1


def test_the_page_on_operating_names_every_metric(shard: Shard) -> None:
    make_topic(shard)
    metrics = Metrics()
    metrics.mutated("produce", "t", statuses(Outcome.OK))
    metrics.lateness("t", np.array([1]))
    metrics.refused("produce", "overloaded", "anna")
    page = (Path(__file__).parents[4] / "docs" / "operating.md").read_text()
    told = [line.split()[2] for line in metrics.text(shard).splitlines() if "# HELP" in line]
    assert len(told) > 30
    assert [name for name in told if f"`{name}`" not in page] == []
