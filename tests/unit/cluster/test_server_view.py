"""What an operator is shown of the NATS servers, and what is wrong with a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from fasti.cli.cluster import _show, troubles_of
from fasti.cluster.damage import Damage
from fasti.cluster.names import ShardNames
from fasti.cluster.server_checks import problems_of
from fasti.cluster.server_reports import ReplicaState, ServerReport, read_report
from fasti.cluster.server_view import ServersView, view_servers

NAMES = [ShardNames("c", 0), ShardNames("c", 1)]


def reports(*names: str, leader: str = "n0") -> list[ServerReport]:
    return [
        ServerReport(
            name,
            f"id of {name}",
            "2.15.1",
            True,
            {stream: ReplicaState(1, 9, 9, 0, name == leader) for stream in NAMES[0].streams},
        )
        for name in names
    ]


def view(found: list[ServerReport], *damages: Damage) -> ServersView:
    return view_servers(found, ["n0", "n1", "n2"], problems_of(found), damages, NAMES, 3)


def test_servers_are_good_away_refused_or_damaged() -> None:
    good, lazy, _ = reports("n0", "n1", "n2")
    damage = Damage("n0", "c-j-0", "has lost 2 messages")
    shown = view([good, lazy._replace(sync_always=False)], damage)
    states = [(server.name, server.state, server.leads) for server in shown.servers]
    assert states == [("n0", "damaged", 3), ("n1", "refused", 0), ("n2", "away", 0)]
    assert "sync_interval: always" in str(shown.servers[1].problem)
    assert shown.to_json()["damages"] == [damage._asdict()]


def test_a_quorum_needs_a_leader_and_most_of_the_copies() -> None:
    # Of shard 1 nobody says anything: it may never have been led.
    (whole,) = view(reports("n0", "n1", "n2")).streams
    assert whole == (0, 3, True, "n0")
    assert view(reports("n0", "n1")).streams == ((0, 2, True, "n0"),)
    assert view(reports("n0")).streams == ((0, 1, False, "n0"),)
    assert view(reports("n1", "n2")).streams == ((0, 2, False, None),)
    assert view([]).streams == ()


def test_a_report_is_read_from_what_a_server_answers() -> None:
    told: dict[str, Any] = {
        "config": {"store_dir": "/x", "sync_always": True},
        "account_details": [
            {
                "stream_detail": [
                    {
                        "name": "c-j-0",
                        "cluster": {"leader": "n1"},
                        "state": {"messages": 3, "first_seq": 2, "last_seq": 5, "num_deleted": 1},
                    },
                    {"name": "e", "state": {"messages": 0, "first_seq": 0, "last_seq": 7}},
                ]
            }
        ],
    }
    report = read_report("n0", "id", "2.15.1", told)
    assert report.sync_always is True
    # Where servers have no cluster there is nobody else to lead.
    assert report.streams == {"c-j-0": (2, 5, 3, 1, False), "e": (8, 7, 0, 0, True)}
    assert read_report("n0", "id", "2.15.1", {"disabled": True}).sync_always is None


def a_view(**more: Any) -> dict[str, Any]:
    member = {"address": "a:1", "state": "alive", "weight": 1.0, "clock_ahead_ms": 0}
    shard = {"leader": "b1", "epoch": 3, "address": "a:1", "standbys": ["b2"], "lags": {"b2": 4}}
    return {
        "cluster": "c",
        "broker": "b1",
        "members": [{"name": "b1", **member}, {"name": "b2", **member}],
        "shards": [{"shard": 0, **shard}],
        "leaderless": [],
        **view(reports("n0", "n1", "n2")).to_json(),
        **more,
    }


def test_a_cluster_without_trouble_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert troubles_of(a_view()) == []
    _show(a_view(), as_json=False)
    told = capsys.readouterr().out
    assert "1 shard, all is well" in told
    for word in ("b2 4", "3 copies", "n2", "2.15.1", "good"):
        assert word in told


def test_each_trouble_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = a_view()["members"]
    servers = view(
        [reports("n0")[0], reports("n1")[0]._replace(sync_always=False)],
        Damage("n0", "c-j-0", "has lost 2 messages"),
    )
    bad = a_view(
        members=[{**one, "clock_ahead_ms": -300}, {**two, "state": "gone"}],
        leaderless=[0],
        **servers._replace(streams=view(reports("n0")).streams).to_json(),
    )
    _show(bad, as_json=False)
    told = capsys.readouterr().out
    for sentence in (
        "the clock of broker b1 is 300 ms behind the others",
        "broker b2 is gone",
        "without a leader: 0 of 1 shard",
        "no quorum in NATS for shard 0",
        "NATS server n1 acknowledges what it has not synced",
        "NATS server n2 doesn't answer",
        "damage: the copy of c-j-0 on NATS server n0 has lost 2 messages",
    ):
        assert f"! {sentence}" in told
    assert len(troubles_of(bad)) == 7
    # One that was drained may go; and a broker that has just come has not looked yet.
    assert troubles_of(a_view(members=[one, {**two, "state": "gone", "weight": 0}])) == []
    young = {k: v for k, v in a_view().items() if k not in ("servers", "streams", "damages")}
    assert troubles_of(young) == []
    assert troubles_of(a_view(servers=[])) != []
