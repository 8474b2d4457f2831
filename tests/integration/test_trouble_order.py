"""In which order a consumer that comes back hears what it asked."""

from __future__ import annotations

from typing import Any

from fasti.broker.caller import EMBEDDED
from fasti.core import commands as co
from fasti.testing.virtual import VirtualBroker
from tests.integration.shard_rig import (
    FakeClock,
    SharedFiles,
    held_up,
    make_topic,
    produce,
    serving,
)


def test_leases_that_are_given_again_come_before_the_answer_to_a_heartbeat() -> None:
    """Both in one step. The SDK takes that answer as the word that all its leases are here."""
    with serving(SharedFiles(), clock=FakeClock()) as shard:
        make_topic(shard)
        produce(shard, b"a", b"b")
        before = shard.open_session()
        before.lease("t", "worker", 2)
        assert before.receive(60) is not None
        again = shard.open_session()
        heard: list[str] = []

        def hear(kind: str) -> Any:
            return lambda _: heard.append(kind)

        arrive = again.arrive
        again.arrive = lambda *shown: (heard.append("leases"), arrive(*shown))  # type: ignore[assignment, func-returns-value]
        lost = before.end
        before.end = lambda effect: (heard.append("fenced"), lost(effect))  # type: ignore[assignment, func-returns-value]
        with held_up(shard):
            credit = shard.submit([co.Lease("t", again.number, "worker", 1)])
            credit.add_done_callback(hear("credit"))
            beat = shard.submit([co.Heartbeat("t", "worker")])
            beat.add_done_callback(hear("heartbeat"))
        assert beat.result(60)[0].value == 2
        # One more word through the same thread: what belongs to that step has arrived by then.
        shard.call(co.Count("t"), 20)
        assert heard == ["leases", "credit", "heartbeat", "fenced"]


def test_a_session_that_has_ended_is_leased_nothing() -> None:
    """Whoever closes gives back what came; a lease behind the end would last its whole length."""
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("t")
        descriptor = {"version": 1, "call": "consume", "topic": "t", "consumer": "worker"}
        session = broker.service.exchange(EMBEDDED, descriptor)
        session.take({"op": "credit", "count": 5}, None)
        session.finish()
        assert session.next() is None
        client.producer("t").send(b"for somebody else").result()
        counts = client.messages("t").count()
        assert (counts["ready"], counts["leased"]) == (1, 0)
        broker.service.leave(session)
