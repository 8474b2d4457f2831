"""Connections that are cut, held up and slowed down, and clients whose wall clock lies."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.trouble.load import SMALL, TOPIC, finish, go_on, start_all
from tests.integration.trouble.proxy import Proxy
from tests.integration.trouble.rig import crew

HOUR_S = 3600
LATE_S = 0.08


def make_trouble(proxy: Proxy, rng: random.Random) -> None:
    kind = rng.choice(["cut", "cut", "cut twice", "hold up", "there", "back"])
    if kind == "hold up":
        proxy.hold_up()
        time.sleep(rng.uniform(0.1, 0.5))
        if rng.random() < 0.5:
            proxy.cut()
        proxy.let_go()
    elif kind in ("there", "back"):
        proxy.slow(LATE_S * (kind == "there"), LATE_S * (kind == "back"))
    else:
        proxy.slow(0, 0)
        proxy.cut()
        if kind == "cut twice":
            time.sleep(rng.uniform(0, 0.1))
            proxy.cut()


def on_a_bad_network(directory: Path, seed: int, rounds: int, facts: int) -> None:
    rng = random.Random(seed)
    with (
        BrokerProcess(directory, settings=SMALL) as broker,
        Proxy(broker.host, broker.port) as proxy,
    ):
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **TOPIC)
        with crew(proxy.address) as workers:
            start_all(workers, seed)
            before = proxy.connections
            for _ in range(rounds):
                go_on(workers, rng.randrange(10, facts))
                make_trouble(proxy, rng)
            proxy.slow(0, 0)
            ledger = finish(workers, broker)
        assert proxy.connections > before
    assert len(ledger.acked) > 100


def test_a_network_that_is_cut_held_up_and_slowed_down(tmp_path: Path) -> None:
    on_a_bad_network(tmp_path, seed=3, rounds=8, facts=100)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(200, 204))
def test_a_network_that_is_very_bad(tmp_path: Path, seed: int) -> None:
    on_a_bad_network(tmp_path, seed, rounds=60, facts=200)


def test_delays_in_one_direction_make_nothing_early(tmp_path: Path) -> None:
    """The offset of the clocks looks wrong by half the delay then, if one takes the middle."""
    with (
        BrokerProcess(tmp_path, settings=SMALL) as broker,
        Proxy(broker.host, broker.port) as proxy,
    ):
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **{**TOPIC, "lookahead": "1s"})
        with crew(proxy.address) as workers:
            start_all(workers, 4, delay_ms_max=1000)
            for there, back in ((0.2, 0.0), (0.0, 0.0), (0.0, 0.2)):
                proxy.slow(there, back)
                # Until estimates were made under it.
                for _ in range(3):
                    go_on(workers, 20)
            proxy.slow(0, 0)
            ledger = finish(workers, broker)
    assert len(ledger.acked) > 100


def test_clients_whose_wall_clock_leaps(tmp_path: Path) -> None:
    """Hours ahead and back, again and again: nothing early, and nobody gets stuck."""
    with BrokerProcess(tmp_path, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **TOPIC)
        with crew(broker.address) as workers:
            start_all(workers, 5)
            for by_s in (5 * HOUR_S, -10 * HOUR_S, 24 * HOUR_S, -1 * HOUR_S):
                begin = len(workers.book)
                for worker in workers.workers:
                    worker.order(f"leap {by_s}")
                workers.book.wait_for("leapt", count=len(workers.workers), since=begin)
                go_on(workers, 30)
            ledger = finish(workers, broker)
    assert len(ledger.acked) > 100


def test_a_closed_client_leaves_nobody_inside_grpc(tmp_path: Path) -> None:
    """However slow the network: a thread that comes back after the interpreter's end crashes it."""
    before = set(threading.enumerate())
    with (
        BrokerProcess(tmp_path, settings=SMALL) as broker,
        Proxy(broker.host, broker.port) as proxy,
        fasti.connect(proxy.address) as client,
    ):
        client.create_topic("t")
        client.producer("t").send(b"one").result(30)
        message = next(client.consumer("t"))
        message.ack(wait=True)
        proxy.slow(0, 0.3)
        client.close()
        left = {each.name for each in set(threading.enumerate()) - before}
        assert not left & {"fasti-receipts", "fasti-session", "fasti-clock"}
