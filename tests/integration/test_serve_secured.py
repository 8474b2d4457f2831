"""TLS and credentials, on both ports."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

import pyarrow.flight as fl
import pytest
import trustme
from typer.testing import CliRunner

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app as commands
from fasti.client.address import known_address
from fasti.doors.credentials import create, revoke
from fasti.doors.link import BrokerLink
from fasti.errors import InvalidArgument, Unauthenticated, Unavailable
from tests.conformance.protocol_client import Client, Refused
from tests.integration.serve_rig import SMALL, ask, children


class Secured(NamedTuple):
    broker: BrokerProcess
    authority: Path
    credentials: Path
    token: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "key.pem").chmod(0o600)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    tokens = folder / "credentials.toml"
    token = create(tokens, "billing")
    settings = {
        **SMALL,
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
        "credentials": tokens,
    }
    # Any address, which would be refused without all of these.
    places = {"listen": "0.0.0.0:0", "http": "0.0.0.0:0"}
    with BrokerProcess(folder / "data", settings=settings, **places) as broker:  # type: ignore[arg-type]
        yield Secured(broker, folder / "authority.pem", tokens, token)


def flight(secured: Secured, token: str | None) -> Client:
    client = Client(f"grpc+tls://localhost:{secured.broker.port}", token)
    client.flight.close()
    roots = secured.authority.read_bytes()
    client.flight = fl.FlightClient(
        f"grpc+tls://localhost:{secured.broker.port}", tls_root_certs=roots
    )
    return client


def test_a_token_is_needed_for_every_call(secured: Secured) -> None:
    with flight(secured, secured.token) as client:
        assert client.call("hello")["protocol"] == 1
    for token in (None, "wrong", secured.token[:-1]):
        with flight(secured, token) as client:
            with pytest.raises(fl.FlightUnauthenticatedError):
                client.call("hello")
            with pytest.raises(Refused, match="unauthenticated"):
                client.read({"version": 1, "call": "list", "topic": "t"})


def test_wrong_tokens_are_counted_and_logged(secured: Secured) -> None:
    def counted() -> float:
        with flight(secured, secured.token) as client:
            text = client.call("metrics")["text"]
        [line] = [x for x in text.splitlines() if x.startswith("fasti_unauthenticated_calls_total")]
        return float(line.split()[1])

    before = counted()
    for _ in range(3):
        with flight(secured, "wrong") as client, pytest.raises(fl.FlightUnauthenticatedError):
            client.call("hello")
    # A client may try again by itself.
    assert counted() >= before + 3
    assert "a call was refused: " in secured.broker.log()


@pytest.mark.one_shard
def test_the_log_names_the_token_of_who_changed_something(secured: Secured) -> None:
    with flight(secured, secured.token) as client:
        client.call("create_topic", {"topic": "named", "settings": {}})
        client.call("delete_topic", {"topic": "named"})
    [line] = [x for x in secured.broker.log().splitlines() if "control: create_topic" in x]
    assert "topic=named" in line
    assert "by=billing" in line
    assert re.search(r"peer=(127\.0\.0\.1|\[::1\]):\d+ ", line)


def test_nobody_is_served_without_tls(secured: Secured) -> None:
    with Client(f"grpc://localhost:{secured.broker.port}", secured.token) as client:
        with pytest.raises(fl.FlightUnavailableError):
            client.call("hello")


def test_a_revoked_token_is_refused_from_the_next_call_on(secured: Secured) -> None:
    token = create(secured.credentials, "leaver")
    with flight(secured, token) as client:
        assert client.call("hello")["protocol"] == 1
        revoke(secured.credentials, "leaver")
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.call("hello")


def test_the_link_of_the_http_process_tells_a_bad_token(secured: Secured) -> None:
    link = BrokerLink(f"127.0.0.1:{secured.broker.port}", tls=True, token="wrong")
    with pytest.raises(Unauthenticated):
        link.call("health")
    link.close()


@pytest.mark.one_shard
def test_the_http_port_speaks_tls_and_asks_for_tokens_where_it_tells_more_than_health(
    secured: Secured,
) -> None:
    broker = secured.broker
    assert broker.http is not None
    trust = ssl.create_default_context(cafile=str(secured.authority))
    address = broker.http.replace("0.0.0.0", "localhost")
    at = _At(address)
    assert ask(at, "/healthz", trust=trust).status == 200
    assert ask(at, "/readyz", trust=trust).json()["ready"]
    refused = ask(at, "/metrics", trust=trust)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["code"] == "unauthenticated"
    assert ask(at, "/metrics", "wrong", trust).status == 401
    assert b"fasti_up 1.0" in ask(at, "/metrics", secured.token, trust).body
    with pytest.raises((URLError, ConnectionError)):
        ask(_At(address.replace("https", "http")), "/healthz")


class _At(NamedTuple):
    http: str


def test_no_token_is_on_a_command_line_or_in_an_environment(secured: Secured) -> None:
    (child,) = children(secured.broker.pid)
    for pid in (secured.broker.pid, child):
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert b"fasti_" not in seen.replace(b"fasti_data", b"")


def test_everything_finds_it_by_the_same_variables(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fasti.spark.connection import client_of

    monkeypatch.setenv("FASTI_ADDRESS", f"fasti+tls://localhost:{secured.broker.port}")
    monkeypatch.setenv("FASTI_TOKEN", secured.token)
    monkeypatch.setenv("FASTI_TLS_CA", str(secured.authority))
    with fasti.connect() as client:
        client.create_topic("jobs")
    app = fasti.App()
    assert app.client.topic("jobs").name == "jobs"
    app.close()
    assert client_of(known_address()).topic("jobs").name == "jobs"
    listed = CliRunner().invoke(commands, ["topics", "list", "--json"])
    assert [each["topic"] for each in json.loads(listed.stdout)] == ["jobs"]
    # What is given wins.
    with pytest.raises(Unauthenticated):
        fasti.connect(token="wrong")
    monkeypatch.setenv("FASTI_TLS_CA", "/no/such/file")
    with pytest.raises(InvalidArgument, match="tls_ca"):
        fasti.connect()
    fasti.connect(tls_ca=secured.authority).close()


APP = """
import fasti

