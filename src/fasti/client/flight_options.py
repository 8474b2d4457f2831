"""How this side's gRPC connections behave."""

from __future__ import annotations

OPTIONS = [
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
