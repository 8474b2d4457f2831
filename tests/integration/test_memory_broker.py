"""A whole broker on storage that is not made of files: what is handed to the shard is all that it needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fasti
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.config import ShardSettings
from fasti.errors import DataDirLocked
from fasti.storage.memory.journal import MemoryJournal
from fasti.storage.memory_storage import MemoryStorage, OpenMemory

SETTINGS = ShardSettings(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096)


@contextmanager
def client_of(storage: MemoryStorage) -> Iterator[fasti.Client]:
    with fasti.Client(EmbeddedTransport(storage=storage, settings=SETTINGS)) as client:
        yield client


def receive(client: fasti.Client, count: int) -> list[bytes]:
    payloads = []
    with client.consumer("orders") as consumer:
        for _ in range(count):
            (message,) = consumer.take(1, timeout="30s")
            payloads.append(message.payload)
            message.ack(wait=True)
    return payloads


def test_messages_outlive_checkpoints_and_openings() -> None:
    storage = MemoryStorage()
    with client_of(storage) as client:
        client.create_topic("orders")
        with client.producer("orders") as producer:
            for number in range(6):
                producer.send(b"%d" % number).result(30)
        assert receive(client, 2) == [b"0", b"1"]
        client.checkpoint("30s")
        assert storage.blocks.list()
        # Payloads come from blocks now, and those of the next two from the journal.
        with client.producer("orders") as producer:
            for number in (6, 7):
                producer.send(b"%d" % number).result(30)
        assert receive(client, 2) == [b"2", b"3"]
    with client_of(storage) as client:
        assert receive(client, 4) == [b"4", b"5", b"6", b"7"]
        assert client.scrub()["findings"] == []
        assert "fasti_disk_free_bytes" in client.metrics()


def test_a_failed_append_recovers_on_the_same_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    with client_of(storage) as client:
        client.create_topic("orders")
        with client.producer("orders") as producer:
            producer.send(b"before").result(30)
        first, failed = storage.journal, threading.Event()

        def fail(journal: MemoryJournal) -> int:
            failed.set()
            monkeypatch.undo()
            raise fasti.errors.StorageFailed("the medium is gone for a moment")

        monkeypatch.setattr(MemoryJournal, "sync", fail)
        with client.producer("orders") as producer:
            producer.send(b"after").result(30)
        assert failed.is_set()
        assert storage.journal is not first
        assert receive(client, 2) == [b"before", b"after"]


def test_storage_without_a_quorum_is_waited_for_however_often_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that fails so often is given up; servers that are away are not."""
    storage = MemoryStorage()
    monkeypatch.setattr("fasti.broker.recovery.back_off", lambda *_: 0.0)
    with client_of(storage) as client:
        client.create_topic("orders")
        open_storage, refusals = storage.open, iter(range(30))

        def refuse(settings: ShardSettings, cut_after: int | None = None) -> OpenMemory:
            if next(refusals, None) is not None:
                raise fasti.errors.NoQuorum("two of three are away")
            return open_storage(settings, cut_after)

        def fail(journal: MemoryJournal) -> int:
            monkeypatch.setattr(MemoryJournal, "sync", sync)
            monkeypatch.setattr(storage, "open", refuse)
            raise fasti.errors.StorageFailed("the servers have lost the place of the last frames")

        sync = MemoryJournal.sync
        monkeypatch.setattr(MemoryJournal, "sync", fail)
        with client.producer("orders") as producer:
            producer.send(b"after").result(30)
        assert next(refusals, None) is None
        assert receive(client, 1) == [b"after"]


def test_one_shard_at_a_time() -> None:
    storage = MemoryStorage()
    with client_of(storage), pytest.raises(DataDirLocked):
        EmbeddedTransport(storage=storage, settings=SETTINGS)
