"""Numbers of calls: who is open, what a repetition tells, and what is raised when nobody answers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fasti.client.call_numbers import CallNumbers, PendingCall
from fasti.errors import (
    CallForgotten,
    FastiError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from fasti.protocol.numbered import NUMBERED, ONCE
from fasti.runtime import SystemRuntime

LOST = Unavailable("lost", details={"cause": "Socket closed"})
REFUSED = Unavailable("refused", details={"cause": "connect failed: Connection refused"})
STOPPING = Unavailable("the broker is stopping")


class Runtime(SystemRuntime):
    """Whose clock is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def numbers(runtime: Runtime) -> CallNumbers:
    return CallNumbers(runtime)


def once(pending: PendingCall) -> dict[str, Any]:
    header = pending.header({"version": 1, "topic": "t"})
    assert (header["version"], header["topic"]) == (1, "t")
    found: dict[str, Any] = header[ONCE]
    return found


def test_calls_one_after_the_other_leave_since_out(numbers: CallNumbers) -> None:
    for number in (1, 2, 3):
        with numbers.call("cancel") as pending:
            told = once(pending)
            assert told.keys() == {"client", "number"}
            assert told["number"] == number
            assert len(told["client"]) == 32


def test_the_lowest_that_is_open_is_told(numbers: CallNumbers) -> None:
    with numbers.call("cancel") as first:
        assert "since" not in once(first)
        with numbers.call("kv_put") as second:
            assert once(second)["since"] == 1
        with numbers.call("kv_put") as third:
            assert (once(third)["number"], once(third)["since"]) == (3, 1)
    with numbers.call("move") as fourth:
        assert "since" not in once(fourth)


def test_a_repetition_has_the_number_and_its_age(numbers: CallNumbers, runtime: Runtime) -> None:
    with numbers.call("cancel") as pending:
        first = once(pending)
        assert pending.may_repeat(LOST)
        assert once(pending) == {**first, "age_us": 1}
        runtime.now += 2.5
        assert once(pending) == {**first, "age_us": 2_500_000}


def test_what_only_looks_has_none(numbers: CallNumbers) -> None:
    with numbers.call("get") as pending:
        assert pending.header({"topic": "t"}) == {"topic": "t"}
        assert pending.may_repeat(LOST)
        assert pending.give_up(LOST) is LOST
    with numbers.call("take_snapshot") as pending:
        assert not pending.may_repeat(LOST)


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([REFUSED, REFUSED], Unavailable),
        ([STOPPING, REFUSED], Unavailable),
        ([LOST, REFUSED], OutcomeUnknown),
        ([REFUSED, LOST], OutcomeUnknown),
        ([OutcomeUnknown("storage failed"), REFUSED], OutcomeUnknown),
    ],
)
def test_unknown_is_what_may_have_happened(
    numbers: CallNumbers, errors: list[FastiError], raised: type[FastiError]
) -> None:
    with numbers.call("cancel") as pending:
        for error in errors:
            assert pending.may_repeat(error)
        assert type(pending.give_up(errors[-1])) is raised


def test_what_is_forgotten_is_not_asked_for_again(numbers: CallNumbers) -> None:
    with numbers.call("cancel") as pending:
        error = CallForgotten("gone")
        assert not pending.may_repeat(error)
        assert pending.give_up(error) is error


def test_a_child_process_draws_another_name(numbers: CallNumbers) -> None:
    with numbers.call("cancel") as pending:
        before = once(pending)
    numbers._forked()
    with numbers.call("cancel") as pending:
        after = once(pending)
    assert after["client"] != before["client"]
    assert after["number"] == 1


def test_threads_never_tell_more_than_what_is_open(numbers: CallNumbers) -> None:
    """A number below what another has told would be refused."""
    told: list[tuple[int, int]] = []
    begun = threading.Barrier(8)

    def run() -> None:
        begun.wait()
        for _ in range(300):
            with numbers.call("cancel") as pending:
                mine = once(pending)
                told.append((mine["number"], mine.get("since", mine["number"])))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in told) == list(range(1, 2_401))
    assert all(since <= number for number, since in told)


def test_every_numbered_action_is_one_of_the_brokers() -> None:
    from fasti.broker.calls.actions import ACTIONS

    assert set(ACTIONS) >= NUMBERED


def test_a_refusal_says_nothing_of_an_attempt_before_it(numbers: CallNumbers) -> None:
    full, missing = Overloaded("full"), NotFound("missing")
    with numbers.call("cancel") as pending:
        # Nothing was sent before: it is as it says.
        assert not pending.may_repeat(full)
        assert pending.give_up(full) is full
    with numbers.call("cancel") as pending:
        assert pending.may_repeat(LOST)
        assert pending.may_repeat(full)
        assert type(pending.give_up(full)) is OutcomeUnknown
        # Told by those who have looked: it has not happened.
        assert not pending.may_repeat(missing)
        assert pending.give_up(missing) is missing
