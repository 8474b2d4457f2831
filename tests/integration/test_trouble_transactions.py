"""Transactions while the broker is killed: all of each or nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.trouble.load import SMALL
from tests.integration.trouble.rig import crew


def names_of(client: fasti.Client, topic: str) -> list[str]:
    table = client.messages(topic).list(limit=None, payload=True)
    return [payload.decode() for payload in table.column("payload").to_pylist()]


def hand_on_and_kill(directory: Path, seed: int, rounds: int, most: int) -> None:
    """Kills the broker `rounds` times, each after up to `most` messages were handed on."""
    rng = random.Random(seed)
    # More than are handed on before the last kill, however late we hear of it.
    sent = [f"m-{n}" for n in range(2_000 * rounds)]
    with BrokerProcess(directory, settings=SMALL) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("in", lease="1h")
            client.create_topic("out")
            client.producer("in").send_batch([name.encode() for name in sent], key=sent)
        with crew(broker.address) as workers:
            for number in range(3):
                workers.start("transact", f"mover-{number}")
            workers.all_ready()
            for _ in range(rounds):
                more = rng.randrange(1, most)
                workers.book.wait_for("handed", count=more, since=len(workers.book))
                broker.kill()
                broker.start()
                with fasti.connect(broker.address) as client:
                    # A moment of both topics at once, as far as every message is in one of them.
                    done = client.messages("in").count()["done"]
                    assert len(names_of(client, "out")) >= done
            workers.book.wait_for("handed", count=most, since=len(workers.book))
            for worker in workers.workers:
                worker.stop()
            unknown = workers.book.all("unknown")
            handed = {fact["name"] for fact in workers.book.all("handed")}
        with fasti.connect(broker.address) as client:
            out = names_of(client, "out")
            assert sorted(out) == sorted(handed)
            assert sorted(out + names_of(client, "in")) == sorted(sent)
            counts = client.messages("in").count()
            assert (counts["done"], counts["leased"]) == (len(out), 0)
    # What was under way when the broker was killed was asked for again, under its number.
    assert not unknown


def test_a_message_is_handed_on_whole_or_not_at_all(tmp_path: Path) -> None:
    hand_on_and_kill(tmp_path, seed=6, rounds=4, most=60)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_messages_are_handed_on_over_many_kills(tmp_path: Path) -> None:
    hand_on_and_kill(tmp_path, seed=7, rounds=40, most=240)
