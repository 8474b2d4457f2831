"""Metrics and health of a process with several shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fasti.broker.caller import EMBEDDED
from fasti.broker.host import Host
from fasti.errors import StorageFailed
from tests.shards.shards_rig import close_host, open_host

SHARDS = 3


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = open_host(tmp_path / "data", SHARDS)
    call(made, "create_topic", topic="jobs")
    yield made
    close_host(made)


def call(host: Host, action: str, number: int = 0, **header: object) -> dict[str, object]:
    return host.service(number).call(EMBEDDED, action, {"version": 1, **header})[0]


def test_each_family_is_there_once_and_samples_name_their_shard(host: Host) -> None:
    page = call(host, "metrics")["text"]
    assert isinstance(page, str)
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert page.count("# HELP fasti_up ") == 1
    assert len(families) == page.count("# HELP ")
    up = families["fasti_up"].samples
    assert [(s.labels, s.value) for s in up] == [({"shard": str(n)}, 1.0) for n in range(SHARDS)]
    ready = [s for s in families["fasti_messages"].samples if s.labels["state"] == "ready"]
    assert [s.labels["shard"] for s in ready if s.labels["topic"] == "jobs"] == ["0", "1", "2"]
    for name in ("fasti_connections", "fasti_memory_resident_bytes", "fasti_clock_offset_seconds"):
        assert [s.labels for s in families[name].samples] == [{}]
    threads = {s.labels["thread"] for s in families["fasti_thread_stalled_seconds"].samples}
    assert {"fasti-sequencer-0", "fasti-sequencer-2", "fasti-watchdog"} <= threads
    assert call(host, "metrics", 2)["text"].count("\n") == page.count("\n"), "any shard tells all"


def test_health_names_the_shard_in_trouble(host: Host) -> None:
    assert call(host, "health") == {"ready": True, "state": "serving"}
    shard = host.all_shards()[1]
    shard.room.refuse(1 << 60)
    told = call(host, "health", 2)
    assert (told["ready"], told["reason"], told["shard"]) == (False, "storage_full", 1)


def test_a_shard_that_failed_is_named_and_ends_the_wait(host: Host) -> None:
    shard = host.all_shards()[2]
    shard.sequencer._died(StorageFailed("for a test"))
    host.wait_ended()
    told = call(host, "health")
    assert (told["state"], told["shard"]) == ("failed", 2)
    assert host.failure is shard.failure
