"""The check of the NATS servers before a broker of a cluster starts: a way to ask them, and what they say."""

from __future__ import annotations

import logging
import time

from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.nats_access import access_options
from fasti.cluster.server_checks import problems_of
from fasti.cluster.server_reports import (
    MonitorPorts,
    ServerReport,
    Servers,
    SystemAccount,
    account_of,
    usual_monitors,
)
from fasti.errors import InvalidArgument, Unauthenticated
from fasti.settings.load import ServeSettings

_log = logging.getLogger("fasti.broker.cluster")

# Servers that start together with their brokers may need a moment.
_ANSWER_S = 5.0
_LOOK_S = 0.2


def nats_options(settings: ServeSettings) -> NatsOptions:
    """Of the connection by which a broker does its work. Raises `InvalidArgument`."""
    assert settings.nats is not None
    return NatsOptions(
        **access_options(
            settings.nats,
            settings.nats_credentials,
            settings.nats_ca,
            settings.nats_cert,
            settings.nats_key,
        )
    )


def check_servers(settings: ServeSettings, connection: NatsConnection) -> Servers:
    """A way to ask the servers, whose settings are good, or the operator insists.

    Raises `InvalidArgument` if a server's are not, or they can't be seen, `Unavailable`, `Unauthenticated`.
    """
    servers = _way_to_ask(settings, connection)
    try:
        _check(settings, _first_reports(servers))
    except BaseException:
        servers.close()
        raise
    return servers


def _way_to_ask(settings: ServeSettings, connection: NatsConnection) -> Servers:
    assert settings.nats is not None
    account = account_of(connection)
    options = nats_options(settings)
    if settings.nats_system_credentials is not None:
        access = access_options(
            options.urls,
            settings.nats_system_credentials,
            settings.nats_ca,
            settings.nats_cert,
            settings.nats_key,
            field="nats_system_credentials",
        )
        try:
            system = NatsConnection(NatsOptions(**access))
        except Unauthenticated as error:
            raise Unauthenticated(
                f"NATS refuses the credentials in {settings.nats_system_credentials}: they must be of a "
                "user of its system account"
            ) from error
        return SystemAccount(system, account, settings.nats_replicas)
    return MonitorPorts(settings.nats_monitors or usual_monitors(options.urls), account)


def _first_reports(servers: Servers) -> list[ServerReport]:
    until = time.monotonic() + _ANSWER_S
    while not (reports := servers.ask()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return reports


def _check(settings: ServeSettings, reports: list[ServerReport]) -> None:
    problems = list(map(str, problems_of(reports)))
    if not reports:
        problems = [
            "the settings of the NATS servers can't be seen: give nats_system_credentials (a user of NATS's "
            "system account) or nats_monitors (their monitoring ports)"
        ]
        if settings.nats_system_credentials is not None:
            problems = [
                "no NATS server answers over its system account: is the user of "
                f"{settings.nats_system_credentials} one of that account?"
            ]
        elif settings.nats_monitors is not None:
            ports = ", ".join(settings.nats_monitors)
            problems = [f"no NATS server answers at its monitoring port: {ports}"]
    if not problems:
        return
    if not settings.nats_unchecked:
        raise InvalidArgument(
            "; ".join(problems)
            + ". To start all the same, at the risk of losing what was acknowledged, "
            "say nats_unchecked",
            field="nats_unchecked",
        )
    for problem in problems:
        _log.warning("NATS is used UNCHECKED, acknowledged messages may be lost: %s", problem)
