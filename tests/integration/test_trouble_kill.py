"""A broker that is killed, or stopped and started again, while processes send, change and consume."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.trouble.facts import Book
from tests.integration.trouble.load import SMALL, TOPIC, finish, go_on, start_all
from tests.integration.trouble.rig import crew

HELD = 10
CANCELS = 5


def cancels(book: Book) -> set[int]:
    """Messages whose cancel was answered ok."""
    return {
        fact["id"]
        for fact in book.all("changed")
        if fact["verb"] == "cancel" and fact["status"] == "ok"
    }


def end_again_and_again(
    directory: Path, seed: int, rounds: int, facts: int, end: Callable[[BrokerProcess], object]
) -> None:
    rng = random.Random(seed)
    with BrokerProcess(directory, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **TOPIC)
            client.producer("t").send_batch([f"held-{n}".encode() for n in range(HELD)])
        with crew(broker.address) as workers:
            # Somebody has messages in hand all the time.
            holder = workers.start("hold", "holder", prefetch=HELD)
            holder.order(f"take {HELD}")
            workers.book.wait_for("holding")
            start_all(workers, seed)
            for _ in range(rounds):
                go_on(workers, rng.randrange(20, facts))
                end(broker)
                broker.start()
            go_on(workers, 20)
            # However the processes shared the cores, some were cancelled.
            workers.book.wait(lambda: len(cancels(workers.book)) > CANCELS, 60.0, "cancels")
            holder.order("ack-each")
            assert len(workers.book.wait_for("acked", who="holder", count=HELD)) == HELD
            holder.stop()
            workers.workers.remove(holder)
            ledger = finish(workers, broker, "held-")
    assert len(ledger.acked) > 100
    assert len(ledger.cancelled()) > CANCELS


def test_a_broker_that_is_killed_under_load(tmp_path: Path) -> None:
    end_again_and_again(tmp_path, 1, rounds=4, facts=300, end=BrokerProcess.kill)


@pytest.mark.long
def test_a_broker_that_is_stopped_softly_under_load(tmp_path: Path) -> None:
    end_again_and_again(tmp_path, 2, rounds=2, facts=300, end=BrokerProcess.stop)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_broker_that_is_killed_very_often(tmp_path: Path, seed: int) -> None:
    end_again_and_again(tmp_path, seed, rounds=25, facts=1000, end=BrokerProcess.kill)
