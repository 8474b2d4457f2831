"""What the demo's own process does with the broker: it schedules, moves, cancels and goes on sending.

Everything goes through the SDK, as a user's program would. What was promised is told to `Tell` after
the promise; a change without an answer, because the broker was killed, is told as such.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from examples.demo.facts import Change
from fasti.client.client import Client
from fasti.client.outcomes import Outcomes
from fasti.client.receipts import PendingBatch
from fasti.errors import FastiError
from fasti.model import DAY_US, DUE_MAX_US, SECOND_US

Int64s = NDArray[np.int64]
# Tells the story's thread to call this method of its facts.
Tell = Callable[..., None]

TOPIC = "reminders"
FAR_DAYS = 30
LEAD_US = SECOND_US // 2
CHANGE_EVERY_S = 0.1
_SEND_EVERY_S = 0.05
_SEND_ROWS = 10


def now_us() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000


def key_of(number: int) -> str:
    """The sender's own name for a message."""
    return f"reminder-{number}"


class Schedule:
    """Sends numbered messages; every number once."""

    def __init__(self, client: Client, tell: Tell) -> None:
        self._producer = client.producer(TOPIC)
        self._tell = tell
        # How many messages were sent; the next one's number.
        self.sent = 0

    def fill(self, due: Int64s, rows: int = 5_000) -> None:
        """Schedules messages and waits until they are durable."""
        for begin in range(0, len(due), rows):
            part = due[begin : begin + rows]
            numbers, asked_us, batch = self._send(part)
            self._took(numbers, part, asked_us, batch.result())

    def go_on(self, stop: threading.Event) -> None:
        """Sends a few every moment, whether the broker is there or not: the SDK sees to it."""
        under_way: list[tuple[list[int], Int64s, int, PendingBatch]] = []
        while not stop.wait(_SEND_EVERY_S):
            due = np.full(_SEND_ROWS, now_us() + LEAD_US) + np.arange(_SEND_ROWS) * 1_000
            numbers, asked_us, batch = self._send(due)
            under_way.append((numbers, due, asked_us, batch))
            while under_way and under_way[0][3].done:
                self._settle(*under_way.pop(0))
        for each in under_way:
            self._settle(*each)

    def close(self) -> None:
        """When nothing is to be sent any more."""
        self._producer.close()

    def _send(self, due: Int64s) -> tuple[list[int], int, PendingBatch]:
        numbers = list(range(self.sent, self.sent + len(due)))
        self.sent += len(due)
        columns = {
            "payload": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "key": pa.array([key_of(number) for number in numbers]),
            "due_us": pa.array(due),
        }
        asked_us = now_us()
        return numbers, asked_us, self._producer.send_batch(pa.table(columns), wait=False)

    def _settle(self, numbers: list[int], due: Int64s, asked_us: int, batch: PendingBatch) -> None:
        self._took(numbers, due, asked_us, batch.result(timeout="30s"))

    def _took(self, numbers: list[int], due: Int64s, asked_us: int, outcomes: Outcomes) -> None:
        good = outcomes.codes == 0
        told = np.array(numbers)[good].tolist()
        self._tell("produced", outcomes.ids[good].tolist(), due[good].tolist(), told, asked_us)


class Changes:
    """Goes on moving and cancelling what is pending, some of it soon due and some far away.

    Each round changes a share of `near` and of `far`, so that small runs keep messages to deliver;
    a share below one adds up over the rounds.
    """

    def __init__(self, client: Client, tell: Tell, near: float = 0, far: float = 0) -> None:
        self._messages = client.messages(TOPIC)
        self._tell = tell
        self._per_round = (near, far)
        self._owed = [0.0, 0.0]
        self._random = np.random.default_rng(7)

    def go_on(self, stop: threading.Event) -> None:
        """Until it is told to stop."""
        while not stop.wait(CHANGE_EVERY_S):
            at_us = now_us()
            spans = ((at_us + LEAD_US, at_us + DAY_US), (at_us + DAY_US, DUE_MAX_US))
            for place, (begin_us, end_us) in enumerate(spans):
                self._owed[place] += self._per_round[place]
                count = int(self._owed[place])
                self._owed[place] -= count
                # While the broker is away there is nothing to change.
                with suppress(FastiError):
                    self._some(count, begin_us, end_us)

    def cancel_keys(self, keys: list[str]) -> None:
        """Cancels by the sender's own names."""
        asked_us = now_us()
        outcomes = self._messages.cancel(key=keys)
        change = Change(outcomes.ids.tolist(), None, asked_us)
        self._tell("answered", change, (outcomes.codes == 0).tolist())

    def _some(self, count: int, begin_us: int, end_us: int) -> None:
        found = self._messages.list(
            state="scheduled", due_from=begin_us, due_to=end_us, limit=20 * count
        )
        count = min(count, found.num_rows // 2)
        if not count:
            return
        chosen = self._random.choice(found.num_rows, 2 * count, replace=False)
        ids = found.column("id").to_numpy()[chosen]
        later = found.column("due_us").to_numpy()[chosen[:count]] + LEAD_US
        moves = Change(ids[:count].tolist(), later.tolist(), now_us())
        self._ask(moves, lambda: self._messages.move(id=moves.ids, due=later))
        cancels = Change(ids[count:].tolist(), None, now_us())
        self._ask(cancels, lambda: self._messages.cancel(id=cancels.ids))

    def _ask(self, change: Change, call: Callable[[], Any]) -> None:
        try:
            outcomes = call()
        except FastiError:
            self._tell("unanswered", change)
            raise
        self._tell("answered", change, (outcomes.codes == 0).tolist())
