"""NATS servers that a broker may not be kept by are refused when it starts, with what to write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fasti.cluster.nats import NatsConnection
from fasti.cluster.server_reports import MonitorPorts, account_of
from fasti.doors.nats_check import check_servers, nats_options
from fasti.errors import InvalidArgument, Unauthenticated
from fasti.settings.load import ServeSettings, load
from tests.cluster.nats_rig import NatsServers, free_ports

_SYSTEM = "accounts { $SYS { users: [{ user: system, password: secret }] } }"


@contextmanager
def a_server(sync: str) -> Iterator[tuple[NatsServers, str]]:
    """With its monitoring port."""
    (port,) = free_ports(1)
    servers = NatsServers(1, sync=sync, extra=f'{_SYSTEM}\nhttp: "127.0.0.1:{port}"')
    try:
        servers.connect().close()
        yield servers, f"http://127.0.0.1:{port}"
    finally:
        servers.close()


def settings_for(servers: NatsServers, **more: Any) -> ServeSettings:
    given = {"cluster": "c", "nats": ",".join(servers.urls), "nats_replicas": 1, **more}
    return load(given, {})


def check(settings: ServeSettings) -> list[str]:
    """The names of the servers that answered and are good."""
    connection = NatsConnection(nats_options(settings))
    try:
        servers = check_servers(settings, connection)
        try:
            return [report.name for report in servers.ask()]
        finally:
            servers.close()
    finally:
        connection.close()


def test_a_server_that_syncs_always_is_found_good_both_ways() -> None:
    with a_server("always") as (servers, monitor):
        system = str(servers.system_credentials)
        assert check(settings_for(servers, nats_system_credentials=system)) == ["n0"]
        assert check(settings_for(servers, nats_monitors=monitor)) == ["n0"]
        connection = servers.connect()
        connection.ensure_stream({"name": "s", "subjects": ["s"], "storage": "file"})
        connection.publish("s", b"one")
        (report,) = MonitorPorts([monitor], account_of(connection)).ask()
        connection.close()
        assert report.streams["s"] == (1, 1, 1, 0, True)


def test_a_server_that_syncs_now_and_then_is_refused_with_the_line_to_write(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with a_server("2m") as (servers, monitor):
        for way in (
            {"nats_system_credentials": str(servers.system_credentials)},
            {"nats_monitors": monitor},
        ):
            with pytest.raises(InvalidArgument) as caught:
                check(settings_for(servers, **way))
            assert "NATS server n0" in str(caught.value)
            assert "`sync_interval: always`" in str(caught.value)
            assert "nats_unchecked" in str(caught.value)
            caplog.clear()
            assert check(settings_for(servers, **way, nats_unchecked=True)) == ["n0"]
            assert "UNCHECKED" in caplog.text
        wrong = tmp_path / "wrong"
        wrong.write_text("system:not-the-password\n")
        with pytest.raises(Unauthenticated) as refused:
            check(settings_for(servers, nats_system_credentials=str(wrong)))
        assert "system account" in str(refused.value)
        assert "not-the-password" not in str(refused.value)


def test_servers_that_can_not_be_asked_are_refused_with_what_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fasti.doors.nats_check._ANSWER_S", 0.0)
    # Nobody is where monitoring ports usually are.
    (port,) = free_ports(1)
    monkeypatch.setattr("fasti.cluster.server_reports.MONITOR_PORT", port)
    with a_server("always") as (servers, _):
        with pytest.raises(InvalidArgument) as caught:
            check(settings_for(servers))
        for word in ("nats_system_credentials", "nats_monitors", "nats_unchecked"):
            assert word in str(caught.value)
        assert check(settings_for(servers, nats_unchecked=True)) == []
