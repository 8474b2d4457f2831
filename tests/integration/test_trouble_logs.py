"""A broker that is killed, or whose connections are cut, while rows are appended, a reader follows
and a group consumes.

What the SDK says must hold then: nothing that was acknowledged is missing, a reader sees every offset
once and in order, a group gets every row, and what it acked with an answer does not come again.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import RowsFailed
from tests.integration.trouble.load import SMALL
from tests.integration.trouble.proxy import Proxy

PATIENCE_S = 90.0
PARTITIONS = 2


class News:
    """What the workers tell the test: that something has happened, or what went wrong."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def tell(self, error: BaseException | None = None) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: self.error or condition(), PATIENCE_S)
        if self.error is not None:
            raise self.error
        assert found, f"never came to be: {what}"


class Worker:
    """A thread that runs until it is told to stop."""

    def __init__(self, address: str, news: News) -> None:
        self._address, self._news = address, news
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with fasti.connect(self._address, timeout="60s") as client:
                self.work(client)
        except BaseException as error:
            self._news.tell(error)

    def work(self, client: Any) -> None:
        raise NotImplementedError

    def tell(self) -> None:
        self._news.tell()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._news.error is not None:
            raise self._news.error


class Appending(Worker):
    """Appends numbered rows; keeps the ids of those that were acknowledged."""

    def __init__(self, *place: Any) -> None:
        self.acknowledged: dict[bytes, int] = {}
        super().__init__(*place)

    def work(self, client: Any) -> None:
        producer = client.producer("events", deadline="1m")
        number = 0
        while not self.stopping.wait(0.002):
            names = [b"%d" % (number + n) for n in range(40)]
            number += 40
            keys = [name.decode() for name in names]
            outcomes = producer.send_batch(names, key=keys)
            assert outcomes.all_ok
            self.acknowledged.update(zip(names, outcomes.ids.tolist(), strict=True))
            self.tell()


class Following(Worker):
    """Reads on and on, from the earliest row."""

    def __init__(self, *place: Any) -> None:
        self.offsets: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        self.payloads: dict[int, bytes] = {}
        super().__init__(*place)

    def work(self, client: Any) -> None:
        with client.reader("events", follow=True, timeout="50ms") as reader:
            while not self.stopping.is_set():
                for message in reader:
                    self.offsets[message.partition].append(message.offset)
                    self.payloads[message.id] = message.payload
                self.tell()


class Reading(Worker):
    """Reads all that is there, again and again: a part of the log from its beginning, each time."""

    def __init__(self, *place: Any) -> None:
        self.reads = 0
        super().__init__(*place)

    def work(self, client: Any) -> None:
        ends = [0] * PARTITIONS
        while not self.stopping.wait(0.05):
            found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
            for table in client.reader("events").batches(500):
                partition = table.column("partition")[0].as_py()
                found[partition] += table.column("offset").to_pylist()
            assert all(offsets == list(range(len(offsets))) for offsets in found.values())
            assert all(len(found[n]) >= end for n, end in enumerate(ends)), "a log only grows"
            ends = [len(found[n]) for n in range(PARTITIONS)]
            self.reads += 1
            self.tell()


class Consuming(Worker):
    """A consumer of the group: acks most, nacks some; keeps which acks were answered ok."""

    def __init__(self, name: str, *place: Any) -> None:
        self._name = name
        self.seen: Counter[int] = Counter()
        self.acked: dict[int, int] = {}
        self.came_again: list[int] = []
        super().__init__(*place)

    def work(self, client: Any) -> None:
        rng = random.Random(self._name)
        consumer = client.consumer(
            "events", group="billing", name=self._name, prefetch=64, timeout="50ms"
        )
        while not self.stopping.is_set():
            for batch in consumer.batches(64, wait=0):
                ids = batch.table.column("id").to_pylist()
                self.seen.update(ids)
                self.came_again += [each for each in ids if each in self.acked]
                bad = [rng.random() < 0.05 for _ in ids]
                if any(bad):
                    batch.nack(bad, "once more")
                outcomes = batch.ack(wait=True, timeout=PATIENCE_S)
                for outcome in outcomes:
                    if outcome.status == "ok":
                        self.acked[outcome.id] = self.acked.get(outcome.id, 0) + 1
                if self.stopping.is_set():
                    break
            self.tell()
        # A nack that was sent twice, over a kill.
        with suppress(RowsFailed):
            consumer.close()


