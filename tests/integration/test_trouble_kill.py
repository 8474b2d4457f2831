"""A broker that is killed again and again while processes send, change and consume."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.integration.trouble.rig import Crew, crew
from tests.integration.trouble.verdict import Ledger

import fasti
from fasti.broker.launch import BrokerProcess

# Small, so that segments roll, checkpoints run and slices are loaded while it is killed.
SMALL = {
    "segment_size": "1MiB",
    "memory": "64MiB",
    "leases_max": 65_536,
    "checkpoint_size": "2MiB",
}
TOPIC = {
    "lease": "1h",
    "lookahead": "50ms",
    "max_attempts": 0,
    "partitions": 2,
    "retry": fasti.Backoff("50ms", factor=1.0, jitter=0.0),
}


def start_all(workers: Crew, seed: int) -> None:
    for number in (1, 2):
        workers.start("produce", f"producer-{number}", seed=seed)
    workers.start("change", "changer", seed=seed)
    workers.start("consume", "consumer-1", seed=seed, way="message")
    workers.start("consume", "consumer-2", seed=seed, way="batch", prefetch=100)
    workers.start("consume", "consumer-3", seed=seed, way="message", prefetch=4)
    workers.all_ready()


def finish(workers: Crew, broker: BrokerProcess) -> Ledger:
    """Producers end, consumers go on until nothing is owed, then the broker's own counts agree."""
    senders = [each for each in workers.workers if not each.who.startswith("consumer")]
    others = [each for each in workers.workers if each.who.startswith("consumer")]
    for worker in senders:
        worker.stop()
    with fasti.connect(broker.address) as client:
        messages = client.messages("t")

        def drained() -> bool:
            counts = messages.count()
            return not (counts["scheduled"] + counts["ready"] + counts["leased"])

        # A consumer knows of its last acks when it flushes, so the broker is asked.
        workers.book.wait(lambda: drained(), 40.0, "nothing scheduled, ready or leased")
        for worker in others:
            worker.stop()
        counts = messages.count()
    ledger = Ledger(workers.book)
    ledger.check()
    ledger.nothing_lost()
    sure, maybe = len(ledger.cancelled()), len(ledger.maybe_cancelled())
    assert counts["dead"] == 0
    assert sure <= counts["cancelled"] <= sure + maybe
    owed = {message for message, _ in ledger.ok.values()}
    assert counts["done"] + counts["cancelled"] == len(owed)
    return ledger


def kill_again_and_again(directory: Path, seed: int, rounds: int, facts: int) -> None:
    rng = random.Random(seed)
    with BrokerProcess(directory, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **TOPIC)
        with crew(broker.address) as workers:
            start_all(workers, seed)
            for _ in range(rounds):
                begin = len(workers.book)
                more = rng.randrange(20, facts)
                workers.book.wait(
                    lambda at=begin + more: len(workers.book) >= at, 30.0, "more facts"
                )
                # Somebody was served since the last start, so all have come back.
                workers.book.wait_for("acked", since=begin)
                workers.book.wait_for("sent", since=begin)
                broker.kill()
                broker.start()
            ledger = finish(workers, broker)
    assert len(ledger.acked) > 100
    assert len(ledger.cancelled()) > 5


def test_a_broker_that_is_killed_under_load(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, seed=1, rounds=4, facts=300)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_is_killed_very_often(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path, seed=100 + seed, rounds=25, facts=1000)
