"""Processes of one broker that are started one by one, and how they call each other."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from fasti.broker.launch import BrokerProcess
from fasti.broker.ports import reserve
from fasti.doors.credentials import create
from fasti.doors.link import BrokerLink
from fasti.doors.peer import PeerLinks
from fasti.doors.peer_folder import PeerFolder
from fasti.errors import DataDirLocked, PermissionDenied, Unavailable
from fasti.settings.peers import PeerMap, deal_out
from fasti.settings.values import Address
from tests.conformance.protocol_client import Client, Refused
from tests.integration.serve_rig import WAIT_S, ask
from tests.shards.processes_rig import SETTINGS, client_of_process, pids

SHARDS = 4


def kept_map(stack: ExitStack) -> PeerMap:
    """Of two processes, at ports that nobody else is given while the test runs."""
    kept = [stack.enter_context(port) for port in reserve(Address("127.0.0.1", 0), 2)]
    return deal_out(SHARDS, [Address("127.0.0.1", port.getsockname()[1]) for port in kept])


def by_hand(path: Path, peers: PeerMap, number: int, **options: Any) -> BrokerProcess:
    settings = {**SETTINGS, "peers": peers, **options.pop("settings", {})}
    listen = str(peers.processes[number].address)
    return BrokerProcess(path / "data", listen=listen, settings=settings, **options)


def eventually(call: Callable[[], Any]) -> Any:
    """gRPC looks again for a process that was away by itself, once a second."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline
        time.sleep(0.01)


def test_processes_are_started_one_by_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        peers = kept_map(stack)
        first = stack.enter_context(by_hand(tmp_path, peers, 0))
        with Client(str(peers.processes[0].address)) as client:
            hello = client.call("hello")
            with pytest.raises(Refused, match="moved"):
                client.call("topics", {"shard_number": 3})
        assert [place["address"] for place in hello["map"]] == [
            str(peers.place_of(shard).address) for shard in range(SHARDS)
        ]
        second = stack.enter_context(by_hand(tmp_path, peers, 1, http="127.0.0.1:0"))
        with Client(str(peers.processes[1].address)) as client:
            assert client.call("hello")["cluster"] == hello["cluster"]
            client.call("topics", {"shard_number": 3})
        # By hand, each has an HTTP port of its own, for itself.
        assert "processes" not in ask(second, "/readyz").json()
        first.kill()
        with Client(str(peers.processes[1].address)) as client:
            client.call("topics", {"shard_number": 2})
        first.start()
        with Client(str(peers.processes[0].address)) as client:
            client.call("topics", {"shard_number": 0})


def test_a_shard_is_served_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        peers = kept_map(stack)
        stack.enter_context(by_hand(tmp_path, peers, 0))
        settings = {"serve_shards": "0-1"}
        with pytest.raises(DataDirLocked):
            stack.enter_context(by_hand(tmp_path, peers, 1, settings=settings))


def test_processes_call_each_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        peers = kept_map(stack)
        stack.enter_context(by_hand(tmp_path, peers, 0))
        second = stack.enter_context(by_hand(tmp_path, peers, 1))
        folder = PeerFolder(tmp_path / "data")
        links = PeerLinks(folder, peers)
        for shard in range(SHARDS):
            assert links.call(shard, "hello", {})["shard"].startswith(f"{shard}.")
        second.kill()
        with pytest.raises(Unavailable, match=r"process of shards 2-3 at 127\.0\.0\.1:\d+"):
            links.call(2, "hello", {})
        assert links.call(1, "topics", {})["topics"] == []
        second.start()
        eventually(lambda: links.call(2, "hello", {}))
        assert links.call(3, "topics", {})["topics"] == []
        links.close()
        folder.close()


def test_nobody_else_can_enter_the_folder(tmp_path: Path) -> None:
    PeerFolder(tmp_path).close()
    assert (tmp_path / "peers").stat().st_mode & 0o777 == 0o700
    (tmp_path / "peers").chmod(0o750)
    with pytest.raises(PermissionDenied, match="chmod 700"):
        PeerFolder(tmp_path)


def test_the_folder_may_lie_deep_and_have_any_name(tmp_path: Path) -> None:
    """The path of a socket may have 107 bytes, and Flight reads it as a URL."""
    deep = tmp_path / ("a folder, 100% ünusual # and long " * 4) / "deep"
    deep.mkdir(parents=True)
    with BrokerProcess(
        deep, shards=2, processes=2, http="127.0.0.1:0", settings=SETTINGS
    ) as broker:
        assert ask(broker, "/readyz").status == 200


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o600)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    return {
        "tls_cert": tmp_path / "cert.pem",
        "tls_key": tmp_path / "key.pem",
        "tls_client_ca": tmp_path / "authority.pem",
    }


