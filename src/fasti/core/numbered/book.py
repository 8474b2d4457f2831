"""What the last calls of each client were answered, so that a call whose answer got lost can be made again.

A client numbers its calls; they may come in any order, some at the same time. With each it tells which
number all earlier ones are answered below (`since`): those are forgotten, so that a client which makes one
call after the other has one answer here. A number that may have been forgotten is refused, and never
carried out a second time: one below `since`, or below what was dropped because a client had too many
(`ANSWERS_MAX`).

Clients are forgotten an hour after their last call, or earlier when there are more than `CLIENTS_MAX` or
their answers take more than `BYTES_MAX`: nobody is refused for it. Instead the book knows when the last
of those who are forgotten had its last call. A call that is made again says how long ago it was first made:
if that was before, its answer may be among what is forgotten, else it is not. What is forgotten follows
from the events' own times, so that a replay forgets the same.

A first attempt that comes late, behind its own repetition, finds the answer of that, or that it is too late.
So the outcomes of a repetition are remembered also if nothing happened; those of a first attempt only if
something did. What is refused as a whole has changed nothing, and is not remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.numbered.commands import CallNumber
from fasti.core.numbered.events import EVEN, CallAnswered, RowsAnswered
from fasti.core.producers import Receipt, pack_receipts, unpack_receipts
from fasti.errors import CallForgotten
from fasti.model import HOUR_US, SECOND_US

# So many answers of one client, while it has calls without an answer: more than it makes at once.
ANSWERS_MAX = 1_024
CLIENTS_MAX = 10_000
BYTES_MAX = 64 << 20
REMEMBERED_US = HOUR_US
# By so much the moment at which a call was first made may be earlier than it looks from here: the way of
# the repetition, and clocks.
_UNSURE_US = 10 * SECOND_US
# The objects that a client and an answer are made of, about.
_CLIENT_BYTES = 512
_ANSWER_BYTES = 400
_FORGOTTEN_PER_CALL = 4


class Answer(NamedTuple):
    """The reply to a command, in few bytes. `receipt` has its rows, if `value` doesn't say it all."""

    form: int
    value: Any
    has_ids: bool
    receipt: Receipt | None
    # What it takes, about.
    size_bytes: int

    @classmethod
    def of(cls, form: int, value: Any, has_ids: bool, receipt: Receipt | None) -> Answer:
        """With its size."""
        size = _ANSWER_BYTES
        if form != EVEN:
            size += _plain_bytes(value)
        if receipt is not None:
            size += len(receipt.runs) + len(receipt.order)
        return cls(form, value, has_ids, receipt, size)


def _answer(event: CallAnswered) -> Answer:
    if type(event) is not RowsAnswered:
        return Answer.of(event.form, event.value, False, None)
    rows = len(event.status)
    has_ids = bool(len(event.ids))
    ids = event.ids if has_ids else np.zeros(rows, dtype=np.int64)
    receipt = Receipt.of(event.number, event.status, ids, event.versions)
    return Answer.of(event.form, event.value, has_ids, receipt)


@dataclass(slots=True)
class CallClient:
    """One client's answers by number and part, in the order in which they were given."""

    # Nothing up to this number is carried out any more.
    floor: int = 0
    seen_us: int = 0
    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)
    size_bytes: int = _CLIENT_BYTES

    def add(self, name: tuple[int, int], answer: Answer, since: int) -> None:
        """One more; those below `since` go."""
        if since - 1 > self.floor:
            self.floor = since - 1
            for other in [other for other in self.answers if other[0] < since]:
                self._drop(other)
        if len(self.answers) >= ANSWERS_MAX:
            first = next(iter(self.answers))
            self.floor = max(self.floor, first[0])
            self._drop(first)
        self.answers[name] = answer
        self.size_bytes += answer.size_bytes

    def _drop(self, name: tuple[int, int]) -> None:
        self.size_bytes -= self.answers.pop(name).size_bytes


