"""The keys of a topic in order: all of them, or none and the reason."""

from __future__ import annotations

import pytest

import fasti
from fasti.broker.caller import EMBEDDED
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.errors import Overloaded
from fasti.model import Limits
from fasti.storage.directory import passing_storage

SETTINGS = ShardSettings(
    segment_bytes=1 << 20, memory_bytes=64 << 20, limits=Limits(snapshots_max=1)
)


def test_an_order_that_could_not_be_read_is_read_the_next_time() -> None:
    transport = EmbeddedTransport(storage=passing_storage(), settings=SETTINGS)
    with fasti.Client(transport) as client:
        client.create_topic("t", kind="kv")
        entries = client.kv("t")
        for key in ("b", "a", "c"):
            entries.put(key, b"1")
        snapshots = transport.service.snapshots
        held = snapshots.take(EMBEDDED, transport.service.placement.catalogue)
        with pytest.raises(Overloaded):
            entries.range()
        snapshots.drop(held.snapshot.number)
        entries.put("d", b"1")
        assert entries.range().column("key").to_pylist() == ["a", "b", "c", "d"]
