"""What pyarrow raises, as the errors that Fasti's callers know."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as flight

from fasti.client.address import NO_BROKER
from fasti.errors import (
    FastiError,
    InvalidArgument,
    Moved,
    Overloaded,
    PermissionDenied,
    TimedOut,
    Unauthenticated,
    Unavailable,
    error_codes,
)
from fasti.protocol.envelope import parse
from fasti.protocol.problems import error_from_json

_CODED = re.compile(r"\b([a-z_]+): ([^\n]*)")
# Parts of what gRPC says, and what they mean; the first that is found counts.
_MEANINGS = (
    ("connection refused", f"{NO_BROKER}: the connection was refused"),
    ("lookup failed", f"{NO_BROKER}: its host name is not known"),
    ("errors resolving", f"{NO_BROKER}: its host name is not known"),
    ("name resolution", f"{NO_BROKER}: its host name is not known"),
    (
        "wrong version number",
        "the broker doesn't speak TLS: write fasti:// instead of fasti+tls://",
    ),
    ("not in peer certificate", "the broker's certificate is for another host name"),
    ("hostname verification", "the broker's certificate is for another host name"),
    (
        "certificate",
        "the broker's certificate is not trusted here: name the file of the authority that signed it "
        "by tls_ca=, --tls-ca or FASTI_TLS_CA",
    ),
    ("handshak", "no secure connection: the broker may not speak TLS, or not trust us"),
    ("ssl_error", "no secure connection: the broker may not speak TLS, or not trust us"),
    ("no route to host", f"{NO_BROKER}: there is no way to its host"),
    ("network is unreachable", f"{NO_BROKER}: there is no way to its host"),
    ("failed to connect", f"{NO_BROKER}"),
    ("socket closed", "the connection to the broker was lost"),
    ("connection reset", "the connection to the broker was lost"),
    ("broken pipe", "the connection to the broker was lost"),
    ("goaway", "the broker has ended the connection"),
)
# Those that say that there was no connection to send anything by.
_NO_CONNECTION = (
    *("connection refused", "lookup failed", "errors resolving", "name resolution"),
    *("handshak", "certificate", "no route to host", "network is unreachable", "failed to connect"),
)
_DEBUG = re.compile(r"\.? ?(gRPC client debug context|Client context|Detail).*", re.DOTALL)


def fasti_error(error: BaseException) -> FastiError:
    """The error that a failed Flight call stands for. Never raises."""
    if isinstance(error, FastiError):
        return error
    sent = _broker_error(getattr(error, "extra_info", b"") or b"")
    if sent is not None:
        return sent
    text = _DEBUG.sub("", str(error)).strip() or type(error).__name__
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(f"the broker did not accept the credentials: {text}")
    if isinstance(error, flight.FlightUnauthorizedError):
        return PermissionDenied(text)
    if isinstance(error, flight.FlightTimedOutError):
        return TimedOut("no answer in time", details={"cause": text})
    coded = _coded(text)
    if coded is not None:
        return coded
    # A call that its peer cut off or cancelled, an end in the middle of a message, a write to a
    # stream that is over: all mean that this connection is of no use any more.
    if isinstance(error, (flight.FlightError, pa.ArrowException, OSError, StopIteration)):
        return Unavailable(_plainly(text), details={"cause": text})
    if isinstance(error, (TypeError, ValueError)):
        return InvalidArgument(f"this can't be sent: {text}")
    return FastiError(f"{type(error).__name__}: {text}")


def was_never_sent(error: FastiError) -> bool:
    """Whether a call that failed like this has not reached a broker, or was not taken by it."""
    if isinstance(error, (Moved, Overloaded)):
        return True
    if not isinstance(error, Unavailable):
        return False
    cause = str(error.details.get("cause", "")).lower()
    # A broker's own word comes without a cause: it is stopping, and has done nothing.
    return not cause or any(sign in cause for sign in _NO_CONNECTION)


def _plainly(text: str) -> str:
    """What gRPC says of a connection, in a sentence for people; its own words are the `cause`."""
    for sign, meaning in _MEANINGS:
        if sign in text.lower():
            return meaning
    return f"{NO_BROKER}, or the connection was lost"


def _broker_error(extra: bytes) -> FastiError | None:
    """The broker's own words, if they came along."""
    try:
        return error_from_json(parse(extra)) if extra else None
    except FastiError:
        return None


def _coded(text: str) -> FastiError | None:
    """A status message that begins with a code, where the details were lost on the way."""
    codes = error_codes()
    for code, message in _CODED.findall(text):
        if code in codes and code != "error":
            return error_from_json({"code": code, "message": message})
    return None
