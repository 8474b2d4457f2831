"""Finding what is stuck: what died when, and what a consumer holds; live, on snapshots, on the shell."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import fasti
from fasti.errors import InvalidArgument
from fasti.testing import VirtualBroker


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    made = broker.client()
    made.create_topic("jobs", lookahead=0)
    return made


def from_snapshot(client: fasti.Client, **filters: Any) -> list[int]:
    header, _ = client.transport.call("take_snapshot", {})
    ticket = {"call": "list", "topic": "jobs", "snapshot": header["snapshot"], **filters}
    return [id for batch in client.transport.read(ticket) for id in batch["id"].to_pylist()]


def test_by_the_time_of_death(broker: VirtualBroker, client: fasti.Client) -> None:
    """A message dies each hour."""
    begin = broker.now
    with client.consumer("jobs", prefetch=1) as consumer:
        for number in range(4):
            client.producer("jobs").send(b"", key=f"job-{number}").result(60)
            next(consumer).reject("broken" if number % 2 else "lost", wait=True)
            broker.advance("1h")
    jobs = client.messages("jobs")
    hours = [begin + timedelta(hours=number) for number in range(5)]
    assert jobs.list(died_from=hours[1])["id"].to_pylist() == [2, 3, 4]
    assert jobs.list(died_to=hours[1])["id"].to_pylist() == [1]
    assert jobs.list(died_from=hours[1], died_to=hours[3])["id"].to_pylist() == [2, 3]
    second_us, fourth_us = (int(hours[n].timestamp() * 1e6) for n in (1, 3))
    assert from_snapshot(client, died_from_us=second_us, died_to_us=fourth_us) == [2, 3]
    assert jobs.dead(died_from=hours[1], key_prefix="job-", after=2)["id"].to_pylist() == [3, 4]
    assert jobs.dead_counts(died_from=hours[2]) == {"lost": 1, "broken": 1}
    # What lives has not died, whatever its due time.
    client.producer("jobs").send(b"", delay="1h").result(60)
    assert jobs.list(died_from=0)["id"].to_pylist() == [1, 2, 3, 4]
    assert jobs.redrive(died_from=hours[3], delay="1h").counts() == {"ok": 1}
    assert jobs.purge(died_to=hours[2]).counts() == {"ok": 2}
    assert jobs.dead()["id"].to_pylist() == [3]


def test_what_a_consumer_holds(client: fasti.Client) -> None:
    for number in range(3):
        client.producer("jobs").send(b"", key=f"job-{number}").result(60)
    with (
        client.consumer("jobs", name="busy", prefetch=1) as busy,
        client.consumer("jobs", name="idle", prefetch=1) as idle,
    ):
        held, other = next(busy), next(idle)
        found = client.messages("jobs").list(consumer="busy", columns=["id", "key", "consumer"])
        assert found.to_pylist() == [
            {"id": held.id, "key": f"job-{held.id - 1}", "consumer": "busy"}
        ]
        assert from_snapshot(client, consumer="idle") == [other.id]
        assert client.messages("jobs").list(consumer="nobody").num_rows == 0
        assert from_snapshot(client, consumer="nobody") == []
        held.ack(wait=True)
        other.ack(wait=True)


def test_rows_of_a_log_are_not_found_by_their_death(client: fasti.Client) -> None:
    client.create_topic("rows", kind="log")
    client.groups("rows").create("g")
    header = {"topic": "rows", "group": "g", "died_from_us": 0}
    with pytest.raises(InvalidArgument):
        client.transport.call("count_dead", header)
