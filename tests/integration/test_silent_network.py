"""A network that vanishes without a word: what waits notices by itself, and goes on when it is back.

The proxy takes connections and bytes and passes nothing on, so no socket ever tells of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import TimedOut
from tests.integration.serve_rig import SEGMENTS
from tests.integration.trouble.proxy import Proxy

PATIENCE_S = 120.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as found:
        yield found


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


def test_an_idle_consumer_notices_and_comes_back(broker: BrokerProcess) -> None:
    with (
        Proxy(broker.host, broker.port) as network,
        fasti.connect(broker.address) as near,
        fasti.connect(network.address) as far,
    ):
        near.create_topic("work")
        came: list[bytes] = []
        consumer = far.consumer("work", timeout=PATIENCE_S)
        near.producer("work").send(b"before").result(60)
        # One thread iterates, idle after the first message.
        stop = threading.Event()

        def work() -> None:
            for message in consumer:
                came.append(message.payload)
                message.ack()
                if stop.is_set():
                    return

        working = threading.Thread(target=work)
        working.start()
        eventually(lambda: came == [b"before"])
        consumer.flush(60)
        assert consumer.reconnections == 0
        network.hold_up()
        # Nobody sends anything, and no socket is closed.
        eventually(lambda: consumer.reconnections)
        stop.set()
        near.producer("work").send(b"after").result(60)
        network.let_go()
        working.join(PATIENCE_S)
        assert came == [b"before", b"after"]


def test_a_send_under_way_is_repeated_once(broker: BrokerProcess) -> None:
    with (
        Proxy(broker.host, broker.port) as network,
        fasti.connect(broker.address) as near,
        fasti.connect(network.address) as far,
    ):
        near.create_topic("work")
        producer = far.producer("work")
        producer.send(b"0", delay="1h").result(60)
        network.hold_up()
        receipt = producer.send(b"1", delay="1h")
        # What was on its way is not passed on even later: the connection is found dead, and cut.
        before = network.connections
        eventually(lambda: network.connections > before)
        network.cut()
        network.let_go()
        assert receipt.result(PATIENCE_S).ok
        assert near.messages("work").count()["scheduled"] == 2


@pytest.mark.long
def test_a_broker_that_only_takes_its_time_is_not_left(broker: BrokerProcess) -> None:
    with (
        Proxy(broker.host, broker.port) as network,
        fasti.connect(network.address) as client,
    ):
        client.create_topic("work")
        consumer = client.consumer("work", timeout=60)
        network.slow(0.2, 0.2)
        for number in range(10):
            client.producer("work").send(b"%d" % number).result(60)
            next(consumer).ack(wait=True, timeout=60)
        assert consumer.reconnections == 0
        consumer.close()


@pytest.mark.one_shard
def test_a_call_says_what_lets_it_wait_longer(broker: BrokerProcess) -> None:
    with Proxy(broker.host, broker.port) as network:
        with fasti.connect(network.address, timeout="200ms") as client:
            client.create_topic("work")
            pending = client.messages("work")
            network.hold_up()
            with pytest.raises(TimedOut, match=r"cancel within 0.2 s; connect\(timeout=...\)"):
                pending.cancel(key="k")
            with pytest.raises(TimedOut, match=r"hello within 0.1 s; connect\(timeout=...\)"):
                fasti.connect(network.address, timeout="100ms")
            network.let_go()
