"""A load of everything at once, and how it is brought to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import fasti
from tests.integration.trouble.rig import Crew
from tests.integration.trouble.verdict import Ledger

# Small, so that segments roll, checkpoints run and slices are loaded while it is killed.
SMALL = {
    "segment_size": "1MiB",
    "memory": "64MiB",
    "leases_max": 65_536,
    "checkpoint_size": "2MiB",
}
TOPIC: dict[str, Any] = {
    "lease": "1h",
    "lookahead": "50ms",
    "max_attempts": 0,
    "partitions": 2,
    "retry": fasti.Backoff("50ms", factor=1.0, jitter=0.0),
}


# So many acks make a story worth judging, however the processes shared the cores.
ACKS = 120


def start_all(workers: Crew, seed: int, **options: Any) -> None:
    for number in (1, 2):
        workers.start("produce", f"producer-{number}", seed=seed, **options)
    workers.start("change", "changer", seed=seed, **options)
    workers.start("consume", "consumer-1", seed=seed, way="message", **options)
    workers.start("consume", "consumer-2", seed=seed, way="batch", prefetch=100, **options)
    workers.start("consume", "consumer-3", seed=seed, way="message", prefetch=4, **options)
    workers.all_ready()


def go_on(workers: Crew, facts: int) -> None:
    """Returns after so many more facts, and when some were sent and some done since."""
    begin = len(workers.book)
    workers.book.wait(lambda: len(workers.book) >= begin + facts, 60.0, "more facts")
    workers.book.wait_for("acked", since=begin, timeout=60.0)
    workers.book.wait_for("sent", since=begin, timeout=60.0)


def await_drained(workers: Crew, client: fasti.Client, topic: str = "t") -> None:
    """Returns when nothing is left to do. Somebody must tell of the last ack."""

    def drained() -> bool:
        counts = client.messages(topic).count()
        return not (counts["scheduled"] + counts["ready"] + counts["leased"])

    # The broker is asked whenever somebody told something.
    workers.book.wait(drained, 60.0, "nothing scheduled, ready or leased")


class Served(Protocol):
    """A broker, or several of them."""

    @property
    def address(self) -> str: ...


def finish(
    workers: Crew,
    broker: Served,
    others_names: str = "-",
    topic: str = "t",
    every_send_ok: bool = True,
) -> Ledger:
    """Producers end, consumers go on until nothing is owed, then the broker's own counts agree."""
    workers.book.wait_for("acked", count=ACKS, timeout=60.0)
    senders = [each for each in workers.workers if not each.who.startswith("consumer")]
    others = [each for each in workers.workers if each.who.startswith("consumer")]
    for worker in senders:
        worker.stop()
    with fasti.connect(broker.address) as client:
        await_drained(workers, client, topic)
        for worker in others:
            worker.stop()
        counts = client.messages(topic).count()
    ledger = Ledger(workers.book, others_names)
    ledger.check(every_send_ok=every_send_ok)
    ledger.nothing_lost()
    check_counts(ledger, counts)
    return ledger


def check_counts(ledger: Ledger, counts: Mapping[str, int]) -> None:
    """When all is done: the broker's own counts of a topic agree with what its clients were told."""
    sure, maybe = len(ledger.cancelled()), len(ledger.maybe_cancelled())
    assert counts["dead"] == 0
    assert sure <= counts["cancelled"] <= sure + maybe
    owed = len({message for message, _ in ledger.ok.values()}) + len(ledger.others)
    assert owed <= counts["done"] + counts["cancelled"] <= owed + len(ledger.maybe)
