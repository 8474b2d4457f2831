"""The door says who calls, and every call through the service carries it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trustme

from fasti.broker.caller import EMBEDDED, Caller
from fasti.broker.service import Service
from fasti.client.address import parse_address
from fasti.client.flight_transport import FlightTransport
from fasti.doors.flight import FlightDoor
from fasti.errors import FastiError
from fasti.testing import VirtualBroker

ANNA = Caller("anna", authenticated=True)
NONE = {"version": 1, "topic": "none"}


def refusals(service: Service) -> set[tuple[str, str]]:
    """Operation and caller of every refusal in the metrics."""
    text = service.call(EMBEDDED, "metrics", {"version": 1})[0]["text"]
    found = re.findall(
        r'^fasti_refusals_total\{caller="(.*?)",code=".*?",op="(.*?)"\}', text, re.MULTILINE
    )
    return {(op, caller) for caller, op in found}


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("count", lambda service: service.call(ANNA, "count", NONE)),
        ("produce", lambda service: service.intake(ANNA, {**NONE, "call": "produce"})),
        (
            "consume",
            lambda service: service.exchange(ANNA, {**NONE, "call": "consume", "consumer": "c"}),
        ),
        ("log", lambda service: service.plan(ANNA, {**NONE, "call": "log"})),
        ("kv", lambda service: service.read(ANNA, {**NONE, "call": "kv"})),
    ],
)
def test_a_refusal_is_counted_for_its_caller(op: str, call: Callable[[Service], Any]) -> None:
    with VirtualBroker() as broker:
        with pytest.raises(FastiError):
            call(broker.service)
        assert refusals(broker.service) == {(op, "anna")}


def test_sessions_and_intakes_keep_their_caller() -> None:
    with VirtualBroker() as broker:
        broker.client().create_topic("t")
        service = broker.service
        topic = {"version": 1, "topic": "t"}
        session = service.exchange(ANNA, {**topic, "call": "consume", "consumer": "c"})
        intake = service.intake(ANNA, {**topic, "call": "produce"})
        follower = service.exchange(ANNA, {"version": 1, "call": "changes"})
        assert (session.caller, intake.caller, follower.caller) == (ANNA, ANNA, ANNA)
        assert (session.call, follower.call) == ("consume", "changes")
        service.leave(session)
        service.leave(follower)
        intake.finish()
        intake.end()
        assert service.shares.sessions.held() == {}


def test_a_certificate_names_a_caller_without_a_token() -> None:
    authority = trustme.CA()
    own, shown = authority.issue_cert("localhost"), authority.issue_cert("anna@example.com")
    trusted = authority.cert_pem.bytes()
    tls = (own.cert_chain_pems[0].bytes(), own.private_key_pem.bytes())
    with VirtualBroker() as broker:
        door = FlightDoor(broker.service, "localhost", tls=tls, client_ca=trusted)
        transport = FlightTransport(
            parse_address(f"fasti+tls://localhost:{door.port}"),
            tls_ca=trusted,
            tls_client=(shown.cert_chain_pems[0].bytes(), shown.private_key_pem.bytes()),
        )
        with pytest.raises(FastiError):
            transport.call("count", {"topic": "none"})
        transport.close()
        door.stop()
        assert refusals(broker.service) == {("count", "anna@example.com")}


def test_refusals_of_many_callers_are_bounded() -> None:
    with VirtualBroker() as broker:
        for number in range(1_500):
            broker.service.metrics.refused("count", "not_found", f"c-{number}")
        found = refusals(broker.service)
        assert len(found) == 1_001
        assert ("count", "_other") in found
