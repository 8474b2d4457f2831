"""The peers: which adapter each has, with which settings, and what the page says of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from benchmarks.peers.server import PEERS_VENV

FASTI = "fasti"
_HEAD_OF_LINE = "a TTL takes effect only at the head of a queue: out of order they block each other"
_ONE_BY_ONE = "a worker takes jobs one by one"


@dataclass(frozen=True)
class Peer:
    """One line of the table: a server with its settings, and a client."""

    name: str
    title: str
    adapter: str
    client: str
    durability: str
    # Whether an acknowledgement means that the message is on the disk.
    durable: bool
    # How a message waits for its time.
    waits: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Whether others that stay pending must lie in a queue of their own.
    pending_apart: bool = False
    # Scenarios that this peer can't do, with the reason.
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> Any:
        """The adapter, with `Server` and `connect`."""
        return import_module(f"benchmarks.peers.adapters.{self.adapter}")

    @property
    def python(self) -> str:
        """The interpreter of its client processes."""
        return sys.executable if self.name == FASTI else str(PEERS_VENV / "bin" / "python")

    def missing(self) -> str | None:
        """Why it is skipped on this machine, with the command that installs it; None if it isn't."""
        if self.name != FASTI and not (PEERS_VENV / "bin" / "python").exists():
            return "the clients of the peers are not installed: make bench-peers-install"
        why: str | None = self.module.Server.missing()
        return why


def _rabbitmq(name: str, kind: str, title: str, durability: str) -> Peer:
    return Peer(
        name,
        title,
        "rabbitmq",
        "pika",
        durability,
        True,
        "a queue with TTL per message, dead-lettered to the work queue",
        {"queue_type": kind},
        pending_apart=True,
        cannot={
            "change_one": "a message that waits can't be cancelled or moved",
            "change_many": "a message that waits can't be cancelled or moved",
            "lease_random": _HEAD_OF_LINE,
        },
    )


def _redis(sync: str, durable: bool, durability: str) -> Peer:
    return Peer(
        f"redis-{sync}",
        f"Redis, appendfsync {sync}",
        "redis_lua",
        "redis-py, hiredis",
        durability,
        durable,
        "a sorted set; leases by Lua; polled every 2 ms",
        {"appendfsync": sync},
    )


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            FASTI,
            "Fasti",
            "fasti_broker",
            "its SDK, default settings",
            "fdatasync before every answer",
            True,
            "timeline topic; the broker pushes",
        ),
        Peer(
            "beanstalkd",
            "beanstalkd, -f0",
            "beanstalkd",
            "greenstalk",
            "fsync for every write",
            True,
            "delay in whole seconds",
        ),
        _redis("always", True, "fsync before every answer"),
        _redis("everysec", False, "fsync once a second: a power cut loses the last second"),
        Peer(
            "postgresql",
            "PostgreSQL, SKIP LOCKED",
            "postgresql",
            "psycopg 3, binary",
            "synchronous_commit on",
            True,
            "a table with an index on due; polled every 2 ms",
        ),
        Peer(
            "procrastinate",
            "Procrastinate",
            "procrastinate_jobs",
            "its own, on psycopg 3",
            "PostgreSQL, synchronous_commit on",
            True,
            "jobs table; NOTIFY, polled every 50 ms for later ones",
            cannot={
                "lease_random": _ONE_BY_ONE,
                "lease_arrival": _ONE_BY_ONE,
                "both": _ONE_BY_ONE,
            },
        ),
        _rabbitmq(
            "rabbitmq-quorum", "quorum", "RabbitMQ, quorum queue", "confirm after fsync (one node)"
        ),
        _rabbitmq(
            "rabbitmq-classic",
            "classic",
            "RabbitMQ, classic queue",
            "persistent messages, confirm after fsync",
        ),
        Peer(
            "nats-always",
            "NATS JetStream, sync always",
            "nats_jetstream",
            "nats-py",
            "fsync before every answer",
            True,
            "the server's scheduled messages, a subject each",
            {"sync_interval": "always"},
        ),
        Peer(
            "nats-default",
            "NATS JetStream, default",
            "nats_jetstream",
            "nats-py",
            "fsync every two minutes: a power cut loses what came since",
            False,
            "the server's scheduled messages, a subject each",
        ),
        Peer(
            "celery",
            "Celery ETA on Redis",
            "celery_eta",
            "its own worker, solo pool, acks late",
            "Redis, appendfsync always",
            True,
            "in the worker's memory until the ETA",
            {"appendfsync": "always"},
            cannot={
                "change_one": "`revoke` asks running workers to skip a task; nothing answers",
                "change_many": "`revoke` asks running workers to skip a task; nothing answers",
                "lease_random": _ONE_BY_ONE,
                "lease_arrival": _ONE_BY_ONE,
                "both": _ONE_BY_ONE,
                "restart": "what a dead worker held comes again after an hour (visibility timeout)",
            },
        ),
    )
}
