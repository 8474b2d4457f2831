"""Rate-limited calls: a partner's API takes so many calls a second, and we have more.

    python examples/rate_limit.py

Calls are given slots in time, one behind the other, and due times keep them there: nothing sleeps,
nothing is kept in a worker's memory, and any number of workers share the pace. When the partner
refuses nevertheless, the call is released for as long as the partner asks; a release counts no
attempt, so being refused never makes a message dead.
"""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import fasti
from connection import connected

TOPIC = "example-partner-calls"
PER_SECOND = 20


@dataclass
class Slots:
    """Hands out moments, at least a slot apart, none in the past."""

    length: timedelta = field(default=timedelta(seconds=1 / PER_SECOND))
    next: datetime = field(default_factory=lambda: datetime.now(UTC))

    def take(self) -> datetime:
        """The next free one."""
        slot = max(self.next, datetime.now(UTC))
        self.next = slot + self.length
        return slot


class Partner:
    """The other side. It is out of order for a moment at its tenth call."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, order: int) -> float | None:
        """None if it was taken, or after how many seconds to come back."""
        self.calls += 1
        return 0.3 if self.calls == 10 else None


def schedule(client: fasti.Client, orders: range) -> list[datetime]:
    """Each order's call gets a slot; all go as one batch."""
    slots = Slots()
    due = [slots.take() for _ in orders]
    payloads = [json.dumps({"order": order}).encode() for order in orders]
    sent = client.producer(TOPIC).send_batch(payloads, due=due)
    print("scheduled:", sent.counts())
    return due


def main() -> None:
    with connected() as client:
        client.create_topic(TOPIC)
        due = schedule(client, range(1, 21))
        print("a slot every", min(later - sooner for sooner, later in pairwise(due)))

        partner, early = Partner(), 0
        with client.consumer(TOPIC, prefetch=1) as consumer:
            for message in consumer:
                early += message.started_us < message.due_us
                order = json.loads(message.payload)["order"]
                retry_after = partner.call(order)
                if retry_after is None:
                    message.ack()
                else:
                    print(f"refused: order {order}, again in {retry_after} s")
                    message.release(delay=retry_after)
                    continue
                if partner.calls == len(due) + 1:
                    break
        print("calls:", partner.calls, "done:", client.messages(TOPIC).count()["done"])
        print("before their slot:", early)


if __name__ == "__main__":
    main()
