"""What `fasti cluster up` runs in a directory: how many of what, at which ports. Written down there, so that
the next start goes on with the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasti.broker.ports import reserve
from fasti.errors import DataDirLocked, FastiError, InvalidArgument, StorageFailed
from fasti.settings.values import Address

NATS_HOST = "127.0.0.1"
_FILE, _LOCK = "cluster.json", "lock"
_FORMAT = 1
_LISTEN = Address("127.0.0.1", 7170)
# So much of the journal NATS keeps of a shard, at most.
_JOURNAL_BYTES = 256 << 20


@dataclass(frozen=True)
class ClusterPlan:
    """The brokers' ports follow that of `listen`. `ports` and `routes` are the NATS servers'."""

    directory: Path
    brokers: int
    shards: int
    listen: Address
    ports: tuple[int, ...]
    routes: tuple[int, ...]
    # The lock of the directory, and the ports, which no other process is given.
    lock: int
    kept: tuple[socket.socket, ...]
    journal_bytes: int = _JOURNAL_BYTES

    @property
    def nats_urls(self) -> list[str]:
        """Of all servers."""
        return [f"nats://{NATS_HOST}:{port}" for port in self.ports]

    @property
    def listens(self) -> list[Address]:
        """Of all brokers."""
        host, first = self.listen
        return [Address(host, first + number) for number in range(self.brokers)]

    @property
    def address(self) -> str:
        """For `fasti.connect`."""
        return "fasti://" + ",".join(map(str, self.listens))

    def close(self) -> None:
        """Others may have the directory and the ports."""
        os.close(self.lock)
        for reservation in self.kept:
            reservation.close()


def settle_plan(
    directory: Path,
    brokers: int | None,
    nats: int | None,
    shards: int | None,
    listen: Address | None,
) -> ClusterPlan:
    """What runs in a directory, which is made if it is not there; None stands for what it had before, or else 3.

    Raises `locked` if another process runs it, `invalid_argument` if it has another number of shards or NATS
    servers, `already_exists` if a port is taken, `storage_failed`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _lock(directory)
        before = _read(directory)
    except OSError as error:
        raise StorageFailed(f"{error.filename or directory}: {error.strerror}") from error
    try:
        plan = _settle(directory, lock, before, brokers, nats, shards, listen)
    except BaseException:
        os.close(lock)
        raise
    _write(plan)
    return plan


def _settle(
    directory: Path,
    lock: int,
    before: dict[str, Any] | None,
    brokers: int | None,
    nats: int | None,
    shards: int | None,
    listen: Address | None,
) -> ClusterPlan:
    servers = _fixed("nats", "NATS servers", nats, len(before["ports"]) if before else None)
    if servers not in (1, 3, 5):
        raise InvalidArgument(
            f"nats is {servers}: it must be 1, 3 or 5, so that one half is the greater",
            field="nats",
        )
    count = _fixed("shards", "shards", shards, before["shards"] if before else None)
    at = listen or (Address(*before["listen"]) if before else _LISTEN)
    if not at.is_loopback:
        raise InvalidArgument(
            f"listen is {at}: such a cluster asks for no password, so it must be an address of loopback",
            field="listen",
        )
    number = brokers or (before["brokers"] if before else 3)
    doors, at = _keep(at, number)
    if before:
        ports, routes = tuple(before["ports"]), tuple(before["routes"])
        # Not reserved in a row: they were free when they were chosen.
        kept = [one for port in (*ports, *routes) for one in _keep(Address(NATS_HOST, port), 1)[0]]
    else:
        kept, first = _keep(Address(NATS_HOST, 0), 2 * servers)
        ports = tuple(range(first.port, first.port + servers))
        routes = tuple(range(first.port + servers, first.port + 2 * servers))
    everything = (*doors, *kept)
    return ClusterPlan(directory.absolute(), number, count, at, ports, routes, lock, everything)


def _fixed(field: str, what: str, asked: int | None, had: int | None) -> int:
    if asked is not None and had is not None and asked != had:
        raise InvalidArgument(
            f"the cluster in this directory has {had} {what}, not {asked}: that is fixed for good. "
            "Leave it out, or name another directory",
            field=field,
        )
    return asked or had or 3


def _keep(address: Address, count: int) -> tuple[list[socket.socket], Address]:
    """Ports that no other process is given; the address of the first."""
    try:
        kept = reserve(address, count)
    except OSError as error:
        raise FastiError(
            f"{error.filename or address} can't be listened at: {error.strerror}"
        ) from error
    return kept, Address(address.host, int(kept[0].getsockname()[1]))


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataDirLocked(f"{directory} is run by another `fasti cluster up`") from None
    return descriptor


def _read(directory: Path) -> dict[str, Any] | None:
    try:
        text = (directory / _FILE).read_text()
    except FileNotFoundError:
        return None
    with suppress(ValueError):
        document: dict[str, Any] = json.loads(text)
        if document.get("format") == _FORMAT:
            return document
    raise StorageFailed(f"{directory / _FILE} is not of a form that is known here")


def _write(plan: ClusterPlan) -> None:
    """Whole or not at all."""
    document = {
        "format": _FORMAT,
        "brokers": plan.brokers,
        "shards": plan.shards,
        "listen": plan.listen,
        "ports": plan.ports,
        "routes": plan.routes,
    }
    fresh = plan.directory / f".{_FILE}.new"
    fresh.write_text(json.dumps(document, indent=2) + "\n")
    fresh.replace(plan.directory / _FILE)