app = fasti.App("fasti://nobody.invalid:1", token="wrong")
inside = app.on("by-threads")
apart = app.on("by-processes", kind="processes")

@inside
def reply(message: fasti.Message) -> None:
    message.reply(b"from threads")

@apart
def send_on(payload: bytes) -> None:
    reply_topic.later(payload, key="sent-on", delay="1h").result(60)

@app.on("later")
def reply_topic(payload: bytes) -> None: ...
"""


def test_the_flags_of_an_app_reach_all_of_its_processes(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "secured_app.py").write_text(APP)
    address = f"fasti+tls://localhost:{secured.broker.port}"
    command = [sys.executable, "-m", "fasti", "run", "secured_app:app", "--workers", "2"]
    command += ["--address", address, "--token", secured.token, "--tls-ca", str(secured.authority)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        try:
            trust = {"token": secured.token, "tls_ca": secured.authority}
            with fasti.connect(address, **trust) as client:  # type: ignore[arg-type]
                for topic in ("by-threads", "by-processes", "later"):
                    client.create_topic(topic)
                answer = client.call("by-threads", b"?", timeout="60s")
                assert answer.payload == b"from threads"
                client.producer("by-processes").send(b"x").result(60)
                until = time.monotonic() + 60
                while not client.messages("later").count()["scheduled"]:
                    assert time.monotonic() < until
                    time.sleep(0.02)
        finally:
            running.terminate()
            _, told = running.communicate(timeout=60)
    assert running.returncode == 0, told


def test_who_writes_the_wrong_scheme_is_told_the_right_one(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = secured.broker.port
    with pytest.raises(Unavailable, match=rf"speaks TLS: write fasti\+tls://127.0.0.1:{port}"):
        fasti.connect(f"fasti://127.0.0.1:{port}")
    asked = CliRunner().invoke(commands, ["topics", "list", "-a", f"fasti://127.0.0.1:{port}"])
    assert "write fasti+tls://" in asked.stderr
    assert "fasti serve" not in asked.stderr
    with BrokerProcess(tmp_path / "plain", settings=SMALL) as plain:
        with pytest.raises(Unavailable, match="doesn't speak TLS: write fasti://"):
            fasti.connect(f"fasti+tls://127.0.0.1:{plain.port}", tls_ca=secured.authority)


def test_an_authority_that_is_not_known_says_how_to_name_it(
    secured: Secured, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    address = f"fasti+tls://localhost:{secured.broker.port}"
    for authority in (None, tmp_path / "other.pem"):
        with pytest.raises(Unavailable, match="tls_ca=, --tls-ca or FASTI_TLS_CA"):
            fasti.connect(address, tls_ca=authority)
    with pytest.raises(Unavailable, match="another host name"):
        fasti.connect(f"fasti+tls://0.0.0.0:{secured.broker.port}", tls_ca=secured.authority)
    with pytest.raises(InvalidArgument, match="no certificate in PEM"):
        fasti.connect(address, tls_ca=b"nonsense")


NOISY = """
import sys
import fasti

