"""A topic that schedules and bindings point to: told before it is deleted, seen and counted after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import NotFound
from fasti.testing import VirtualBroker
from tests.integration.serve_rig import emptied


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    with emptied(shared):
        yield shared


def pointed_to(client: Client) -> None:
    """`emails`, with a schedule and a binding that lead to it, and others that don't."""
    for name, kind in (("emails", "timeline"), ("other", "timeline"), ("orders", "log")):
        client.create_topic(name, kind=kind, partitions=1)
    client.create_topic("reports", kind="cron")
    client.schedules("reports").put("daily", cron="0 9 * * *", target="emails")
    client.schedules("reports").put("else", cron="0 9 * * *", target="other")
    client.bindings("orders").add("orders.>", "emails")
    client.bindings("orders").add("other.>", "other")


def test_what_points_to_a_topic(client: Client) -> None:
    pointed_to(client)
    found = client.references("emails")
    assert found.schedules == [("reports", "daily")]
    assert found.bindings == [("orders", "orders.>")]
    assert (found.schedules_count, found.bindings_count, bool(found)) == (1, 1, True)
    assert not client.references("orders")
    with pytest.raises(NotFound):
        client.references("nowhere")


def test_a_schedule_without_its_target_is_seen(client: Client) -> None:
    pointed_to(client)
    schedules = client.schedules("reports")
    assert not schedules.get("daily").target_missing
    client.delete_topic("emails")
    assert {each.name: each.target_missing for each in schedules.list()} == {
        "daily": True,
        "else": False,
    }
    # Bindings go with their target.
    assert [each.target for each in client.bindings("orders").list()] == ["other"]
    client.create_topic("emails")
    assert not schedules.get("daily").target_missing


def test_from_tasks(broker: BrokerProcess) -> None:
    async def story() -> int:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("t")
            await client.create_topic("c", kind="cron")
            await client.schedules("c").put("s", every="1h", target="t")
            found = await client.references("t")
            for name in ("t", "c"):
                await client.delete_topic(name)
            return found.schedules_count

    assert asyncio.run(story()) == 1


def test_it_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fasti")
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        client.create_topic("c", kind="cron")
        client.schedules("c").put("often", every="1m", target="t", misfire="skip")
        broker.advance("5m")
        client.delete_topic("t")
        deleted = [each.message for each in caplog.records if "was deleted" in each.message]
        assert len(deleted) == 1
        assert "c/often (1 in all)" in deleted[0]
        for _ in range(5):
            broker.advance("1m")
        waiting = [
            each.message for each in caplog.records if "wait for their target" in each.message
        ]
        assert len(waiting) == 1
        text = client.transport.call("metrics", {})[0]["text"]
        (counted,) = [
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("fasti_schedule_target_missing_total")
        ]
        assert counted >= 1
        assert client.schedules("c").get("often").target_missing
        # There again, it goes on; gone again, the log says so again.
        client.create_topic("t")
        broker.advance("2m")
        assert client.messages("t").count()["ready"]
        client.delete_topic("t")
        broker.advance("5m")
        waiting = [
            each.message for each in caplog.records if "wait for their target" in each.message
        ]
        assert len(waiting) == 2
