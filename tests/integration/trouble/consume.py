"""A worker that consumes, by message or by batch, and finishes what it gets in several ways.

`got` is told when user code has a message; `ack`, `nack` and `release` before that is asked; `acked`
when the broker is known to have said ok; `refused` when the SDK tells that something was not ok.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import fasti
from fasti.errors import FastiError, RowsFailed
from tests.integration.trouble.facts import wall_us
from tests.integration.trouble.worker import Life


class Receiver:
    def __init__(self, life: Life) -> None:
        self.life, self.random = life, life.random
        client = life.connect()
        self.client = client
        self.consumer = client.consumer(
            life.option("topic", "t"),
            group=life.option("group"),
            name=life.option("name", life.tell.who),
            prefetch=life.option("prefetch", 32),
            time_limit=life.option("time_limit"),
            # When nothing comes, acks on their way are seen to.
            timeout="100ms",
        )
        life.on_stop = self.consumer.stop
        # Acks on their way, of which only `flush` tells.
        self.unflushed: list[int] = []
        self.hold_s = life.option("hold_ms", 0) / 1000
        self.nacks = life.option("nacks", 0.05)

    def run(self) -> None:
        ways: dict[str, Callable[[], None]] = {"message": self.by_message, "batch": self.by_batch}
        way = ways[self.life.option("way", "message")]
        while not self.life.stopping.is_set():
            try:
                way()
            except FastiError as error:
                # What every program does about such an error: it tries again.
                if not error.retryable:
                    raise
                self.life.tell("consume_failed", code=error.code, message=str(error))
        self._flush()
        self.life.tell("end", reconnections=self.consumer.reconnections)
        try:
            self.client.close()
        except RowsFailed as error:
            self._refused(error)

    def _refused(self, error: RowsFailed) -> None:
        failures = [
            {name: each.get(name) for name in ("operation", "id", "status")}
            for each in error.failures
        ]
        gone = {each["id"] for each in failures}
        self.unflushed = [each for each in self.unflushed if each not in gone]
        self.life.tell("refused", failures=failures)

    def by_message(self) -> None:
        for message in self.consumer:
            self._got([message])
            if self.hold_s:
                time.sleep(self.hold_s)
            self._finish(message)
            if len(self.unflushed) >= 200:
                self._flush()
            if self.life.stopping.is_set():
                break
        self._flush()

    def _finish(self, message: fasti.Message) -> None:
        luck = self.random.random()
        if luck < self.nacks / 2:
            self.life.tell("nack", ids=[message.id])
            message.nack("try again")
        elif luck < self.nacks:
            self.life.tell("release", ids=[message.id])
            message.release(delay=0.05)
        elif luck < self.nacks + 0.1:
            self.life.tell("ack", ids=[message.id])
            outcome = message.ack(wait=True)
            assert outcome is not None
            self._answered([message.id], [outcome.status])
        else:
            self.life.tell("ack", ids=[message.id])
            message.ack()
            self.unflushed.append(message.id)

    def _answered(self, ids: list[int], status: list[str]) -> None:
        pairs = list(zip(ids, status, strict=True))
        self.life.tell("acked", ids=[each for each, word in pairs if word == "ok"])
        bad = [{"operation": "ack", "id": i, "status": word} for i, word in pairs if word != "ok"]
        if bad:
            self.life.tell("refused", failures=bad)

    def _flush(self) -> None:
        try:
            self.consumer.flush("60s")
        except RowsFailed as error:
            self._refused(error)
        if self.unflushed:
            self.life.tell("acked", ids=self.unflushed)
            self.unflushed = []

    def by_batch(self) -> None:
        for batch in self.consumer.batches(self.life.option("rows", 50), wait="20ms"):
            messages = batch.messages
            self._got(messages)
            if self.hold_s:
                time.sleep(self.hold_s)
            nacked = [self.random.random() < self.nacks for _ in messages]
            ids = [message.id for message in messages]
            if any(nacked):
                self.life.tell("nack", ids=[i for i, bad in zip(ids, nacked, strict=True) if bad])
                batch.nack(nacked, "try again")
            good = [i for i, bad in zip(ids, nacked, strict=True) if not bad]
            if good:
                self.life.tell("ack", ids=good)
                outcomes: Any = batch.ack(wait=True)
                self._answered(good, outcomes.status)
            if self.life.stopping.is_set():
                break

    def _got(self, messages: list[fasti.Message]) -> None:
        now_us = wall_us()
        rows = [
            [m.id, m.payload.decode(), m.attempts, m.due_us, m.started_us, m.token]
            for m in messages
        ]
        self.life.tell("got", rows=rows, wall_us=now_us)


if __name__ == "__main__":
    Receiver(Life()).run()
