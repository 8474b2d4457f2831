"""Calls with numbers: carried out once, answered alike, and refused when they are forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.capsule import capture, restore
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.numbered import book
from fasti.core.numbered.book import ANSWERS_MAX, REMEMBERED_US
from fasti.core.numbered.commands import CallNumber, Numbered, Recall
from fasti.core.replies import Done
from fasti.errors import CallForgotten
from fasti.model import HOUR_US, MINUTE_US, Outcome

NOW_US = 1_700_000_000_000_000


class Shard:
    """An engine with messages, its journal, and a clock that is set by hand."""

    def __init__(self, rows: int = 10) -> None:
        self.engine, self.journal, self.now_us = Engine(64 << 20, 64), list[Any](), NOW_US
        self.call(co.CreateTopic("mails"))
        self.call(co.Produce("mails", Rows.of([b"x"] * rows), co.When(delay_us=240 * HOUR_US)))

    def call(self, command: Any) -> Any:
        step = self.engine.step([command], self.now_us, 0)
        assert step.faults == []
        self.journal += [(frame.sequence, frame.events) for frame in step.frames]
        return step.replies[0]

    def cancel(self, number: int, id: int, since: int = 0, age_us: int = 0, by: str = "me") -> Any:
        call = CallNumber(by, number, since or number, age_us)
        return self.call(Numbered(co.Cancel("mails", co.Target(ids=int64s(id))), call))

    def replayed(self) -> Shard:
        """Another one, which has read the journal."""
        other = object.__new__(Shard)
        other.engine, other.journal, other.now_us = Engine(64 << 20, 64), [], self.now_us
        for sequence, events in self.journal:
            other.engine.replay(sequence, events)
        other.engine.start(0)
        return other


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def is_forgotten(reply: Any) -> bool:
    return isinstance(reply.error, CallForgotten)


def test_a_call_that_comes_again_is_answered_as_it_was() -> None:
    shard = Shard()
    first = shard.cancel(1, 3)
    assert first.outcome() == Outcome.OK
    for other in (shard, shard.replayed()):
        again = other.cancel(1, 3, age_us=1)
        assert (again.outcome(), again.ids.tolist(), again.versions.tolist()) == (
            *(Outcome.OK, [3]),
            first.versions.tolist(),
        )
        # Under another number it is another call.
        assert other.cancel(2, 3).outcome() == Outcome.CANCELLED


def test_the_answer_lies_in_the_frame_of_what_happened() -> None:
    shard = Shard()
    before = len(shard.journal)
    shard.cancel(1, 3)
    assert len(shard.journal) == before + 1
    # And nothing is written of what comes again, or changed nothing.
    shard.cancel(1, 3, age_us=1)
    shard.cancel(2, 3)
    assert len(shard.journal) == before + 1


def test_rows_of_every_outcome_come_back() -> None:
    shard = Shard()
    shard.cancel(1, 3)
    held = shard.call(co.Lease("mails", 1, "worker", 1, wait=False))
    assert held.error is None
    command = co.Cancel("mails", co.Target(ids=int64s(3, 4, 999, 5)), int64s(0, 0, 0, 7))
    first = shard.call(Numbered(command, CallNumber("me", 2, 2)))
    assert first.status.tolist() == [
        *(Outcome.CANCELLED, Outcome.OK, Outcome.NOT_FOUND, Outcome.CONFLICT)
    ]
    again = shard.replayed().call(Numbered(command, CallNumber("me", 2, 2, 5)))
    for name in ("status", "ids", "versions", "at_us"):
        assert getattr(again, name).tolist() == getattr(first, name).tolist()
    assert again.by == first.by


def test_a_first_attempt_behind_its_repetition_changes_nothing() -> None:
    shard = Shard()
    shard.cancel(1, 3)
    # Repeated, it changes nothing; its first attempt comes when it would.
    assert shard.cancel(2, 11, age_us=1).outcome() == Outcome.NOT_FOUND
    shard.call(co.Produce("mails", Rows.of([b"x"]), co.When(delay_us=HOUR_US)))
    assert shard.cancel(2, 11).outcome() == Outcome.NOT_FOUND
    # When the client has gone on it is too late for it.
    shard.cancel(3, 4)
    assert is_forgotten(shard.cancel(2, 11))
    assert shard.cancel(4, 11).outcome() == Outcome.OK


def test_numbers_may_come_in_any_order_while_they_are_open() -> None:
    shard = Shard()
    assert shard.cancel(3, 3, since=1).outcome() == Outcome.OK
    assert shard.cancel(1, 1, since=1).outcome() == Outcome.OK
    assert shard.cancel(2, 2, since=1).outcome() == Outcome.OK
    for number in (1, 2, 3):
        assert shard.cancel(number, number, since=1, age_us=1).outcome() == Outcome.OK
    # All below 3 are answered now.
    shard.cancel(4, 4, since=3)
    assert [is_forgotten(shard.cancel(n, n, age_us=1)) for n in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]


def test_clients_have_numbers_of_their_own() -> None:
    shard = Shard()
    assert shard.cancel(1, 1, by="one").outcome() == Outcome.OK
    assert shard.cancel(1, 2, by="two").outcome() == Outcome.OK


def test_of_one_client_only_so_many_are_remembered() -> None:
    rows = ANSWERS_MAX + 5
    shard = Shard(rows)
    for number in range(1, rows + 1):
        assert shard.cancel(number, number, since=1).outcome() == Outcome.OK
    known = [not is_forgotten(shard.cancel(n, n, since=1, age_us=1)) for n in range(1, rows + 1)]
    assert known == [False] * 5 + [True] * ANSWERS_MAX


def test_a_client_that_was_silent_for_long_is_forgotten_and_told_so() -> None:
    shard = Shard()
    shard.cancel(1, 1, by="early")
    shard.now_us += REMEMBERED_US + 1
    shard.cancel(1, 2, by="late")
    assert len(shard.engine.state.calls) == 1
    for other in (shard, shard.replayed()):
        # First made before the silence began, it may have happened.
        assert is_forgotten(other.cancel(1, 1, by="early", age_us=REMEMBERED_US + MINUTE_US))
        # First made long after, it can't have been forgotten; and what is new is new.
        assert other.cancel(2, 3, by="early", age_us=5 * MINUTE_US).outcome() == Outcome.OK
        assert other.cancel(3, 4, by="early").outcome() == Outcome.OK
        # Known again, it has not become known what was forgotten.
        since_1 = other.cancel(1, 1, since=1, by="early", age_us=REMEMBERED_US + MINUTE_US)
        assert is_forgotten(since_1)


@pytest.mark.parametrize("bound", ["CLIENTS_MAX", "BYTES_MAX"])
def test_clients_beyond_a_bound_are_forgotten_and_nobody_is_refused(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, bound, 3 if bound == "CLIENTS_MAX" else 4_000)
    shard = Shard(200)
    for number in range(1, 100):
        shard.now_us += 2 * MINUTE_US // 10
        assert shard.cancel(1, number, by=f"client-{number}").outcome() == Outcome.OK
    calls = shard.engine.state.calls
    assert 1 < len(calls) <= 5
    assert calls.size_bytes <= 5_000
    assert is_forgotten(shard.cancel(1, 1, by="client-1", age_us=20 * MINUTE_US))
    assert shard.cancel(1, 99, by="client-99", age_us=1).outcome() == Outcome.OK


def test_another_command_under_the_number_of_one_is_refused() -> None:
    shard = Shard()
    shard.cancel(1, 1)
    two = Numbered(co.Cancel("mails", co.Target(ids=int64s(1, 2))), CallNumber("me", 1, 1, 1))
    assert is_forgotten(shard.call(two))


def test_what_is_refused_is_not_remembered() -> None:
    shard = Shard()
    call = CallNumber("me", 1, 1, 1)
    command = co.PauseTopic("other", True)
    assert shard.call(Numbered(command, call)).error.code == "not_found"
    shard.call(co.CreateTopic("other"))
    for _ in range(2):
        reply = shard.call(Numbered(command, call))
        assert (reply.error, reply.value) == (None, True)


def test_parts_of_a_call_are_told_apart() -> None:
    shard = Shard()
    call = CallNumber("me", 1, 1, 1)
    for part in (0, 1, 0, 1):
        command = Numbered(co.Cancel("mails", co.Target(ids=int64s(part + 1))), call, part)
        assert shard.call(command).outcome() == Outcome.OK


def test_a_call_that_chose_its_messages_is_found_by_its_number() -> None:
    shard = Shard()
    call = CallNumber("me", 1, 1, 1)
    assert shard.call(Recall(call)) == Done(None)
    shard.call(Numbered(co.Cancel("mails", co.Target(ids=int64s(7, 2, 2))), call, chosen=True))
    known = shard.replayed().call(Recall(call))
    assert known.ids.tolist() == [7, 2, 2]
    assert known.status.tolist()[:2] == [Outcome.OK, Outcome.OK]


def test_what_is_remembered_is_counted_and_comes_back_from_a_checkpoint() -> None:
    shard = Shard()
    empty = shard.engine.memory.parts()["calls"]
    shard.cancel(1, 1)
    rows = co.Cancel("mails", co.Target(ids=int64s(1, 2, 3)))
    shard.call(Numbered(rows, CallNumber("me", 2, 1)))
    calls = shard.engine.state.calls
    assert (empty, shard.engine.memory.parts()["calls"]) == (0, calls.size_bytes)
    again = Engine(64 << 20, 64)
    restore(again.state, capture(shard.engine.state))
    assert again.state.calls.size_bytes == calls.size_bytes
    for number in (1, 2):
        call = CallNumber("me", number, 1, 1)
        assert again.state.calls.find(call, 0, NOW_US) == calls.find(call, 0, NOW_US) is not None
