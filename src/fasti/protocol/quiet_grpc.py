"""gRPC's own log, which goes to stderr and tells in its words what Fasti's errors tell in ours.

It is off unless GRPC_VERBOSITY says otherwise. Called before the first connection of a process.
"""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """Has gRPC write nothing to stderr, unless its user wants it to."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
