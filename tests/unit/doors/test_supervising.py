"""What the supervisor decides: the settings of a process, its pauses, and what health says of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fasti.cli.main import app
from fasti.doors.broker_child import UP, WAITING, BrokerChild
from fasti.doors.link import BrokerLink
from fasti.doors.peer_folder import PROCESSES_LOCK, SUPERVISOR_LOCK, PeerFolder
from fasti.doors.supervisor import child_flags
from fasti.doors.whole_broker import Member, SeveralProcesses
from fasti.errors import DataDirLocked, FastiError, Unavailable
from fasti.settings.load import ServeSettings, load
from fasti.settings.peers import deal_out
from fasti.settings.values import Address


def child_settings(
    flags: dict[str, Any], number: int, environment: dict[str, str]
) -> ServeSettings:
    """Of process `number`, by way of its command line."""
    settings = load({"listen": "127.0.0.1:7000", **flags}, environment)
    listens = [Address("127.0.0.1", 7000 + n) for n in range(settings.processes)]
    told = settings.advertise
    addresses = (
        [Address(told.host, told.port + n) for n in range(len(listens))] if told else listens
    )
    peers = deal_out(settings.shards or 1, addresses)
    command = child_flags(settings, peers, peers.processes[number], listens[number], number)
    shown = CliRunner().invoke(app, ["serve", "--print-config", *command])
    assert shown.exit_code == 0, shown.output
    path = Path("child.toml")
    path.write_text(shown.output)
    return load({}, {}, path)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_process_has_the_settings_of_all_and_its_part_of_what_is_shared() -> None:
    flags = {"shards": 3, "processes": 2, "memory": "300MiB", "http": "127.0.0.1:9000"}
    settings = child_settings(flags, 1, {"FASTI_DURABILITY": "interval"})
    assert (settings.processes, settings.shards, settings.serve_shards) == (1, 3, (2,))
    assert str(settings.peers) == "0-1=127.0.0.1:7000,2=127.0.0.1:7001"
    assert settings.listen == Address("127.0.0.1", 7001)
    assert settings.http is None
    assert settings.shard.memory_bytes == 100 << 20
    assert settings.metrics_series_max == 25_000
    assert settings.shard.durability == "interval"


def test_a_process_is_told_what_clients_are_told() -> None:
    flags = {"shards": 2, "processes": 2, "advertise": "broker:80", "insecure": True}
    settings = child_settings({**flags, "listen": "0.0.0.0:7000"}, 1, {})
    assert str(settings.peers) == "0=broker:80,1=broker:81"
    assert settings.advertise == Address("broker", 81)
    assert settings.serve_shards == (1,)


def test_what_is_the_default_of_the_broker_but_was_switched_off_stays_off() -> None:
    settings = child_settings({"shards": 2, "processes": 2, "http": "off"}, 0, {})
    assert settings.http is None


def test_pauses_grow_and_end_somewhere() -> None:
    place = deal_out(1, [Address("127.0.0.1", 1)]).processes[0]
    child = BrokerChild(0, place, [], {}, [], lambda report: None)
    child._began = float("inf")
    pauses = [child.plan_restart() for _ in range(40)]
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert pauses[-1] == 30.0
    assert (child.restarts, child.state) == (40, WAITING)
    child._began = float("-inf")
    assert child.plan_restart() == 0.2, "one that ran for long was well"


def test_why_it_could_not_start_is_what_it_said() -> None:
    place = deal_out(1, [Address("127.0.0.1", 1)]).processes[0]
    child = BrokerChild(0, place, [], {}, [], lambda report: None)
    assert "process 0 ended before it was ready: SIGKILL" in child.why_not_ready(-9).message
    child.heard({"error": {"code": "locked", "message": "by another"}})
    assert isinstance(child.why_not_ready(1), DataDirLocked)


def test_locks_are_held_by_one(tmp_path: Path) -> None:
    one, other = PeerFolder(tmp_path), PeerFolder(tmp_path)
    one.lock(SUPERVISOR_LOCK)
    with pytest.raises(DataDirLocked):
        other.lock(SUPERVISOR_LOCK)
    other.lock(PROCESSES_LOCK)


class Answers(BrokerLink):
    """A process that answers so."""

    def __init__(self, answer: dict[str, Any] | FastiError) -> None:
        self._answer = answer

    def call(self, action: str, *_: Any, **__: Any) -> dict[str, Any]:
        if isinstance(self._answer, FastiError):
            raise self._answer
        return self._answer


def several(*answers: dict[str, Any] | FastiError) -> SeveralProcesses:
    members = [Member(n, [2 * n, 2 * n + 1], Answers(answer)) for n, answer in enumerate(answers)]
    return SeveralProcesses(members, guarded=False)


GOOD = {"ready": True, "state": "serving"}


def test_all_are_well() -> None:
    broker = several(GOOD, GOOD)
    health = broker.health()
    assert (health["ready"], health["state"]) == (True, "serving")
    assert broker.is_alive(health)
    assert [process["shards"] for process in health["processes"]] == ["0-1", "2-3"]


def test_one_that_has_no_room_is_why_it_is_not_ready() -> None:
    full = {"ready": False, "state": "serving", "reason": "storage_full", "shard": 3}
    broker = several({**GOOD, "reason": "clock_leap"}, full)
    health = broker.health()
    assert (health["ready"], health["reason"]) == (False, "storage_full")
    assert broker.is_alive(health)


@pytest.mark.parametrize(
    "bad",
    [
        {"ready": False, "state": "failed"},
        {"ready": True, "state": "serving", "threads": [{"name": "x"}]},
        Unavailable("it does not answer"),
    ],
)
def test_one_that_nobody_helps_makes_all_of_it_ill(bad: Any) -> None:
    broker = several(GOOD, bad)
    assert not broker.is_alive(broker.health())


def test_one_that_is_started_again_is_in_good_hands_but_not_ready() -> None:
    broker = several(GOOD, Unavailable("it does not answer"))
    broker.note({"process": 1, "state": WAITING, "restarts": 7})
    health = broker.health()
    assert (health["ready"], health["state"]) == (False, "restarting")
    assert health["processes"][1]["restarts"] == 7
    assert broker.is_alive(health)
    broker.note({"process": 1, "state": UP, "restarts": 7})
    assert broker.health()["state"] == "not answering"


def test_metrics_tell_who_is_missing() -> None:
    broker = several({"text": "# HELP a b\n# TYPE a gauge\na 1.0\n"}, Unavailable("gone"))
    broker.note({"process": 1, "state": UP, "restarts": 2})
    page = broker.metrics("")
    assert 'a{process="0"} 1.0\n' in page
    assert 'fasti_process_up{process="1"} 0.0\n' in page
    assert 'fasti_process_restarts_total{process="1"} 2.0\n' in page


def test_no_page_is_no_page() -> None:
    with pytest.raises(Unavailable):
        several(Unavailable("gone")).metrics("")
