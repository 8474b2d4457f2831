"""Brokers and clients that whole modules share. A module that needs another kind makes its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SEGMENTS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests of a module: each has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=SEGMENTS) as started:
        yield started


@pytest.fixture(scope="module", params=["flight", "embedded"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fasti.Client]:
    """Of a broker process, and of one inside this process; with a module's `CONNECTED`."""
    given = getattr(request.module, "CONNECTED", {})
    if request.param == "flight":
        address = request.getfixturevalue("broker").address
    else:
        address = f"embedded:{tmp_path_factory.mktemp('embedded')}"
        given = {"segment_bytes": 1 << 20, **given}
    with fasti.connect(address, timeout="60s", **given) as made:
        yield made


@pytest.fixture
def client(shared: fasti.Client) -> fasti.Client:
    """The same, by the name that a module may give to one of its own."""
    return shared
