"""A disk that is full, and then is not any more: a real file system, real processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import StorageFull
from tests.integration.serve_rig import ask
from tests.integration.trouble.disk import SmallDisk, small_disk
from tests.integration.trouble.load import SMALL, TOPIC, await_drained
from tests.integration.trouble.rig import crew
from tests.integration.trouble.verdict import Ledger

HOUR_US = 3_600_000_000
KEYS = [f"key-{n}" for n in range(1500)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "24m") as made:
        yield made


@pytest.fixture
def broker(disk: SmallDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(disk.data, http="127.0.0.1:0", settings=SMALL) as started:
        yield started


def send_until_full(client: fasti.Client, topic: str) -> StorageFull:
    """The refusal that a producer gets which doesn't want to wait."""
    producer = client.producer(topic, deadline="3s")
    try:
        while True:
            producer.send_batch([b"x" * 5000] * 20, delay="2h")
    except StorageFull as refused:
        return refused


@pytest.mark.one_shard
def test_a_disk_that_is_full_for_a_while(disk: SmallDisk, broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(fasti.connect(broker.address))
        workers = stack.enter_context(crew(broker.address))
        client.create_topic("t", **TOPIC)
        client.create_topic("later")
        kept = client.producer("later").send_batch([b"kept"] * 1500, key=KEYS, delay="1h")
        assert kept.all_ok
        # Enough to do for consumers while nothing more comes in, half of it when we say so.
        stock = [f"stock-{n}".encode() for n in range(1000)]
        client.producer("t").send_batch(stock[:500])
        client.producer("t").send_batch(stock[500:], key=KEYS[500:1000], delay="1h")
        disk.fill()
        refused = send_until_full(client, "later")
        assert refused.retry_after_us
        before = client.messages("later").count()["scheduled"]

        book = workers.book
        producer = workers.start("produce", "producer", seed=8)
        consumer = workers.start("consume", "consumer", seed=8, way="batch", nacks=0.02)
        workers.all_ready()
        # While it is full nothing is sent, but everything else goes on.
        book.wait_for("acked")
        later = client.messages("later")
        assert later.cancel(key=KEYS[:500]).counts() == {"ok": 500}
        assert later.move(key=KEYS[500:600], delay="3h").counts() == {"ok": 100}
        # This one waits for room. By a client of its own: changes wait for sends of their client.
        patient = stack.enter_context(fasti.connect(broker.address))
        waiting = patient.producer("later").send_batch([b"x" * 5000] * 20, delay="2h", wait=False)
        health = client.health()
        assert (health["ready"], health["state"]) == (False, "serving")
        assert health["reason"] == "storage_full"
        answer = ask(broker, "/readyz")
        assert answer.status == 503
        assert "its disk is full" in answer.json()["detail"]
        assert ask(broker, "/healthz").status == 200
        assert broker.log().count("the disk is full") == 1

        # A crash takes a segment of the reserve. If that was in use, nothing can be written any
        # more; the broker serves all the same, and says so.
        broker.kill()
        broker.start()
        assert client.health()["state"] == "serving"
        assert later.count()["scheduled"] >= before - 500
        assert later.get(key=KEYS[500:]).column("status").to_pylist() == ["ok"] * 1000
        try:
            assert later.cancel(key=KEYS[600:700]).counts() == {"ok": 100}
        except StorageFull as error:
            assert error.retry_after_us  # noqa: PT017

        disk.make_room()
        begin = len(book)
        assert client.messages("t").move(key=KEYS[500:1000], delay=0).counts() == {"ok": 500}
        book.wait_for("acked", since=begin)
        book.wait_for("sent", count=5, since=begin)
        producer.stop()
        assert waiting.result("60s").all_ok
        while not client.health()["ready"]:
            time.sleep(0.01)
        assert ask(broker, "/readyz").status == 200
        await_drained(workers, client)
        consumer.stop()
        ledger = Ledger(book, "stock-")
        ledger.check()
        ledger.nothing_lost()
        assert len(ledger.others) == len(stock)
        assert later.get(key=KEYS[700:]).column("status").to_pylist() == ["ok"] * 800


def test_a_disk_so_full_that_not_even_acks_fit(disk: SmallDisk, broker: BrokerProcess) -> None:
    """Refused then, with nothing half done, until there is room; a restart says what is wrong."""
    rng = random.Random(9)
    with fasti.connect(broker.address) as client:
        # A move over several shards may be done on some of them.
        client.create_topic("later", partitions=1)
        client.producer("later").send_batch([b"kept"] * len(KEYS), key=KEYS, delay="1h")
        later = client.messages("later")
        disk.fill()
        now_us = client.clock.now_us()
        promised: list[int] = []

        def move_until_full() -> None:
            for _ in range(2000):
                due = [now_us + HOUR_US + rng.randrange(HOUR_US) for _ in KEYS]
                assert later.move(key=KEYS, due=due).all_ok
                promised[:] = due

        with pytest.raises(StorageFull) as refused:
            move_until_full()
        assert refused.value.retry_after_us
        assert later.get(key=KEYS).column("due_us").to_pylist() == promised
        broker.kill()
        try:
            broker.start()
        except StorageFull:
            disk.make_room()
            broker.start()
        else:
            assert later.get(key=KEYS).column("due_us").to_pylist() == promised
            disk.make_room()
        assert later.get(key=KEYS).column("due_us").to_pylist() == promised
        outcome = client.producer("later").send(b"new", key="new").result(30)
        assert outcome.ok
        assert later.cancel(key=KEYS).counts() == {"ok": len(KEYS)}