class CallBook:
    """All clients of a shard, the one that was silent longest first."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # When the last of those who are forgotten made its last call.
        self.forgotten_us = 0
        self._clients: OrderedDict[str, CallClient] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, call: CallNumber, part: int, now_us: int) -> Answer | None:
        """What the command was answered; None: it never came. Raises `call_forgotten`."""
        client = self._clients.get(call.client)
        if client is not None:
            answer = client.answers.get((call.number, part))
            if answer is not None:
                return answer
            if call.number <= client.floor:
                raise _forgotten(call)
        if call.age_us and now_us - call.age_us - _UNSURE_US <= self.forgotten_us:
            raise _forgotten(call)
        return None

    def note(self, event: CallAnswered) -> None:
        """A command was answered."""
        client = self._clients.get(event.client)
        if client is None:
            client = self._clients[event.client] = CallClient()
            self.size_bytes += client.size_bytes + len(event.client)
        before = client.size_bytes
        client.add((event.number, event.part), _answer(event), event.since)
        client.seen_us = event.at_us
        self.size_bytes += client.size_bytes - before
        self._clients.move_to_end(event.client)
        self._forget(event.at_us)

    def _forget(self, now_us: int) -> None:
        """Drops those who were silent for too long, or are too many; a few a call, so that none is long."""
        for _ in range(_FORGOTTEN_PER_CALL):
            name, oldest = next(iter(self._clients.items()))
            too_many = len(self._clients) > CLIENTS_MAX or self.size_bytes > BYTES_MAX
            if oldest.seen_us + REMEMBERED_US >= now_us and not too_many:
                return
            if len(self._clients) == 1:
                # The one that has just called.
                return
            del self._clients[name]
            self.size_bytes -= oldest.size_bytes + len(name)
            self.forgotten_us = max(self.forgotten_us, oldest.seen_us)

    # Checkpoints

    def capture(self, columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """All of it, as plain values and columns."""
        answers = [
            answer for client in self._clients.values() for answer in client.answers.values()
        ]
        pack_receipts("answer", [a.receipt for a in answers if a.receipt is not None], columns)
        return {
            "forgotten_us": self.forgotten_us,
            "clients": [
                [name, client.floor, client.seen_us, [*map(_plain, client.answers.items())]]
                for name, client in self._clients.items()
            ],
        }

    def restore(self, head: dict[str, Any], columns: dict[str, NDArray[Any]]) -> None:
        """Back from `capture`."""
        self.forgotten_us = head["forgotten_us"]
        numbers = [a[5] for client in head["clients"] for a in client[3] if a[5] is not None]
        receipts = unpack_receipts("answer", numbers, columns)
        for client_name, floor, seen_us, described in head["clients"]:
            client = self._clients[client_name] = CallClient(floor, seen_us)
            for number, part, form, value, has_ids, packed in described:
                receipt = None if packed is None else next(receipts)
                answer = Answer.of(form, value, has_ids, receipt)
                client.answers[number, part] = answer
                client.size_bytes += answer.size_bytes
            self.size_bytes += client.size_bytes + len(client_name)


def _plain(item: tuple[tuple[int, int], Answer]) -> list[Any]:
    (number, part), answer = item
    numbers = None if answer.receipt is None else answer.receipt.numbers()
    return [number, part, answer.form, answer.value, answer.has_ids, numbers]


def _plain_bytes(value: Any) -> int:
    """What a plain value takes, about."""
    if value is None:
        return 0
    if isinstance(value, dict):
        return sum(_plain_bytes(key) + _plain_bytes(each) for key, each in value.items()) + 64
    if isinstance(value, list):
        return sum(map(_plain_bytes, value)) + 64
    return 50 + len(value) if isinstance(value, str) else 32


def _forgotten(call: CallNumber) -> CallForgotten:
    return CallForgotten(
        f"what became of call {call.number} is not remembered any more: it may have happened or not",
        details={"client": call.client, "number": call.number},
    )
