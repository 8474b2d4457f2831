"""Schedules while the disk fails under them: each occurrence has one message all the same."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime

from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.client.client import Client
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.storage.file_storage import FileStorage
from tests.integration.shard_rig import SharedFiles

SETTINGS = ShardSettings(segment_bytes=1 << 16, memory_bytes=16 << 20, leases_max=4096)
PATIENCE_S = 60


class Told:
    """Wakes whoever waits for the scheduler to have fired something."""

    def __init__(self, shard: Shard) -> None:
        self._changed = threading.Condition()
        self.fired = 0
        late = shard.fire_counts.late
        add = late.add_all

        def heard(values: object) -> None:
            add(values)  # type: ignore[arg-type]
            with self._changed:
                self.fired += 1
                self._changed.notify_all()

        late.add_all = heard  # type: ignore[method-assign, assignment]

    def wait_for(self, count: int) -> None:
        with self._changed:
            wanted = self.fired + count
            assert self._changed.wait_for(lambda: self.fired >= wanted, PATIENCE_S)


def occurrences(client: Client) -> Counter[str]:
    found: Counter[str] = Counter()
    for batch in client.messages("t").scan(payload=True):
        for headers in batch.column("headers").to_pylist():
            found[dict(headers)["fasti-occurrence"]] += 1
    return found


def test_a_disk_that_fails_again_and_again() -> None:
    files = SharedFiles()
    shard = Shard(FileStorage(files), SETTINGS)
    told = Told(shard)
    service = Service(OneShard(shard), Metrics())
    transport = EmbeddedTransport(service=service)
    client = Client(transport)
    try:
        client.create_topic("t")
        client.create_topic("c", kind="cron")
        schedules = client.schedules("c")
        every = {"every": "100ms", "target": "t", "misfire": "all", "misfire_max": 10_000}
        schedules.put("ahead", **every)
        for number in range(3):
            told.wait_for(2)
            files.fail("sync")
            while shard.recoveries <= number:
                told.wait_for(1)
        # A pause takes back all that is not due yet: something must be.
        while not client.messages("t").count()["ready"]:
            told.wait_for(1)
        schedules.pause("ahead")
        found = occurrences(client)
        assert set(found.values()) == {1}
        assert len(found) == schedules.get("ahead").fired
        tenths = sorted(_tenths(text) for text in found)
        assert tenths == list(range(tenths[0], tenths[-1] + 1))
    finally:
        client.close()
        service.close()
        shard.close(checkpoint=False)


def _tenths(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 10)
