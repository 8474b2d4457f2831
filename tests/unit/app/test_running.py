"""How an app begins and ends when both happen at once."""

from __future__ import annotations

import threading

import fasti
from fasti.testing import VirtualBroker

WAIT_S = 30.0


def test_an_app_that_is_stopped_while_it_starts_never_begins() -> None:
    """Workers that began after the end would take messages, and nobody would end them."""
    got: list[bytes] = []
    ended = threading.Event()
    with VirtualBroker() as broker:
        app = fasti.App().bind(broker.client())

        @app.on("emails")
        def handle(payload: bytes) -> None:
            got.append(payload)

        @app.on_start
        def stop() -> None:
            app.request_stop()
            assert ended.wait(WAIT_S)

        broker.client().create_topic("emails")
        broker.client().producer("emails").send(b"hello").result(WAIT_S)
        app.start(ended=ended.set)
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if "handle" in name]
        assert broker.client().messages("emails").count()["ready"] == 1
        assert got == []
        app.stop()
