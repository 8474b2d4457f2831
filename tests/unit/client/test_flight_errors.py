"""What gRPC says, as sentences for people."""

from __future__ import annotations

import pyarrow.flight as flight
import pytest

from fasti.client.flight_errors import fasti_error
from fasti.errors import InvalidArgument, Unavailable

REFUSED = (
    "Flight returned unavailable error, with message: failed to connect to all addresses; last "
    "error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused. "
    "gRPC client debug context: UNKNOWN:Error received from peer"
)
UNKNOWN_HOST = (
    "errors resolving nohost:7170: [field:hostname lookup error:address lookup failed for "
    "nohost:7170: Domain name not found]"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (REFUSED, "no broker answers: the connection was refused"),
        (UNKNOWN_HOST, "no broker answers: its host name is not known"),
        ("failed to connect to all addresses", "no broker answers"),
        ("Ssl handshake failed", "no secure connection"),
        ("Socket closed", "the connection to the broker was lost"),
        ("recvmsg:Connection reset by peer", "the connection to the broker was lost"),
        ("something new", "no broker answers, or the connection was lost"),
    ],
)
def test_connections_that_fail_are_told_plainly(text: str, told: str) -> None:
    found = fasti_error(flight.FlightUnavailableError(text))
    assert isinstance(found, Unavailable)
    assert found.message.startswith(told)
    assert "gRPC" not in found.message
    assert found.details["cause"] in text


def test_what_the_broker_says_itself_is_kept() -> None:
    found = fasti_error(flight.FlightServerError("invalid_argument: unknown field 'x'"))
    assert isinstance(found, InvalidArgument)
    assert found.message == "unknown field 'x'"
