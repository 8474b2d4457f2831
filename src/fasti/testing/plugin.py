"""The pytest plugin: fixtures that every project with Fasti installed has.

Nothing heavy is imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.testing.virtual import VirtualBroker


@pytest.fixture
def fasti_broker() -> Iterator[VirtualBroker]:
    """A broker of the test's own, in virtual time: `advance`, `settle`, `expire_leases`, `client`."""
    from fasti.testing.virtual import VirtualBroker

    with VirtualBroker() as broker:
        yield broker


@pytest.fixture
def fasti_client(fasti_broker: VirtualBroker) -> Client:
    """A client of `fasti_broker`."""
    return fasti_broker.client()
