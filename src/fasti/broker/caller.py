"""Who makes a call, as the door knows it.

The door makes the caller from a token or a client certificate, and the service carries it with every
call, session and intake. Limits are shared between callers by name (shares.py). What a caller may do
is not decided yet: its namespace and its roles are carried so that one place behind the service can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.core.numbered.commands import CallNumber


@dataclass(frozen=True, slots=True)
class Caller:
    """The name of a token or a certificate; of an anonymous caller, the host that it calls from."""

    name: str
    # The tenant whose topics it means. Tokens and certificates name none yet.
    namespace: str = "default"
    roles: frozenset[str] = frozenset()
    # The address and port of the connection.
    peer: str = "embedded"
    # Whether a token or a certificate proves the name.
    authenticated: bool = False
    # Of the call that is made, if it has one.
    call: CallNumber | None = field(default=None, compare=False)

    def calling(self, call: CallNumber) -> Caller:
        """The same with a call that has a number."""
        known = (self.name, self.namespace, self.roles, self.peer, self.authenticated)
        return Caller(*known, call)

    @property
    def is_local(self) -> bool:
        """Whether it is the process that the broker is embedded in, which shares with no other."""
        return self == EMBEDDED

    @property
    def is_peer(self) -> bool:
        """Whether it is a process of this broker, which may do what no client may."""
        return _PEER_ROLE in self.roles

    def log_fields(self) -> dict[str, str]:
        """For the log line of a call."""
        known = {"by": self.name if self.authenticated else "-", "peer": self.peer}
        return known if self.namespace == "default" else {**known, "namespace": self.namespace}


_PEER_ROLE = "peer"
EMBEDDED = Caller("embedded")
# Tokens and certificates have names, and no roles: so nobody else can be it.
PEER = Caller("fasti-peer", roles=frozenset((_PEER_ROLE,)), peer="inside", authenticated=True)


def caller_from(name: str, peer: str) -> Caller:
    """`peer` is an address and a port, `name` that of a token or a certificate, or empty."""
    if name:
        return Caller(name, peer=peer, authenticated=True)
    host = peer.rpartition(":")[0].strip("[]")
    return Caller(host or peer, peer=peer)
