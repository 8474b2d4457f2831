"""Brokers and clients that whole modules share. A module that needs another kind makes its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SEGMENTS

SHARDS = 4

Connect = Callable[..., fasti.Client]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests of a module: each has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=SEGMENTS) as started:
        yield started


@pytest.fixture(scope="module")
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes a module's clients, each once, with its `CONNECTED`; they are closed at its end."""
    given = getattr(request.module, "CONNECTED", {})
    with ExitStack() as stack:

        @cache
        def connected(address: str, **options: Any) -> fasti.Client:
            made = fasti.connect(address, timeout="60s", **given, **options)
            return stack.enter_context(made)

        yield connected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module's embedded brokers are."""
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(params=["flight", "embedded"])
def shared(request: pytest.FixtureRequest, connect: Connect, folder: Path) -> fasti.Client:
    """Of a broker process, and of one inside this process. Each is one for all tests of a module.

    The process has one shard, the one in here four, except for tests that are about one.
    """
    if request.param == "flight":
        return connect(request.getfixturevalue("broker").address)
    shards = 1 if request.node.get_closest_marker("one_shard") else SHARDS
    return connect(f"embedded:{folder / str(shards)}", shards=shards, segment_bytes=1 << 20)


@pytest.fixture
def client(shared: fasti.Client) -> fasti.Client:
    """The same, by the name that a module may give to one of its own."""
    return shared
