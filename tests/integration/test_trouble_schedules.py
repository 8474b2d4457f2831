"""A broker that is killed while schedules fire: each occurrence has one message all the same."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.schedules import Schedules
from tests.integration.serve_rig import SEGMENTS

EVERY_US = 100_000
ALL = {"every": "100ms", "misfire": "all", "misfire_max": 10_000, "target": "t"}


def seen(client: fasti.Client, name: str) -> Counter[int]:
    """How many messages there are of each occurrence, in units of the interval."""
    found: Counter[int] = Counter()
    for batch in client.messages("t").scan(payload=True):
        for headers in batch.column("headers").to_pylist():
            told = dict(headers)
            if told["fasti-schedule"] == name:
                moment = datetime.fromisoformat(told["fasti-occurrence"])
                found[round(moment.timestamp() * 1e6) // EVERY_US] += 1
    return found


def wait_for(client: fasti.Client, count: int) -> None:
    """Returns when so many more messages were delivered; none of them is finished."""
    with client.consumer("t", prefetch=64, timeout=60) as consumer:
        for _ in range(count):
            next(iter(consumer))


def decided(schedules: Schedules) -> int:
    """Occurrences that were emitted or passed over."""
    known = schedules.get("strict")
    return known.fired + known.skipped


def test_a_broker_that_is_killed_around_occurrences(tmp_path: Path) -> None:
    rng = random.Random(1)
    with BrokerProcess(tmp_path, settings=SEGMENTS) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", lease="1h", hold="2h")
            client.create_topic("c", kind="cron")
            schedules = client.schedules("c")
            schedules.put("ahead", **ALL)
            schedules.put("strict", overlap="skip", **ALL)
        for _ in range(3):
            with fasti.connect(broker.address) as client:
                wait_for(client, rng.randrange(3, 12))
            broker.kill()
            broker.start()
        with fasti.connect(broker.address) as client:
            schedules = client.schedules("c")
            wait_for(client, 3)
            # At rest, what was emitted ahead is taken back.
            schedules.pause("ahead")
            begun = min(seen(client, "strict"))
            until = time.monotonic() + 60
            missed = time.time_ns() // 1_000 // EVERY_US - begun
            while decided(schedules) < missed:
                assert time.monotonic() < until, "it doesn't make up for what was missed"
            schedules.pause("strict")
            ahead, strict = seen(client, "ahead"), seen(client, "strict")
            assert set(ahead.values()) == {1}
            assert sorted(ahead) == list(range(min(ahead), max(ahead) + 1))
            # Its first message is never finished, so that all others are passed over.
            assert len(strict) == 1
            assert schedules.get("strict").fired == 1
            # Each of them counts once: there were no more.
            assert decided(schedules) <= time.time_ns() // 1_000 // EVERY_US - begun + 1