plain, secure, authority = sys.argv[1:]
for address in ("fasti://127.0.0.1:1", plain, secure):
    try:
        fasti.connect(address, tls_ca=authority, timeout="5s")
    except fasti.errors.Unavailable:
        print("refused", flush=True)
# The broker behind stdin is killed in the middle.
with fasti.connect(input()) as client:
    client.create_topic("t")
    producer = client.producer("t")
    consumer = client.consumer("t", timeout="60s")
    producer.send(b"x").result(60)
    next(consumer).ack(wait=True)
    print("killed?", flush=True)
    input()
    try:
        client.producer("t", deadline="1s").send(b"y").result(60)
    except fasti.FastiError:
        print("lost", flush=True)
    try:
        client.close(timeout="2s")
    except fasti.FastiError:
        pass
"""


def test_nothing_of_grpc_is_on_stderr(secured: Secured, tmp_path: Path) -> None:
    plain = f"fasti://127.0.0.1:{secured.broker.port}"
    with BrokerProcess(tmp_path / "data", settings=SMALL) as broker:
        wrong = f"fasti+tls://127.0.0.1:{broker.port}"
        command = [sys.executable, "-c", NOISY, plain, wrong, str(secured.authority)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as running:  # type: ignore[call-overload]
            assert [running.stdout.readline() for _ in range(3)] == ["refused\n"] * 3
            running.stdin.write(broker.address + "\n")
            running.stdin.flush()
            assert running.stdout.readline() == "killed?\n", running.stderr.read()
            broker.kill()
            told, noise = running.communicate("\n", timeout=120)
    assert told == "lost\n"
    assert running.returncode == 0
    # What Fasti itself has to say stands there, in a program that set up no logging.
    assert [line for line in noise.splitlines() if not line.startswith("the broker is ")] == []


def test_what_is_printed_at_the_start_is_the_address_to_use(
    secured: Secured, tmp_path: Path
) -> None:
    folder = secured.authority.parent
    command = [sys.executable, "-m", "fasti", "serve", "--data", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--until-stdin-ends"]
    command += ["--segment-size", "1MiB"]
    command += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:  # type: ignore[call-overload]
        banner = running.stdout.readline()
        found = re.match(r"Fasti listens at (fasti\+tls://127.0.0.1:\d+), https://", banner)
        assert found, banner
        with fasti.connect(found[1], tls_ca=secured.authority) as client:
            assert client.health()["ready"]
        running.communicate(timeout=60)
