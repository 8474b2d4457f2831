"""How user code takes what its consumer holds."""

from __future__ import annotations

import fasti
from fasti.testing import VirtualBroker


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
