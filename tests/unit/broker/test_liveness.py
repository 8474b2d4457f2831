"""When a session counts as silent: by its frames and writes alone, poll by poll."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fasti.broker.caller import Caller
from fasti.broker.liveness import Liveness
from fasti.broker.threads import Threads
from fasti.errors import FastiError
from fasti.model import Limits

SECOND_US = 1_000_000


@dataclass(eq=False)
class Session:
    """What liveness sees of a subscription, and what it is told."""

    number: int
    peer: str
    lease_us: int = 30 * SECOND_US
    frames: int = 1
    token_unheard: int = 0
    writes: tuple[int, bool] = (0, False)
    on_network: bool = True
    told: list[Any] = field(default_factory=list)

    @property
    def caller(self) -> Caller:
        return Caller("somebody", peer=self.peer)

    @property
    def identity(self) -> dict[str, Any]:
        return {"consumer": str(self.number)}

    @property
    def hearing(self) -> Session:
        return self

    def fall_silent(self, frames: int, hold_back: bool) -> None:
        self.told.append("held back" if hold_back else "unopened")

    def end_for_silence(self, error: FastiError) -> None:
        self.told.append(error.code)

    def close(self) -> None:
        self.told.append("shut")


class Rig:
    def __init__(self, *sessions: Session) -> None:
        self.sessions = list(sessions)
        self.hung_up: list[str] = []
        self.ended = 0
        service: Any = SimpleNamespace(
            limits=Limits(),
            threads=Threads(),
            subscriptions=lambda: {each.number: each for each in self.sessions},
            metrics=SimpleNamespace(sessions_ended_silent=self._count),
        )
        self.liveness = Liveness(service, self._hang_up)
        self.liveness.poll(0.25)

    def _count(self, count: int) -> None:
        self.ended += count

    def _hang_up(self, peer: str) -> bool:
        self.hung_up.append(peer)
        self.sessions = [each for each in self.sessions if each.peer != peer]
        return True

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.25)):
            self.liveness.poll(0.25)


def test_a_silent_session_is_held_back_ended_and_hung_up() -> None:
    session = Session(1, "10.0.0.1:1")
    rig = Rig(session)
    rig.pass_s(4.75)
    assert session.told == []
    rig.pass_s(0.25)
    assert session.told == ["held back"]
    rig.pass_s(4.75)
    assert (session.told, rig.ended) == (["held back"], 0)
    rig.pass_s(0.25)
    assert (session.told, rig.ended) == (["held back", "closed"], 1)
    rig.pass_s(2)
    assert session.told == ["held back", "closed", "shut"]
    assert rig.hung_up == ["10.0.0.1:1"]


def test_any_frame_is_life() -> None:
    session = Session(1, "10.0.0.1:1")
    rig = Rig(session)
    for _ in range(10):
        rig.pass_s(4.75)
        session.frames += 1
        rig.pass_s(0.25)
    assert session.told == []
    rig.pass_s(5)
    session.frames += 1
    rig.pass_s(5.25)
    # Held back, heard, and held back again.
    assert session.told == ["held back", "held back"]


@pytest.mark.parametrize(("lease_s", "told_after_s"), [(30, 5.0), (4, 1.5), (1, 0.25)])
def test_the_engine_knows_before_a_lease_can_end(lease_s: int, told_after_s: float) -> None:
    session = Session(1, "10.0.0.1:1", lease_us=lease_s * SECOND_US)
    rig = Rig(session)
    session.token_unheard = 7
    rig.pass_s(told_after_s - 0.25)
    assert session.told == []
    rig.pass_s(0.25)
    assert len(session.told) == 1
    # Once for what it has; once more for what came to it since.
    rig.pass_s(0.25)
    assert len(session.told) == 1
    session.token_unheard = 8
    rig.pass_s(0.25)
    assert len(session.told) == 2


def test_an_idle_session_costs_no_command() -> None:
    session = Session(1, "10.0.0.1:1", lease_us=SECOND_US)
    rig = Rig(session)
    rig.pass_s(4.75)
    assert session.told == []


def test_a_write_that_is_stuck_ends_a_session_that_speaks() -> None:
    session = Session(1, "10.0.0.1:1", lease_us=20 * SECOND_US, writes=(3, True))
    rig = Rig(session)
    for _ in range(79):
        session.frames += 1
        rig.pass_s(0.25)
    assert session.told == []
    session.frames += 1
    rig.pass_s(0.25)
    assert session.told == ["closed"]


def test_a_connection_that_others_use_is_left_alone() -> None:
    silent, living = Session(1, "10.0.0.1:1"), Session(2, "10.0.0.1:1")
    rig = Rig(silent, living)
    for _ in range(15):
        living.frames += 1
        rig.pass_s(1)
    assert silent.told[:3] == ["held back", "closed", "shut"]
    assert (living.told, rig.hung_up) == ([], [])


def test_sessions_of_this_process_are_no_concern() -> None:
    session = Session(1, "embedded", on_network=False)
    rig = Rig(session)
    rig.pass_s(60)
    assert session.told == []
