"""How user code takes what its consumer holds."""

from __future__ import annotations

from typing import Any

import pytest

import fasti
from fasti.client.consumer import Consumer
from fasti.errors import FastiError
from fasti.testing import VirtualBroker
from tests.unit.client.fakes import FakeStream, FakeTransport
from tests.unit.client.test_consumer import ready


def test_an_iterator_that_is_collected_in_the_middle_of_the_sessions_work_waits_for_nothing() -> (
    None
):
    with VirtualBroker() as broker, broker.client() as client:
        client.create_topic("t", lookahead=0)
        client.producer("t").send_batch([b"1", b"2"])
        consumer: fasti.Consumer = client.consumer("t", timeout=20)
        iterator = iter(consumer)
        assert next(iterator).payload == b"1"
        with consumer.session.lock:
            # As Python does it, wherever it collects.
            iterator.close()
        assert next(iter(consumer)).payload == b"2"
        consumer.close()


def test_user_code_learns_of_an_error_in_what_its_session_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session's thread would have ended by it, and user code waited for ever."""
    transport = FakeTransport()
    transport.on_open = FakeStream.accept_all
    consumer = Consumer(transport, "emails", timeout=20)
    consumer.session.start()
    ready(transport.stream())

    def poll(now: Any) -> Any:
        if not consumer.session.machine.over:
            raise ZeroDivisionError("division by zero")
        return original(now)

    original = consumer.session.machine.poll
    monkeypatch.setattr(consumer.session.machine, "poll", poll)
    with pytest.raises(FastiError, match="ZeroDivisionError: division by zero"):
        next(iter(consumer))
    consumer.close(timeout=5)
