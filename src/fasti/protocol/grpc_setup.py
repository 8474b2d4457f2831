"""What gRPC is told before a process makes its first connection.

**Its own log** goes to stderr and tells in its words what Fasti's errors tell in ours: it is off unless
GRPC_VERBOSITY says otherwise.

**Who waits for sockets.** gRPC's event engine has threads of its own, which pass what they read on to each
other and then to the thread that wants it: two hand-overs more for every message, in either direction.
Without it that thread waits for the socket itself. Both are parts of gRPC; which of them is used it
decides once in a process, by GRPC_EXPERIMENTS. A user's own choice stands.
"""

from __future__ import annotations

import os
from functools import cache

# How a client's connections behave.
CLIENT_OPTIONS = [
    # A batch may have 64 MiB.
    ("grpc.max_receive_message_length", 80 << 20),
    ("grpc.max_send_message_length", 80 << 20),
    # Brokers of one process are told apart, and a lost connection is really gone.
    ("grpc.use_local_subchannel_pool", 1),
    # Servers take pings from idle clients every five minutes at most, so a silent network is noticed
    # by questions of our own. With this, data that is not acknowledged for 8 seconds ends the
    # connection as well.
    ("grpc.keepalive_time_ms", 301_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

_EXPERIMENTS = "GRPC_EXPERIMENTS"
_WITHOUT_EVENT_ENGINE = "-event_engine_client,-event_engine_listener"


@cache
def prepare_grpc() -> None:
    """Called before a process's first connection, or server; again, it does nothing."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if _EXPERIMENTS in os.environ:
        return
    import pyarrow.flight as flight

    # Only while gRPC reads it: other programs that this process starts, and other copies of gRPC in
    # it, are not ours to set up.
    os.environ[_EXPERIMENTS] = _WITHOUT_EVENT_ENGINE
    try:
        flight.FlightClient("grpc://127.0.0.1:1").close()
    finally:
        os.environ.pop(_EXPERIMENTS, None)
