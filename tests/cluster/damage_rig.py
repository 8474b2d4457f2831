"""Damage of a NATS server's files, done on purpose while it is stopped."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from fasti.cluster.nats import NatsConnection
from fasti.cluster.rescue import lead_by
from fasti.cluster.roll_call import RollCall
from fasti.errors import FastiError
from tests.cluster.nats_rig import NatsServers, wait_until


def block_files(servers: NatsServers, number: int, stream: str) -> list[Path]:
    """The files of messages of one server's copy of a stream."""
    found = sorted((servers.directory / f"n{number}").rglob(f"streams/{stream}/msgs/*.blk"))
    assert found
    return found


def flip_marked(servers: NatsServers, number: int, stream: str, markers: Iterable[bytes]) -> None:
    """A bit of each message that has one of these texts in it."""
    files = {path: bytearray(path.read_bytes()) for path in block_files(servers, number, stream)}
    for marker in markers:
        ((data, at),) = [(data, data.find(marker)) for data in files.values() if marker in data]
        data[at] ^= 1
    for path, data in files.items():
        path.write_bytes(data)


def flip_some(paths: Iterable[Path], count: int, seed: int) -> None:
    """Bits anywhere."""
    draws = random.Random(seed)
    for path in paths:
        data = bytearray(path.read_bytes())
        for _ in range(count):
            data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        path.write_bytes(data)


def leader_of(connection: NatsConnection, stream: str) -> int:
    """The number of the server that leads it, when one does."""

    def ask() -> str:
        try:
            state = connection.stream_state(stream, 1.0)
        except FastiError:
            return ""
        return "" if state is None else state.leader

    return int(str(wait_until(ask, f"a leader of {stream}")).removeprefix("n"))


def wait_current(connection: NatsConnection, servers: NatsServers, stream: str) -> None:
    """All servers have it, as far as its leader knows."""

    def ask() -> bool:
        try:
            state = connection.stream_state(stream, 1.0)
        except FastiError:
            return False
        return state is not None and len(state.followers) + 1 == len(servers.ports)

    wait_until(ask, f"all copies of {stream}")


def make_lead(connection: NatsConnection, stream: str, number: int) -> None:
    def lead() -> bool:
        try:
            lead_by(connection, stream, f"n{number}")
        except FastiError:
            return False
        return True

    wait_until(lead, f"n{number} to lead {stream}")


def lost_on(connection: NatsConnection, stream: str, first: int, last: int) -> dict[str, int]:
    """How many of these messages each server can't give, by its own reading."""

    def read() -> RollCall | None:
        call = RollCall(connection, stream, {"n0", "n1", "n2"})
        try:
            for _ in call.steps():
                pass
        except FastiError:
            return None
        return call

    call: RollCall = wait_until(read, "a reading of all copies")
    counts = {
        server: sum(1 for place in range(first, last + 1) if not _has(runs, place))
        for server, runs in call.rolls.items()
    }
    return {server: count for server, count in counts.items() if count}


def _has(runs: list[tuple[int, int]], place: int) -> bool:
    return any(begin <= place <= end for begin, end in runs)
