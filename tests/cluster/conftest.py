"""NATS servers that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fasti.cluster.nats import NatsConnection
from tests.cluster.nats_rig import NatsServers, nats_servers

# nats-py doesn't close a socket whose handshake failed: that is left to its destructor, which warns.
_UNCLOSED = (
    r"ignore:Exception ignored in. <function StreamWriter.__del__"
    ":pytest.PytestUnraisableExceptionWarning"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(_UNCLOSED))


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsServers]:
    found = NatsServers(3)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def one_server() -> Iterator[NatsServers]:
    with nats_servers(1) as found:
        yield found


@pytest.fixture
def three_servers() -> Iterator[NatsServers]:
    """Of one test alone, which may kill them."""
    with nats_servers(3) as found:
        yield found


@pytest.fixture(scope="module")
def nats(servers: NatsServers) -> Iterator[NatsConnection]:
    connection = servers.connect()
    yield connection
    connection.close()
