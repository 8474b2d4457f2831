"""Producers that say that they are over are not remembered any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard, ShardSettings
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.core import commands as co
from fasti.doors.flight import FlightDoor
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles

SETTINGS = ShardSettings(segment_bytes=1 << 18, memory_bytes=64 << 20, leases_max=4096)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    shard = Shard(FileStorage(LocalFiles(tmp_path)), SETTINGS)
    made = Service(OneShard(shard), Metrics())
    yield made
    made.close()
    shard.close(checkpoint=False)


@pytest.fixture(params=["flight", "embedded"])
def client(request: pytest.FixtureRequest, service: Service) -> Iterator[fasti.Client]:
    if request.param == "embedded":
        yield fasti.Client(EmbeddedTransport(service=service))
        return
    door = FlightDoor(service)
    yield fasti.connect(f"fasti://127.0.0.1:{door.port}")
    service.begin_stopping()
    door.stop()


def test_a_producer_that_is_closed_is_forgotten(service: Service, client: fasti.Client) -> None:
    client.create_topic("jobs")
    for number in range(10):
        with client.producer("jobs") as producer:
            assert producer.send(b"%d" % number).result().ok
    client.close()
    # Behind everything that came before.
    while service.placement.catalogue.engine.state.producers.all():
        service.placement.catalogue.call(co.Count("jobs"), 60)
    assert service.placement.catalogue.call(co.Count("jobs"), 60).states["ready"] == 10


def test_it_stays_forgotten_when_the_journal_is_replayed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fasti.connect(f"embedded:{data}", segment_bytes=1 << 18) as client:
        client.create_topic("jobs")
        with client.producer("jobs") as producer:
            producer.send(b"job").result()
    shard = Shard(FileStorage(LocalFiles(data)), SETTINGS)
    assert shard.engine.state.producers.all() == {}
    shard.close(checkpoint=False)
