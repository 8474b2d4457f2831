"""Tokens and the files that they stand in: odd ones, wrong ones, and files that others may read."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.flight as fl
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.address import parse_address
from fasti.client.flight_transport import FlightTransport
from fasti.doors.credentials import create
from fasti.errors import PermissionDenied, TimedOut, Unauthenticated
from tests.conformance.protocol_client import Client
from tests.faults.conftest import Tried
from tests.faults.shim import Calls, MachineFaults
from tests.integration.serve_rig import SMALL, ask

# What stands behind `Authorization:`, as bytes on the wire.
ODD = (
    b"Bearer",
    b"Bearer ",
    b"Bearer \xa0",
    b"Bearer \xc2\xa0",
    "Bearer tök".encode(),
    "Bearer tök".encode("latin-1"),
    b"Bearer \xff\xfe",
    b"Bearer one two",
    b"Bearer " + b"x" * 10_000,
    b"Basic YWxhZGRpbjpvcGVuc2VzYW1l",
    b"fasti_abc",
    b"",
)
FAR = datetime.max.replace(tzinfo=UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def token(folder: Path) -> str:
    return create(folder / "credentials.toml", "billing")


@pytest.fixture(scope="module")
def broker(folder: Path, token: str) -> Iterator[BrokerProcess]:
    settings = {**SMALL, "credentials": folder / "credentials.toml"}
    with BrokerProcess(folder / "data", http="127.0.0.1:0", settings=settings) as process:
        yield process


def _http_status(broker: BrokerProcess, authorization: bytes) -> int:
    """Of a request that no library would write."""
    assert broker.http is not None
    host, _, port = broker.http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as wire:
        wire.sendall(
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: "
            + authorization
            + b"\r\n\r\n"
        )
        return int(wire.makefile("rb").readline().split()[1])


@pytest.mark.fault(
    "logins",
    "odd tokens: empty, binary, not ASCII, huge, of another scheme",
    "401 and `unauthenticated`, on both ports and in the SDK",
)
def test_odd_tokens_are_unauthenticated(broker: BrokerProcess, token: str, tried: Tried) -> None:
    assert [_http_status(broker, odd) for odd in ODD] == [401] * len(ODD)
    assert _http_status(broker, f"Bearer {token}".encode()) == 200
    ascii_only = [odd for odd in ODD if all(0x20 <= byte < 0x7F for byte in odd)]
    for odd in (*ascii_only, f"bearer{token}".encode(), f"Token {token}".encode()):
        # Longer headers than 8 KiB gRPC refuses itself.
        with Client(f"{broker.host}:{broker.port}") as client:
            client._headers = [(b"authorization", odd[:4_000])]
            with pytest.raises(fl.FlightUnauthenticatedError):
                client.call("hello")
            with pytest.raises(fl.FlightUnauthenticatedError):
                client.flight.get_flight_info(
                    fl.FlightDescriptor.for_command(b"{}"), client.options()
                )
    for written in ("tök", "one two", "\n", "x" * 10_000, "\ud800"):
        with pytest.raises(Unauthenticated) as refused:
            fasti.connect(broker.address, token=written)
        assert written not in refused.value.message
    tried.times = 2 * len(ODD)


@pytest.mark.fault(
    "logins",
    "calls with wrong tokens",
    "counted, logged now and then with address and reason, never with the token",
)
def test_refused_logins_are_told(broker: BrokerProcess, token: str, tried: Tried) -> None:
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            fasti.connect(broker.address, token="fasti_wrong-and-secret")
    text = ask(broker, "/metrics", token=token).body.decode()
    counted = re.search(r"^fasti_unauthenticated_calls_total (\S+)", text, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) >= 5
    lines = [line for line in broker.log().splitlines() if "a call was refused" in line]
    assert len(lines) == 1, "once a minute at most"
    assert re.search(r"call=do_action peer=127\.0\.0\.1:\d+ total=\d+", lines[0])
    assert "wrong-and-secret" not in broker.log()
    tried.times = 5


@pytest.mark.fault(
    "logins",
    "a token file or a key that others may read or write",
    "the broker doesn't start, and says which chmod helps; one that runs keeps its tokens",
)
@pytest.mark.parametrize("mode", [0o644, 0o606, 0o660, 0o666])
def test_files_that_others_may_read_are_refused(tmp_path: Path, mode: int, tried: Tried) -> None:
    path = tmp_path / "credentials.toml"
    create(path, "billing")
    path.chmod(mode)
    with pytest.raises(PermissionDenied, match=f"chmod 600 {path}"):
        BrokerProcess(tmp_path / "data", settings={**SMALL, "credentials": path})
    tls = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    for file in tls.values():
        file.write_text("pem")
        file.chmod(mode)
    with pytest.raises(PermissionDenied, match=f"chmod 600 {tls['tls_key']}"):
        BrokerProcess(tmp_path / "data", settings={**SMALL, **tls})
    tried.times = 2


def test_a_file_that_others_may_change_by_now_is_not_read_again(
    broker: BrokerProcess, folder: Path, token: str
) -> None:
    path = folder / "credentials.toml"
    later = create(path, "later")
    path.chmod(0o666)
    try:
        with fasti.connect(broker.address, token=token) as client:
            client.topics()
        with pytest.raises(Unauthenticated):
            fasti.connect(broker.address, token=later)
        assert f"chmod 600 {path}" in broker.log()
    finally:
        path.chmod(0o600)
    fasti.connect(broker.address, token=later).close()


@pytest.mark.fault(
    "logins", "a token for another host without TLS", "a warning, once for each address"
)
def test_a_token_in_clear_warns(caplog: pytest.LogCaptureFixture, tried: Tried) -> None:
    caplog.set_level(logging.WARNING, "fasti.client")
    for address in (
        "fasti://127.0.0.1:7170",
        "fasti://localhost",
        "fasti://[::1]",
        "fasti+tls://b",
    ):
        FlightTransport(parse_address(address), token="t").close()
    FlightTransport(parse_address("fasti://broker.example")).close()
    assert caplog.messages == []
    for _ in range(3):
        FlightTransport(parse_address("fasti://127.0.0.1,broker.example:1"), token="secret").close()
    (message,) = caplog.messages
    assert "broker.example:1 in clear" in message
    assert "secret" not in message
    tried.times = 3


@pytest.mark.fault(
    "calls", "a disk that hangs while a checkpoint is written", "`timed_out` when the caller said"
)
def test_a_checkpoint_obeys_its_timeout(machine: MachineFaults, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SMALL, env=machine.environment) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            client.producer("t").send(b"x", delay="1d").result()
            machine.hang(Calls.SYNC | Calls.OPEN, "blocks")
            with pytest.raises(TimedOut, match="checkpoint"):
                client.checkpoint(timeout="300ms")
            # What doesn't need the disk goes on.
            assert client.topics()
            machine.heal()
            client.checkpoint()
        with fasti.connect(broker.address, timeout="200ms") as hasty:
            machine.hang(Calls.SYNC | Calls.OPEN, "blocks")
            hasty.producer("t").send(b"x", delay="1d").result()
            with pytest.raises(TimedOut, match="checkpoint"):
                hasty.checkpoint()
            machine.heal()


@pytest.mark.fault(
    "time", "schedules and previews at the end of the calendar", "answered; nothing is out of range"
)
def test_schedules_at_the_end_of_the_calendar(broker: BrokerProcess, token: str) -> None:
    with fasti.connect(broker.address, token=token) as client:
        client.create_topic("far", kind="cron")
        client.create_topic("target")
        schedules = client.schedules("far")
        for timing in ({"every": "1h"}, {"cron": "59 23 31 12 *", "timezone": "Pacific/Pago_Pago"}):
            assert schedules.preview(count=3, after=FAR, **timing) == []
            assert schedules.preview(count=3, start=FAR, **timing) == []
        schedules.put("never", target="target", every="1d", start=FAR)
        schedules.put("soon", target="target", every="1d")
        assert [(each.name, each.next is not None) for each in schedules.list()] == [
            ("never", False),
            ("soon", True),
        ]
