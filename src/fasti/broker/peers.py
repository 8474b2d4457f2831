"""The other processes of this broker, as what is in a process sees them.

The door's side is doors/peer.py. Where all shards are in one process there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

TIMEOUT_S = 5.0


class Peers(Protocol):
    """Any thread."""

    def call(
        self, shard: int, action: str, header: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The reply to an action of a shard that another process has; `shard_number` is added here.

        It is made as the caller `broker.caller.PEER`, which nobody else can be. Raises `unavailable` if
        that process doesn't answer, `timed_out` if it is not heard of in time (the action may be carried
        out or not, in either case), and what the action itself raises.
        """
