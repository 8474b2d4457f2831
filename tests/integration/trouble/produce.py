"""A worker that sends: one by one, in batches, under keys, in every manner of conflict.

Every message has a name of its own as its payload. `try` names what is about to be sent, `sent`
what was answered. Nothing here minds whether the broker is there: that is the SDK's work.
"""

from __future__ import annotations

from typing import Any

from fasti.errors import FastiError, RowsFailed
from tests.integration.trouble.facts import wall_us
from tests.integration.trouble.worker import Life

WAIT = "60s"


class Sender:
    def __init__(self, life: Life) -> None:
        self.life, self.random = life, life.random
        client = life.connect()
        self.client = client
        self.producer = client.producer(life.option("topic", "t"))
        self.delay_ms_max = life.option("delay_ms_max", 300)
        self.pause_s = life.option("pause_ms", 0) / 1000
        self.number = 0

    def run(self) -> None:
        names = self.life.option("manners", ["singles", "batch", "slots"])
        manners = [getattr(self, name) for name in names]
        limit = self.life.option("count", 1 << 30)
        while not self.life.stopping.is_set() and self.number < limit:
            self.random.choice(manners)()
            self.life.stopping.wait(self.pause_s)
        self.life.tell("flushing")
        try:
            self.producer.flush(WAIT)
        except RowsFailed as error:
            # They were told as failed when no answer had come in time.
            self.life.tell("flush_failed", failures=len(error.failures))
        self.client.close()
        self.life.tell("end", failed=self.producer.failed)

    def _names(self, count: int) -> list[str]:
        self.number += count
        who = self.life.tell.who
        return [f"{who}-{n}" for n in range(self.number - count + 1, self.number + 1)]

    def _delay_us(self) -> int:
        if not self.delay_ms_max:
            return 0
        return self.random.choice([0, self.random.randrange(1, self.delay_ms_max * 1000)])

    def _tried(self, names: list[str], **facts: Any) -> None:
        self.life.tell("try", names=names, wall_us=wall_us(), **facts)

    def _told(self, names: list[str], outcomes: Any) -> None:
        rows = [[each.status, each.id, each.version] for each in outcomes]
        self.life.tell("sent", names=names, rows=rows)

    def singles(self) -> None:
        names = self._names(self.random.randrange(1, 30))
        delays = [self._delay_us() for _ in names]
        self._tried(names, delays=delays)
        receipts = [
            self.producer.send(name.encode(), delay=delay / 1_000_000 if delay else None)
            for name, delay in zip(names, delays, strict=True)
        ]
        self._answer_each(names, receipts)

    def rows(self) -> None:
        """Rows of a log, under keys: any number of them may have the same."""
        names = self._names(self.random.randrange(1, 20))
        keys = [f"{self.life.tell.who}-{self.random.randrange(20)}" for _ in names]
        self._tried(names, keys=keys)
        receipts = [
            self.producer.send(name.encode(), key=key)
            for name, key in zip(names, keys, strict=True)
        ]
        self._answer_each(names, receipts)

    def batch(self) -> None:
        names = self._names(self.random.randrange(1, 60))
        now_us = wall_us()
        due = [now_us + self._delay_us() for _ in names]
        self._tried(names, due=due)
        payloads = [name.encode() for name in names]
        atomic = self.random.random() < 0.5
        self._answer(
            names,
            lambda: self.producer.send_batch(payloads, due=due, atomic=atomic, timeout=WAIT),
        )

    def slots(self) -> None:
        """Keys that are used again and again, some while their message lives."""
        names = self._names(self.random.randrange(1, 8))
        who = self.life.tell.who
        keys = [f"{who}-slot-{self.random.randrange(12)}" for _ in names]
        on_conflict = self.random.choice(["reject", "replace", "keep"])
        self._tried(names, keys=keys, on_conflict=on_conflict)
        receipts = [
            self.producer.send(
                name.encode(), delay=self.delay_ms_max / 2000, key=key, on_conflict=on_conflict
            )
            for name, key in zip(names, keys, strict=True)
        ]
        self._answer_each(names, receipts)

    def _answer_each(self, names: list[str], receipts: list[Any]) -> None:
        answers: dict[str, Any] = {}
        for name, receipt in zip(names, receipts, strict=True):
            try:
                answers[name] = receipt.result(WAIT)
            except FastiError as error:
                self._failed([name], error)
        if answers:
            self._told(list(answers), answers.values())

    def _answer(self, names: list[str], result: Any) -> None:
        try:
            self._told(names, result())
        except FastiError as error:
            self._failed(names, error)

    def _failed(self, names: list[str], error: FastiError) -> None:
        self.life.tell("send_failed", names=names, code=error.code, message=str(error))


if __name__ == "__main__":
    Sender(Life()).run()
