"""A real broker for the tests of the protocol: one process for all of them, a topic for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fasti.broker.launch import BrokerProcess
from fasti.cluster.nats import NatsConnection
from tests.cluster.nats_rig import NatsServers
from tests.conformance.protocol_client import Client

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker that the tests of the protocol share."""
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), settings={"segment_size": "1MiB"}
    ) as process:
        yield process


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsConnection]:
    """Three NATS servers, for the storage of clusters."""
    servers = NatsServers(3)
    try:
        connection = servers.connect()
        yield connection
        connection.close()
    finally:
        servers.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(f"{broker.host}:{broker.port}") as found:
        yield found


@pytest.fixture
def make_topic(client: Client) -> Callable[..., str]:
    """Makes a topic of its own for a test, with these settings."""

    def make(**settings: Any) -> str:
        name = f"topic-{next(_numbers)}"
        client.call("create_topic", {"topic": name, "settings": settings})
        return name

    return make
