"""The catalogue: what is made on shard 0 holds everywhere, whoever is away or dies in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fasti.broker import catalogue as catalogue_module
from fasti.broker.caller import EMBEDDED, PEER
from fasti.broker.catalogue import LocalShard
from fasti.broker.host import Host
from fasti.errors import FastiError, NotFound, PermissionDenied, Unavailable
from tests.shards.shards_rig import close_host, open_host
from tests.unit.client.fakes import eventually

SHARDS = 3


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a shard that is away on purpose needn't wait for long."""
    monkeypatch.setattr(catalogue_module, "SETTLE_S", 0.5)
    monkeypatch.setattr(catalogue_module, "_ASK_AGAIN_S", 0.0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = open_host(tmp_path / "data", SHARDS)
    yield made
    close_host(made)


def call(host: Host, action: str, number: int = 0, **header: Any) -> dict[str, Any]:
    return host.service(number).call(EMBEDDED, action, {"version": 1, **header})[0]


def make(host: Host, topic: str, **settings: Any) -> None:
    call(host, "create_topic", topic=topic, settings=settings)


def topics(host: Host, number: int) -> dict[str, tuple[Any, ...]]:
    """What a shard itself knows, without asking anybody."""
    state = host.service(number).placement.catalogue.engine.state
    return {
        topic.name: (topic.settings, topic.paused, topic.bindings)
        for topic in list(state.topics.values())
        if topic.catalogue_number
    }


class Together:
    """The other processes of a broker, as hosts of this one; `away` are those that don't answer."""

    def __init__(self, *hosts: Host) -> None:
        self.hosts, self.away = list(hosts), set[int]()
        for host in hosts:
            host.peers = self

    def call(
        self, shard: int, action: str, header: Mapping[str, Any], timeout_s: float = 5.0
    ) -> dict[str, Any]:
        if shard in self.away:
            raise Unavailable(f"nobody answers for shard {shard}", details={"shard": shard})
        host = next(host for host in self.hosts if shard in host.numbers)
        return host.service(shard).call(PEER, action, {"version": 1, **header})[0]


def two_processes(path: Path) -> tuple[Host, Host, Together]:
    first = open_host(path, SHARDS, numbers=[0, 1])
    second = open_host(path, SHARDS, numbers=[2])
    return first, second, Together(first, second)


def test_every_change_holds_on_all_shards_when_it_is_answered(host: Host) -> None:
    make(host, "jobs")
    make(host, "copies")
    call(host, "bind", topic="jobs", pattern="a.*", target="copies")
    call(host, "change_topic", topic="jobs", settings={"max_attempts": 3})
    call(host, "pause_topic", topic="jobs")
    for number in range(1, SHARDS):
        assert topics(host, number) == topics(host, 0)
    settings, paused, bindings = topics(host, 2)["jobs"]
    assert (settings.max_attempts, paused, len(bindings)) == (3, True, 1)
    call(host, "resume_topic", topic="jobs")
    call(host, "unbind", topic="jobs", pattern="a.*", target="copies")
    call(host, "delete_topic", topic="copies")
    for number in range(SHARDS):
        assert list(topics(host, number)) == ["jobs"]
        assert topics(host, number)["jobs"][1:] == (False, [])


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("change", ["create_topic", "change_topic", "delete_topic", "bind"])
def test_a_death_between_two_shards_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, at: int, dies: str
) -> None:
    host = open_host(tmp_path / "data", SHARDS)
    make(host, "jobs")
    make(host, "copies")
    follow, version = LocalShard.follow, LocalShard.version
    died = threading.Event()

    def follow_or_die(shard: LocalShard, page: Any) -> int:
        if shard._shard.place.number == at:
            if dies == "after" and not died.is_set():
                follow(shard, page)
            died.set()
            raise Unavailable("for a test: the process died here")
        return follow(shard, page)

    def version_or_die(shard: LocalShard) -> int:
        if shard._shard.place.number == at and died.is_set():
            raise Unavailable("for a test: it is dead")
        return version(shard)

    monkeypatch.setattr(LocalShard, "follow", follow_or_die)
    monkeypatch.setattr(LocalShard, "version", version_or_die)
    header: dict[str, Any] = {
        "create_topic": {"topic": "more"},
        "change_topic": {"topic": "jobs", "settings": {"max_attempts": 3}},
        "delete_topic": {"topic": "copies"},
        "bind": {"topic": "jobs", "pattern": "a.*", "target": "copies"},
    }[change]
    with pytest.raises(Unavailable, match=f"did not follow in time: {at}") as refused:
        call(host, change, **header)
    assert refused.value.details["shards"] == [at]
    host._undo()
    monkeypatch.setattr(LocalShard, "follow", follow)
    monkeypatch.setattr(LocalShard, "version", version)
    again = open_host(tmp_path / "data")
    try:
        assert topics(again, 0) == topics(again, 1) == topics(again, 2)
        if change == "delete_topic":
            with pytest.raises(NotFound):
                call(again, change, **header)
        else:
            call(again, change, **header)
        assert ("copies" in topics(again, at)) == (change != "delete_topic")
        assert topics(again, 0) == topics(again, 1) == topics(again, 2)
    finally:
        close_host(again)


