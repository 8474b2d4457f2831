"""A worker that takes messages into its hands and does with them what it is ordered to, when.

Orders: `take N` (tells `got`, then `holding`), `ack` (all in hand, gathered; tells `acked`, and
`refused` where the SDK raised), `ack-each` (waits for every outcome), `stop`.
"""

from __future__ import annotations

import fasti
from tests.integration.trouble.consume import Receiver
from tests.integration.trouble.worker import Life


class Holder(Receiver):
    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.in_hand: list[fasti.Message] = []

    def run(self) -> None:
        while (order := self.life.orders.get()) != "stop":
            word, _, number = order.partition(" ")
            if word == "take":
                self.take(int(number))
            elif word == "ack":
                self.ack()
            elif word == "ack-each":
                self.ack_each()
        self.life.tell("end")
        self.client.close()

    def take(self, count: int) -> None:
        taken = 0
        while taken < count and not self.life.stopping.is_set():
            messages = self.consumer.take(count - taken)
            if messages:
                self._got(messages)
                self.in_hand += messages
                taken += len(messages)
        self.life.tell("holding", count=len(self.in_hand))

    def ack(self) -> None:
        self.life.tell("ack", ids=[message.id for message in self.in_hand])
        for message in self.in_hand:
            message.ack()
            self.unflushed.append(message.id)
        self.in_hand = []
        self._flush()

    def ack_each(self) -> None:
        messages, self.in_hand = self.in_hand, []
        self.life.tell("ack", ids=[message.id for message in messages])
        for message in messages:
            outcome = message.ack(wait=True)
            assert outcome is not None
            self._answered([message.id], [outcome.status])
        self.life.tell("answered")


if __name__ == "__main__":
    Holder(Life()).run()
