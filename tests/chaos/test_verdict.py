"""The verdict finds what it is there for: histories with one broken promise each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.trouble.facts import Book
from tests.integration.trouble.tallies import (
    check_counters,
    check_got_in_order,
    check_log,
    check_sent_in_order,
    count_displaced,
)
from tests.integration.trouble.verdict import Ledger

SECOND = 1_000_000
LEASE_US = 10 * SECOND


class History:
    """Facts as workers tell them, a second after each other. Message 7 is `p-1`, due at once."""

    def __init__(self) -> None:
        self.book = Book()
        self._at = 0

    def tell(self, what: str, who: str = "c-1", **facts: Any) -> History:
        self._at += SECOND
        self.book.add({"who": who, "what": what, "at": self._at, "wall_us": self._at, **facts})
        return self

    def send(self, name: str = "p-1", message: int = 7, due_us: int = 0) -> History:
        self.tell("try", "p", names=[name], due=[due_us])
        return self.tell("sent", "p", names=[name], rows=[["ok", message, 1]])

    def get(self, who: str = "c-1", message: int = 7, name: str = "p-1", **more: int) -> History:
        due_us, started_us = more.get("due_us", 0), more.get("started_us", self._at)
        row = [message, name, more.get("attempts", 1), due_us, started_us, 1]
        return self.tell("got", who, rows=[row])

    def ack(self, who: str = "c-1", message: int = 7) -> History:
        return self.tell("ack", who, ids=[message]).tell("acked", who, ids=[message])

    def wait(self, seconds: int) -> History:
        self._at += seconds * SECOND
        return self

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.book)


def lasting(history: History) -> None:
    history.ledger.check()
    history.ledger.nothing_lost()


def ending(history: History) -> None:
    history.ledger.check(False, lease_us=LEASE_US)
    history.ledger.nothing_lost()


def test_a_history_in_which_all_is_well() -> None:
    lasting(History().send().get().ack())
    ending(History().send().get().wait(10).get("c-2").ack("c-2"))
    lasting(History().send().get().tell("nack", ids=[7]).get("c-2", attempts=2).ack("c-2"))


BROKEN: dict[str, tuple[Callable[[History], None], History, str]] = {
    "lost": (lasting, History().send(), "were lost"),
    "early": (lasting, History().send(due_us=9 * SECOND).get(due_us=0).ack(), "message 7"),
    "early by the true clock": (
        lasting,
        History().send().get(started_us=9 * SECOND).ack(),
        "message 7",
    ),
    "two leases": (lasting, History().send().get().get("c-2").ack("c-2"), "two leases"),
    "two leases, and one might have ended": (
        ending,
        History().send().get().wait(2).get("c-2").ack("c-2"),
        "two leases",
    ),
    "acked by another one": (
        ending,
        History().send().get().wait(10).get("c-2").ack("c-1"),
        "not by its holder",
    ),
    "delivered after its ack": (ending, History().send().get().ack().wait(10).get("c-2"), "ack"),
    "delivered after its cancel": (
        ending,
        History().send().tell("changed", "p", verb="cancel", id=7, status="ok").get(),
        "cancel",
    ),
    "produced twice": (
        lasting,
        History().send().get().ack().get(message=8).ack(message=8),
        "two messages",
    ),
    "from nowhere": (lasting, History().get(name="p-9").ack(), "from nowhere"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_found(case: str) -> None:
    check, history, words = BROKEN[case]
    with pytest.raises(AssertionError, match=words):
        check(history)


def test_a_send_without_an_answer_may_have_happened_or_not() -> None:
    for history in (History(), History().get().ack()):
        history.tell("try", "p", names=["p-1"], due=[0])
        history.tell("send_failed", "p", names=["p-1"], code="unknown")
        history.ledger.check(every_send_ok=False)
        history.ledger.nothing_lost()


def test_order_is_judged_per_partition() -> None:
    there = 1 << 51
    well = History().send("p-1", there + 1).send("p-2", 1).send("p-3", there + 2)
    check_sent_in_order(well.ledger)
    with pytest.raises(AssertionError, match="sent first"):
        check_sent_in_order(well.send("p-4", there).ledger)
    got = History().get(message=2).get(message=there + 1).get(message=3)
    assert count_displaced(got.ledger) == 0
    assert count_displaced(got.get(message=1).ledger) == 1


def test_rows_of_a_key_come_in_order() -> None:
    history = History().tell("try", "p", names=["p-1", "p-2", "p-3"], keys=["a", "b", "a"])
    check_got_in_order(history.get(name="p-2", message=2).get(name="p-1", message=1).ledger)
    check_got_in_order(history.get(name="p-3", message=3).ledger)
    with pytest.raises(AssertionError, match="came after"):
        check_got_in_order(history.get(name="p-1", message=1).ledger)


def test_a_log_has_every_row_where_its_receipt_said() -> None:
    ledger = History().send("p-1", 1).send("p-2", 2).ledger
    rows = [(0, 0, 1, "p-1"), (0, 1, 2, "p-2")]
    check_log(ledger, rows)
    for bad in (rows[:1], rows[1:], [*rows, (0, 2, 3, "p-2")], [rows[0], (0, 1, 3, "p-2")]):
        with pytest.raises(AssertionError):
            check_log(ledger, bad)


def test_counters_have_what_was_answered_and_reads_are_fresh() -> None:
    history = History().tell("incremented", key="k", version=1, value=1)
    history.tell("increment_unknown", key="k", version=1, code="unknown")
    for value in (1, 2):
        check_counters(history.book, {"k": value})
    for value in (0, 3):
        with pytest.raises(AssertionError, match="increments were answered"):
            check_counters(history.book, {"k": value})
    history.tell("read", key="k", version=0, value=0, began=2 * SECOND)
    with pytest.raises(AssertionError, match="stale"):
        check_counters(history.book, {"k": 1})
