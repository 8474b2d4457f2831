"""One line for many who lose a broker, and for many tries of each."""

from __future__ import annotations

import pytest

from fasti.client.absence import Absence, absence_of
from fasti.errors import Closed, Overloaded, Unavailable


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "fasti.client")
    return caplog


def levels(lines: pytest.LogCaptureFixture) -> list[str]:
    return [each.levelname for each in lines.records]


def test_many_tries_are_one_warning(lines: pytest.LogCaptureFixture) -> None:
    absence = Absence()
    for _ in range(5):
        absence.lost(1, "consumer 'a' of 'emails'", Unavailable("gone"))
        absence.lost(2, "consumer 'b' of 'bills'", Closed("the broker stops"))
    assert levels(lines) == ["WARNING"]
    assert "consumer 'a' of 'emails' waits" in lines.text
    absence.found(1)
    assert levels(lines) == ["WARNING"]
    absence.found(2)
    absence.found(2)
    assert levels(lines) == ["WARNING", "INFO"]


def test_one_that_was_closed_meanwhile_is_not_waited_for(lines: pytest.LogCaptureFixture) -> None:
    absence = Absence()
    absence.lost(1, "a", Unavailable("gone"))
    absence.lost(2, "b", Unavailable("gone"))
    absence.left(2)
    absence.found(1)
    assert levels(lines) == ["WARNING", "INFO"]


def test_a_broker_that_refuses_is_there(lines: pytest.LogCaptureFixture) -> None:
    absence = Absence()
    absence.lost(1, "a", Overloaded("full"))
    absence.found(1)
    assert levels(lines) == []


def test_those_of_one_connection_share_it() -> None:
    class Transport:
        pass

    one, other = Transport(), Transport()
    assert absence_of(one) is absence_of(one)
    assert absence_of(one) is not absence_of(other)
