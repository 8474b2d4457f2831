"""A worker that takes messages from `in` and hands each on to `out`: ack and send as one.

When it can't be told whether a transaction happened it is tried again, as any careful program would:
if it had happened the ack says `done`, and nothing is sent twice.
"""

from __future__ import annotations

import time

import fasti
from fasti.errors import FastiError, TransactionAborted
from tests.integration.trouble.worker import Life


class Mover:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.client = life.connect()
        self.consumer = self.client.consumer("in", name=life.tell.who, prefetch=20)
        life.on_stop = self.consumer.stop

    def run(self) -> None:
        for message in self.consumer:
            self.hand_on(message)
        self.client.close()
        self.life.tell("end")

    def hand_on(self, message: fasti.Message) -> None:
        name = message.payload.decode()
        self.life.tell("handing", id=message.id, name=name)
        while True:
            try:
                with self.client.transaction() as tx:
                    tx.ack(message)
                    tx.send("out", message.payload, key=name, delay="1h")
            except TransactionAborted as error:
                status = {failure["status"] for failure in error.failures}
                self.life.tell("aborted", id=message.id, status=sorted(status))
                if "done" in status:
                    break
                # The session came back under another token meanwhile: it is still ours.
                if status != {"stale_lease"}:
                    raise
            except FastiError as error:
                if not error.retryable:
                    raise
                self.life.tell("unknown", id=message.id, code=error.code)
                # The broker is away.
                time.sleep(0.05)
            else:
                break
        self.life.tell("handed", id=message.id, name=name)


if __name__ == "__main__":
    Mover(Life()).run()
