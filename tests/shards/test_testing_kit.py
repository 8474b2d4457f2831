"""The test kit with several shards: time, leases, schedules, logs and apps are those of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from fasti import App
from fasti.testing import VirtualBroker

KEYS = [f"key-{number}" for number in range(24)]


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker(shards=4) as made:
        yield made


def test_time_and_leases_are_those_of_all_shards(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("emails")
    client.producer("emails").send_batch([b""] * len(KEYS), key=KEYS, delay="3d")
    broker.advance("3d")
    assert broker.open_work() == {"emails": {"ready": len(KEYS), "leased": 0}}
    with client.consumer("emails", name="dies", prefetch=len(KEYS)) as dying:
        taken = [next(dying) for _ in KEYS]
        assert sorted(message.key or "" for message in taken) == sorted(KEYS)
        broker.expire_leases()
        with client.consumer("emails", name="lives", prefetch=len(KEYS)) as living:
            again = [next(living) for _ in KEYS]
            assert sorted(message.key or "" for message in again) == sorted(KEYS)
            for message in again:
                assert message.ack(wait=True)
    broker.settle()


def test_schedules_of_all_shards_fire_when_the_time_is_moved(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("reports")
    client.create_topic("jobs", kind="cron")
    client.schedules("jobs").put_many(
        {f"job-{number}": {"target": "reports", "every": "1h"} for number in range(12)}
    )
    broker.advance("2h")
    assert client.messages("reports").count()["ready"] == 24


def test_an_app_runs_until_nothing_is_left(broker: VirtualBroker) -> None:
    app = App(broker.client())
    seen: list[str] = []

    @app.on("carts")
    def remind(key: str) -> None:
        seen.append(key)

    for key in KEYS:
        remind.later(key, key=key, delay=timedelta(days=1))
    assert broker.run_until_idle(app) == []
    runs = broker.run_until_idle(app, until="1d")
    assert sorted(run.key or "" for run in runs) == sorted(seen) == sorted(KEYS)
    assert {run.end for run in runs} == {"acked"}
    assert broker.run_until_idle(app) == []


def test_rows_of_a_log_that_a_group_has_to_do_are_work(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("events", kind="log", partitions=6)
    client.groups("events").create("billing")
    client.producer("events").send_batch([b""] * len(KEYS), key=KEYS)
    assert broker.open_work() == {"events": {"billing": len(KEYS)}}
    with client.consumer("events", group="billing") as consumer:
        for message in (next(consumer) for _ in KEYS):
            message.ack()
        consumer.flush()
    broker.settle()
