"""Producers and consumers that nobody keeps: what they did still counts."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor, wait
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
        client.producer("t").send(b"", key="k").result(60)
        with client.consumer("t") as consumer:
            next(iter(consumer)).ack()
            assert client.messages("t").cancel(key="k").status == "done"


def test_messages_that_a_consumer_sits_on_go_to_others() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t", lease="1s", lookahead=0)
        client.producer("t").send_batch([b"0", b"1", b"2", b"3"])
        sitting = client.consumer("t", name="sitting", prefetch=4)
        first = next(iter(sitting))
        # Its session goes on renewing, but nobody takes the other three.
        with client.consumer("t", name="working") as working:
            messages = iter(working)
            with ThreadPoolExecutor(1) as taking:
                taken = taking.submit(lambda: [next(messages) for _ in range(3)])
                broker.advance("5s")
                # How long it sits on them counts from when it has heard of them, which may be
                # after the first leap of time.
                while not wait([taken], timeout=2).done:
                    broker.advance("5s")
                others = taken.result()
            assert [message.payload for message in others] == [b"1", b"2", b"3"]
            assert [message.attempts for message in others] == [1, 1, 1]
            for message in others:
                assert message.ack(wait=True).status == "ok"
        # What it has in its hands it keeps.
        assert first.ack(wait=True).status == "ok"
        sitting.close()
