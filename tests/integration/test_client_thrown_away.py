"""Producers and consumers that nobody keeps: what they did still counts."""

from __future__ import annotations

import gc
from pathlib import Path

import fasti
from fasti.testing.virtual import VirtualBroker


def test_what_a_forgotten_producer_sent_arrives(tmp_path: Path) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t")
        for number in range(50):
            client.producer("t").send(str(number).encode(), delay="1h")
        gc.collect()
    with fasti.connect(f"embedded:{tmp_path}") as client:
        assert client.messages("t").count()["scheduled"] == 50


def test_a_change_waits_for_what_a_forgotten_producer_sent() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        for number in range(50):
            client.producer("t").send(b"", delay="1h", key=f"k{number}")
            assert client.messages("t").cancel(key=f"k{number}").status == "ok"


def test_a_change_waits_for_the_acks_of_this_client() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        client.producer("t").send(b"", key="k").result(10)
        with client.consumer("t") as consumer:
            next(iter(consumer)).ack()
            assert client.messages("t").cancel(key="k").status == "done"