def under_trouble(broker: BrokerProcess, address: str, make_trouble: Callable[[], None]) -> None:
    """Three times trouble, each in the middle of work; then everything is compared."""
    news = News()
    with fasti.connect(broker.address) as client:
        client.create_topic(
            "events",
            kind="log",
            partitions=PARTITIONS,
            max_attempts=1000,
            lease="30s",
            retry=fasti.Backoff("5ms", factor=1, limit="5ms"),
        )
    place = (address, news)
    appending, following, reading = Appending(*place), Following(*place), Reading(*place)
    consumers = [Consuming(name, *place) for name in ("w1", "w2")]

    def acked() -> int:
        return sum(len(each.acked) for each in consumers)

    for _ in range(3):
        rows, done, reads = len(appending.acknowledged), acked(), reading.reads
        news.wait(lambda r=rows: len(appending.acknowledged) > r + 400, "appends")
        news.wait(lambda d=done: acked() > d + 200, "acks")
        news.wait(lambda n=reads: reading.reads > n, "reads")
        make_trouble()
    rows = len(appending.acknowledged)
    news.wait(lambda: len(appending.acknowledged) > rows + 400, "appends after the last")
    appending.stop()
    ids = set(appending.acknowledged.values())
    news.wait(lambda: ids <= following.payloads.keys(), "the follower at the end")
    # Copies, each made in one go: the workers go on.
    news.wait(lambda: ids <= set().union(*(list(c.acked) for c in consumers)), "all acked")
    for worker in (following, reading, *consumers):
        worker.stop()
    with fasti.connect(broker.address) as client:
        check_the_log(client, appending, following)
        check_the_group(client, consumers, appending)


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kill", "kill-and-checkpoint"])
def test_a_follower_and_a_group_over_a_broker_that_is_killed(
    tmp_path: Path, checkpoints: bool
) -> None:
    with BrokerProcess(tmp_path, settings=SMALL) as broker:

        def kill() -> None:
            if checkpoints:
                with fasti.connect(broker.address) as client:
                    client.checkpoint()
            broker.kill()
            broker.start()

        under_trouble(broker, broker.address, kill)


def test_a_follower_and_a_group_on_a_network_that_is_cut(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings=SMALL) as broker,
        Proxy(broker.host, broker.port) as proxy,
    ):
        under_trouble(broker, proxy.address, proxy.cut)
        assert proxy.connections > 3


def check_the_log(client: Any, appending: Appending, following: Following) -> None:
    """No offset is missing or repeated, and each row is where its receipt said."""
    for partition, described in enumerate(client.log("events").describe()):
        assert following.offsets[partition] == list(range(described.end))
    for payload, id_ in appending.acknowledged.items():
        assert following.payloads[id_] == payload
    again = {message.id: message.payload for message in client.reader("events")}
    assert again == following.payloads
    counts = Counter(following.payloads.values())
    assert max(counts.values()) == 1, "a send that was repeated is not a second row"


def check_the_group(client: Any, consumers: list[Consuming], appending: Appending) -> None:
    group = client.groups("events").describe("billing")
    assert group.lag == group.behind == group.dead == 0
    acked: Counter[int] = Counter()
    for consumer in consumers:
        acked.update(consumer.acked)
        assert consumer.came_again == [], "acked with an answer, and handed out again"
    assert max(acked.values()) == 1
    seen = sum((consumer.seen for consumer in consumers), Counter())
    assert set(appending.acknowledged.values()) <= set(seen)
    assert max(seen.values()) > 1, "some were nacked, and came again"
