"""The soak itself: its clients leave nothing behind, and its judgement tells growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fasti
from benchmarks.soak import judged, soak
from benchmarks.soak_jobs import CRON, EVENTS, WORK, clear, make_topics
from benchmarks.wire import broker


def test_clients_come_and_go_and_the_broker_is_sampled(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    found = soak(tmp_path, minutes=0.05, clients=10, show=shown.append, sample_s=0.75)
    assert len(shown) == len(found["samples"]) == 4
    assert found["last_crowds"]["lives"] > 0
    assert found["last_crowds"]["errors"] == 0, found["last_crowds"]["last_error"]
    assert all(sample["resident_mb"] > 10 and sample["threads"] > 5 for sample in shown)


def test_what_a_killed_process_had_made_is_removed(tmp_path: Path) -> None:
    with broker(tmp_path) as process, fasti.connect(process.address) as client:
        make_topics(client)
        for pid in (123, 1234):
            client.create_topic(f"own-{pid}-a")
            client.groups(EVENTS).create(f"own-{pid}-b")
            client.schedules(CRON).put(f"own-{pid}-c", every="1h", target=WORK, payload=b"")
        clear(client, 123)
        left = [topic.name for topic in client.topics()]
        left += [group.name for group in client.groups(EVENTS).list()]
        left += [schedule.name for schedule in client.schedules(CRON).list()]
        assert [name for name in left if name.startswith("own-")] == [
            "own-1234-a",
            "own-1234-b",
            "own-1234-c",
        ]


def test_growth_between_the_second_and_the_last_quarter_is_told() -> None:
    def samples(*resident: float) -> list[dict[str, Any]]:
        others = {"threads": 9, "descriptors": 9, "memory_used_mb": 0}
        return [{"resident_mb": mb, **others} for mb in resident]

    assert judged(samples(10, 100, 90, 101))["flat"] is True
    assert judged(samples(10, 100, 200, 103))["flat"] is False
    assert judged(samples(10, 100))["flat"] is None