def test_a_shard_that_is_away_follows_when_it_is_back(tmp_path: Path) -> None:
    first, second, together = two_processes(tmp_path / "data")
    try:
        make(first, "jobs")
        assert list(topics(second, 2)) == ["jobs"]
        together.away.add(2)
        with pytest.raises(Unavailable, match="time: 2") as refused:
            make(first, "more")
        assert refused.value.retryable
        with pytest.raises(Unavailable, match="time: 2"):
            make(first, "more")
        assert list(topics(first, 1)) == ["jobs", "more"], "another one doesn't wait for it"
        assert list(topics(second, 2)) == ["jobs"]
        together.away.clear()
        first.catalogue and first.catalogue.settle()
        assert topics(second, 2) == topics(first, 0)
    finally:
        close_host(second)
        close_host(first)


def test_a_shard_asks_before_it_says_that_a_topic_is_not_there(tmp_path: Path) -> None:
    first, second, together = two_processes(tmp_path / "data")
    try:
        together.away.add(2)
        with pytest.raises(Unavailable):
            make(first, "jobs")
        assert call(second, "topic", 2, topic="jobs")["settings"]["partitions"] == SHARDS
        with pytest.raises(Unavailable):
            make(first, "more")
        intake = second.service(2).intake(
            EMBEDDED, {"version": 1, "call": "produce", "topic": "more"}
        )
        intake.end()
        with pytest.raises(NotFound):
            call(second, "topic", 2, topic="none")
    finally:
        close_host(second)
        close_host(first)


def test_one_that_was_killed_asks_when_it_begins(tmp_path: Path) -> None:
    first, second, together = two_processes(tmp_path / "data")
    try:
        second._undo()
        together.away.add(2)
        with pytest.raises(Unavailable):
            make(first, "jobs")
        second = open_host(tmp_path / "data", SHARDS, numbers=[2])
        together.hosts[1] = second
        second.peers = together
        second.catch_up()
        assert topics(second, 2) == topics(first, 0)
    finally:
        close_host(second)
        close_host(first)


def test_sessions_on_another_shard_learn_that_their_topic_is_gone(host: Host) -> None:
    make(host, "jobs")
    service = host.service(2)
    session = service.exchange(
        EMBEDDED, {"version": 1, "call": "consume", "topic": "jobs", "consumer": "c"}
    )
    call(host, "delete_topic", topic="jobs")
    ended = []
    while (written := session.next()) is not None:
        ended.append(written[0])
    assert ended[-1]["error"]["code"] == "not_found"
    service.leave(session)


def test_only_processes_of_the_broker_may_tell_a_shard(host: Host) -> None:
    for action in ("follow_catalogue", "idle_topics"):
        with pytest.raises(PermissionDenied):
            call(host, action, 1)
    with pytest.raises(PermissionDenied):
        call(host, "read_catalogue", after=0)


def test_an_idle_topic_goes_when_no_shard_uses_it(host: Host) -> None:
    make(host, "brief", idle_age_us=60_000_000)
    assert host.catalogue is not None
    idle = host.catalogue._idle
    assert idle is not None
    found = [{"brief": shard} for shard in range(SHARDS)]
    asked: list[int] = []

    class Asked:
        """A shard on which the topic is idle, or in use."""

        def __init__(self, number: int) -> None:
            self._number = number

        def idle(self, after: int) -> list[Any]:
            from fasti.core.catalogue.commands import IdleTopic

            asked.append(self._number)
            if after or "brief" not in found[self._number]:
                return []
            topic = host.service(0).placement.catalogue.engine.state.by_name["brief"]
            return [IdleTopic(topic.number, "brief", 0)]

    idle._shards = lambda: [Asked(number) for number in range(SHARDS)]
    found[2].clear()
    idle.delete_now()
    assert {0, 1, 2} <= set(asked)
    assert "brief" in topics(host, 0), "shard 2 uses it"
    found[2]["brief"] = 2
    idle.delete_now()
    host.catalogue.settle()
    assert all("brief" not in topics(host, number) for number in range(SHARDS))


def test_who_waits_is_told_when_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "SETTLE_S", 60.0)
    first, second, together = two_processes(tmp_path / "data")
    together.away.add(2)
    refused: list[FastiError] = []

    def wait() -> None:
        try:
            make(first, "jobs")
        except FastiError as error:
            refused.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: "jobs" in topics(first, 1))
    close_host(first)
    waiter.join(60)
    assert [error.code for error in refused] == ["unavailable"]
    close_host(second)
