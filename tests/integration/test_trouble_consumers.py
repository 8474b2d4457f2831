"""Consumers that hang, die and come back, and a broker that hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.serve_rig import SMALL
from tests.integration.trouble.facts import Fact
from tests.integration.trouble.rig import Crew, crew
from tests.integration.trouble.verdict import Ledger

# Three times between two heartbeats: a machine that is busy elsewhere for a second ends no lease.
LEASE_S = 2.0
LEASE = "2s"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings=SMALL) as started:
        yield started


@pytest.fixture
def workers(broker: BrokerProcess) -> Iterator[Crew]:
    with crew(broker.address) as made:
        yield made


def make_topic(broker: BrokerProcess, name: str, lease: str, count: int) -> list[int]:
    """A topic with so many messages that are due."""
    with fasti.connect(broker.address) as client:
        client.create_topic(name, lease=lease, max_attempts=0, lookahead="50ms")
        outcomes = client.producer(name).send_batch([f"m-{n}".encode() for n in range(count)])
        return outcomes.ids.tolist()


def rows(facts: list[Fact]) -> dict[int, list[Any]]:
    """What was got, by id: name, attempts, due, started, token."""
    return {row[0]: row[1:] for fact in facts for row in fact["rows"]}


def attempts(facts: list[Fact]) -> set[int]:
    return {row[1] for row in rows(facts).values()}


def counts(broker: BrokerProcess, topic: str) -> dict[str, int]:
    with fasti.connect(broker.address) as client:
        return client.messages(topic).count()


def test_a_consumer_that_hangs_loses_its_leases_and_is_told(
    broker: BrokerProcess, workers: Crew
) -> None:
    ids = make_topic(broker, "t", LEASE, 10)
    book = workers.book
    hung = workers.start("hold", "hung", prefetch=10)
    other = workers.start("hold", "other", prefetch=10)
    workers.all_ready()
    hung.order("take 5")
    book.wait_for("holding", who="hung")
    hung.pause()
    # It has five in hand, and five more wait at its side: all ten go to the other.
    other.order("take 10")
    book.wait_for("holding", who="other")
    second = rows(book.all("got", who="other"))
    assert sorted(second) == sorted(ids)
    # Attempts of messages count if it was heard since it got them.
    assert {second[message][1] for message in rows(book.all("got", who="hung"))} <= {1, 2}
    hung.resume()
    hung.order("ack")
    refused = book.wait_for("refused", who="hung")[0]["failures"]
    held = rows(book.all("got", who="hung"))
    assert {each["id"] for each in refused} == set(held)
    assert {(each["operation"], each["status"]) for each in refused} == {("ack", "stale_lease")}
    # The five that it never started are not its own any more either.
    other.order("ack-each")
    book.wait_for("answered", who="other")
    assert counts(broker, "t")["done"] == 10
    # And it goes on: the next messages are for both.
    with fasti.connect(broker.address) as client:
        client.producer("t").send_batch([f"late-{n}".encode() for n in range(2)])
    hung.order("take 2")
    book.wait_for("holding", who="hung", count=2)
    assert {row[0] for row in rows(book.all("got", who="hung")).values()} == {
        *(row[0] for row in held.values()),
        "late-0",
        "late-1",
    }
    hung.order("ack-each")
    book.wait_for("answered", who="hung")
    hung.stop()
    other.stop()
    ledger = Ledger(book)
    assert len(ledger.acked) == 12
    assert counts(broker, "t")["done"] == 12


def test_a_consumer_that_dies_in_the_middle_of_a_batch(
    broker: BrokerProcess, workers: Crew
) -> None:
    ids = make_topic(broker, "t", LEASE, 12)
    book = workers.book
    victim = workers.start("hold", "victim", prefetch=12)
    other = workers.start("hold", "other", prefetch=20)
    workers.all_ready()
    victim.order("take 12")
    book.wait_for("holding", who="victim")
    # Nobody else gets any while it lives, however long that lasts: leases renew themselves.
    other.order("take 12")
    time.sleep(LEASE_S * 1.5)
    assert not book.all("got", who="other")
    victim.kill()
    book.wait_for("holding", who="other")
    assert sorted(rows(book.all("got", who="other"))) == sorted(ids)
    assert attempts(book.all("got", who="other")) == {2}
    other.order("ack-each")
    book.wait_for("answered", who="other")
    assert counts(broker, "t")["done"] == 12
    other.stop()
    assert not Ledger(book).refused


def test_the_same_name_that_comes_back_within_its_lease_has_its_messages_again(
    broker: BrokerProcess, workers: Crew
) -> None:
    ids = make_topic(broker, "t", "1h", 20)
    book = workers.book
    first = workers.start("hold", "first", name="worker", prefetch=20)
    other = workers.start("hold", "other", prefetch=20)
    workers.all_ready()
    first.order("take 7")
    book.wait_for("holding", who="first")
    other.order("take 1")
    first.kill()
    # The lease would last for an hour: they come at once because of the name.
    second = workers.start("hold", "second", name="worker", prefetch=20)
    second.order("take 20")
    book.wait_for("holding", who="second")
    again = rows(book.all("got", who="second"))
    assert sorted(again) == sorted(ids)
    assert attempts(book.all("got", who="second")) == {1}
    before = rows(book.all("got", who="first"))
    assert all(again[message][4] > before[message][4] for message in before), "older tokens"
    second.order("ack-each")
    book.wait_for("answered", who="second")
    assert counts(broker, "t")["done"] == 20
    assert not book.all("got", who="other")
    assert not Ledger(book).refused


def test_a_broker_that_hangs_for_longer_than_every_lease(
    broker: BrokerProcess, workers: Crew
) -> None:
    """It was the broker that was away: whoever held a message then still does."""
    make_topic(broker, "t", LEASE, 10)
    book = workers.book
    holder = workers.start("hold", "holder", prefetch=10)
    other = workers.start("hold", "other", prefetch=10)
    producer = workers.start("produce", "producer", topic="more", seed=2)
    with fasti.connect(broker.address) as client:
        client.create_topic("more")
    workers.all_ready()
    holder.order("take 10")
    book.wait_for("holding", who="holder")
    book.wait_for("sent", who="producer", count=3)
    other.order("take 10")
    broker.pause()
    time.sleep(LEASE_S * 1.5)
    asked = len(book)
    broker.resume()
    book.wait_for("sent", who="producer", count=10, since=asked)
    holder.order("ack-each")
    book.wait_for("answered", who="holder")
    producer.stop()
    ledger = Ledger(book)
    assert not ledger.refused, "it lost its leases while the broker hung"
    assert not book.all("got", who="other")
    assert counts(broker, "t")["done"] == 10
    ledger.every_send_was_answered()
