"""Who may be drained, and what is passed on: without NATS."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fasti.cluster.cluster_view import ClusterView, MemberView
from fasti.cluster.member_records import Liveness
from fasti.doors.cluster_drain import Drains
from fasti.doors.cluster_member import ClusterMember
from fasti.doors.cluster_peers import ClusterPeers
from fasti.errors import InvalidArgument, NotFound, Unavailable


class FakeMember:
    """Broker b1, beside others of these states and weights."""

    def __init__(self, weight: float = 1.0, **others: tuple[Liveness, float]) -> None:
        self.name, self.weight = "b1", weight
        members = {"b1": ("alive", weight), **others}
        self.view: ClusterView | None = ClusterView(
            "c",
            "b1",
            tuple(
                MemberView(name, f"{name}:1", cast(Liveness, state), share, 0.0)
                for name, (state, share) in members.items()
            ),
            (),
        )

    def change_weight(self, weight: float) -> bool:
        before, self.weight = self.weight, weight
        return before != weight


class FakePeers:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_broker(self, name: str, action: str, header: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((name, action, header))
        return {"broker": name, "weight": 0.0, "changed": True}


def drains(member: FakeMember, peers: FakePeers | None = None, weight: float = 1.0) -> Drains:
    return Drains(cast(ClusterMember, member), cast(ClusterPeers, peers or FakePeers()), weight)


def test_its_own_weight_is_0_until_it_is_undone() -> None:
    member = FakeMember(2.0, b2=("alive", 1.0))
    here = drains(member, weight=2.0)
    assert here.carry_out("b1", False) == {"broker": "b1", "weight": 0.0, "changed": True}
    assert here.carry_out("b1", False) == {"broker": "b1", "weight": 0.0, "changed": False}
    assert member.weight == 0
    assert here.carry_out("b1", True) == {"broker": "b1", "weight": 2.0, "changed": True}
    assert here.carry_out("b1", True) == {"broker": "b1", "weight": 2.0, "changed": False}


def test_what_is_for_another_is_passed_on() -> None:
    member, peers = FakeMember(b2=("alive", 1.0)), FakePeers()
    assert drains(member, peers).carry_out("b2", True)["broker"] == "b2"
    assert peers.calls == [("b2", "drain", {"broker": "b2", "undo": True})]
    assert member.weight == 1.0


@pytest.mark.parametrize(
    "others",
    [{}, {"b2": ("gone", 1.0)}, {"b2": ("suspected", 1.0)}, {"b2": ("alive", 0.0)}],
)
def test_the_last_one_that_can_lead_stays(others: dict[str, tuple[Liveness, float]]) -> None:
    member = FakeMember(**others)
    with pytest.raises(InvalidArgument, match="b1 is the last broker that can lead"):
        drains(member).carry_out("b1", False)
    assert member.weight == 1.0


def test_one_that_is_not_there() -> None:
    here = drains(FakeMember(b2=("gone", 1.0)))
    with pytest.raises(NotFound, match="no broker 'b9' in this cluster: there are b1, b2"):
        here.carry_out("b9", False)
    with pytest.raises(NotFound, match="b2 is gone: nothing was changed"):
        here.carry_out("b2", False)


def test_a_weight_of_0_by_the_settings_is_not_undone() -> None:
    with pytest.raises(InvalidArgument, match="is 0 by its settings"):
        drains(FakeMember(0.0), weight=0.0).carry_out("b1", True)


def test_one_that_has_just_come_says_so() -> None:
    member = FakeMember()
    member.view = None
    with pytest.raises(Unavailable, match="not joined its cluster yet"):
        drains(member).carry_out("b2", False)