def test_with_tokens_tls_and_client_certificates(
    tmp_path: Path, certificates: dict[str, Path]
) -> None:
    token = create(tmp_path / "tokens.toml", "billing")
    settings = {**SETTINGS, **certificates, "credentials": tmp_path / "tokens.toml"}
    trust = ssl.create_default_context(cafile=certificates["tls_client_ca"])
    with BrokerProcess(
        tmp_path / "data", shards=2, processes=2, http="localhost:0", settings=settings
    ) as broker:
        assert ask(broker, "/readyz", trust=trust).status == 200
        assert ask(broker, "/metrics", trust=trust).status == 401
        assert ask(broker, "/metrics", token="fasti_wrong", trust=trust).status == 401
        page = ask(broker, "/metrics", token=token, trust=trust)
        assert page.status == 200
        families = {f.name: f for f in text_string_to_metric_families(page.body.decode())}
        up = {s.labels["process"]: s.value for s in families["fasti_process_up"].samples}
        assert up == {"0": 1.0, "1": 1.0}
        folder = PeerFolder(broker.data)
        for shard in (0, 1):
            with_wrong_token = BrokerLink(folder.socket_path(shard), token="fasti_wrong")
            with pytest.raises(Exception, match="token"):
                with_wrong_token.call("hello")
            assert BrokerLink(folder.socket_path(shard)).call("health")["ready"]
        folder.close()
        # The port for clients lets nobody in without all three.
        stranger = fl.FlightClient(
            f"grpc+tls://localhost:{broker.port + 1}",
            tls_root_certs=certificates["tls_client_ca"].read_bytes(),
        )
        with pytest.raises(fl.FlightUnavailableError):
            list(stranger.do_action(("hello", b"")))


def test_a_stranger_is_no_process_of_the_broker(two: BrokerProcess) -> None:
    for action in ("follow_catalogue", "read_catalogue", "idle_topics"):
        for number in (0, 1):
            with client_of_process(two, number) as client:
                with pytest.raises(Refused, match="permission_denied"):
                    client.call(action, {"shard_number": number, "after": 0})


@pytest.fixture
def two(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path / "data", shards=2, processes=2, http="127.0.0.1:0", settings=SETTINGS
    ) as broker:
        pids(broker, 2)
        yield broker


def test_a_topic_is_there_on_every_process_when_it_is_made(two: BrokerProcess) -> None:
    with client_of_process(two, 0) as first, client_of_process(two, 1) as second:
        made = first.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        found = second.call("topic", {"shard_number": 1, "topic": "jobs"})
        assert found["settings"] == made["settings"]
        with pytest.raises(Refused, match="wrong_shard"):
            second.call("create_topic", {"shard_number": 1, "topic": "more"})
        first.call("delete_topic", {"shard_number": 0, "topic": "jobs"})
        with pytest.raises(Refused, match="not_found"):
            second.call("topic", {"shard_number": 1, "topic": "jobs"})


def test_a_process_that_was_away_has_the_topics_that_were_made_meanwhile(
    two: BrokerProcess,
) -> None:
    two.process(1).pause()
    with client_of_process(two, 0) as first:
        with pytest.raises(Refused, match="unavailable") as refused:
            first.call("create_topic", {"shard_number": 0, "topic": "jobs"})
        assert refused.value.details["shards"] == [1]
        old = two.process(1).kill()
        two.process(1).wait(other_than=old)
        with client_of_process(two, 1) as second:
            second.call("topic", {"shard_number": 1, "topic": "jobs"})
        # The same call again finds it done.
        first.call("create_topic", {"shard_number": 0, "topic": "jobs"})


def test_a_process_serves_its_shards_while_that_of_the_catalogue_is_away(
    two: BrokerProcess,
) -> None:
    with client_of_process(two, 0) as first:
        first.call("create_topic", {"shard_number": 0, "topic": "jobs"})
    two.process(0).pause()
    try:
        with client_of_process(two, 1) as second:
            second.call("topic", {"shard_number": 1, "topic": "jobs"})
        # It is started again, too, without it.
        old = two.process(1).kill()
        two.process(1).wait(other_than=old)
        with client_of_process(two, 1) as second:
            second.call("topic", {"shard_number": 1, "topic": "jobs"})
    finally:
        two.process(0).resume()
