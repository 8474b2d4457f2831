"""Definitions by the SDK, on a broker process: from one broker to another, by threads and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import TopicMismatch
from tests.integration.serve_rig import SEGMENTS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as started:
        yield started


def test_from_one_broker_to_another(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        fasti.connect(f"embedded:{tmp_path / 'other'}") as source,
        fasti.connect(broker.address) as target,
    ):
        source.create_topic("emails", width=1, lease="1m", retry=fasti.Backoff("2s"))
        source.create_topic("audit", kind="log", partitions=3, width=1)
        source.create_topic("tickets", kind="priority", age_step="1m")
        source.create_topic("profiles", kind="kv")
        source.create_topic("reports", kind="cron")
        source.bindings("emails").add("mails.>", "audit")
        source.schedules("reports").put("daily", cron="@daily", target="tickets", payload=b"\xff")
        document = source.definitions()
        assert sorted(document["topics"]) == ["audit", "emails", "profiles", "reports", "tickets"]
        planned = target.define(document, dry_run=True)
        assert len(planned) == 7
        assert target.topics() == []
        assert target.define(document) == planned
        assert target.define(document, prune=True) == []
        assert target.definitions() == document

    async def changed() -> list[str]:
        async with fasti.aio.connect(broker.address) as client:
            found = await client.definitions()
            assert found == document
            del found["topics"]["profiles"]
            found["topics"]["emails"]["lease"] = "2m"
            changes = await client.define(found, prune=True)
            found["topics"]["audit"]["partitions"] = 4
            with pytest.raises(TopicMismatch):
                await client.define(found)
            return [f"{change.action} {change.what} {change.name}" for change in changes]

    assert asyncio.run(changed()) == ["change topic emails", "delete topic profiles"]
