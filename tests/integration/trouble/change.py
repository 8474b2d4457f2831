"""A worker that sends messages for a little later and then cancels, moves and updates them.

`change` is told before it is asked; `changed` with the answer, or `change_unknown` when there was
none, which means either.
"""

from __future__ import annotations

from typing import Any

import fasti
from fasti.errors import FastiError
from tests.integration.trouble.facts import wall_us
from tests.integration.trouble.worker import Life

WAIT = "60s"


class Changer:
    def __init__(self, life: Life) -> None:
        self.life, self.random = life, life.random
        self.client = life.connect()
        topic = life.option("topic", "t")
        self.producer = self.client.producer(topic)
        self.messages = self.client.messages(topic)
        self.delay_us = life.option("delay_ms", 400) * 1000
        self.pause_s = life.option("pause_ms", 0) / 1000
        self.number = 0
        self.pending: list[int] = []

    def run(self) -> None:
        while not self.life.stopping.is_set():
            if len(self.pending) < 5:
                self._send()
            else:
                message = self.pending.pop(self.random.randrange(len(self.pending)))
                self.random.choice([self._cancel, self._cancel, self._move, self._update])(message)
            self.life.stopping.wait(self.pause_s)
        self.client.close()
        self.life.tell("end", failed=self.producer.failed)

    def _name(self) -> str:
        self.number += 1
        return f"{self.life.tell.who}-{self.number}"

    def _send(self) -> None:
        names = [self._name() for _ in range(20)]
        now_us = wall_us()
        due = [now_us + self.random.randrange(self.delay_us) for _ in names]
        self.life.tell("try", names=names, due=due, wall_us=now_us)
        try:
            outcomes = self.producer.send_batch([n.encode() for n in names], due=due, timeout=WAIT)
        except FastiError as error:
            self.life.tell("send_failed", names=names, code=error.code, message=str(error))
            return
        rows = [[each.status, each.id, each.version] for each in outcomes]
        self.life.tell("sent", names=names, rows=rows)
        self.pending += [each.id for each in outcomes if each.ok]

    def _cancel(self, message: int) -> None:
        self._change("cancel", message)

    def _move(self, message: int) -> None:
        self._change("move", message, due=wall_us() + self.random.randrange(self.delay_us))

    def _update(self, message: int) -> None:
        self._change("update", message, name=self._name())

    def _change(self, verb: str, message: int, **facts: Any) -> None:
        self.life.tell("change", verb=verb, id=message, **facts)
        arguments: dict[str, Any] = {"id": message}
        if verb == "move":
            arguments["due"] = facts["due"]
        if verb == "update":
            arguments["payload"] = facts["name"].encode()
        try:
            outcome: fasti.Outcome = getattr(self.messages, verb)(**arguments)
        except FastiError as error:
            # Sends that failed after their answer was waited for in vain are told by the next change.
            if not error.retryable and error.code != "rows_failed":
                raise
            self.life.tell("change_unknown", verb=verb, id=message, code=error.code, **facts)
        else:
            self.life.tell("changed", verb=verb, id=message, status=outcome.status, **facts)


if __name__ == "__main__":
    Changer(Life()).run()
