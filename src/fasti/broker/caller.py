"""Who makes a call, as the door knows it.

The door names the caller and the service carries it with every call, session and intake. Limits are
shared between callers by this name (shares.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The name of the caller's token; where the broker asks for none, the host that it calls from."""

    name: str = "embedded"
    # The address and port of the connection.
    peer: str = "embedded"
    # Whether the name is a token's.
    authenticated: bool = False

    @property
    def is_local(self) -> bool:
        """The process that the broker is embedded in: it has nobody to leave room for."""
        return self.name == "embedded" and not self.authenticated


EMBEDDED = Caller()


def caller_from(token: str, peer: str) -> Caller:
    """`peer` is an address and a port, `token` the name of a token or empty."""
    if token:
        return Caller(token, peer, authenticated=True)
    host = peer.rpartition(":")[0].strip("[]")
    return Caller(host or peer, peer)
