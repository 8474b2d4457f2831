"""`fasti bench peers`: every scenario of every peer that is installed, in a shuffled order.

In each round all pairs of peer and scenario are measured once, in an order drawn from the seed. A peer
has one server for the whole run, stopped by SIGSTOP while another is measured; scenarios that leave
much behind, or kill it, get a server of their own. What a run found is one JSON file, kept after every
pair, so that a run that is broken off is not lost.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.limits import machine, sync_limits
from benchmarks.peers.driver import JobFailed
from benchmarks.peers.percentiles import latencies_ms
from benchmarks.peers.registry import FASTI, PEERS, Peer
from benchmarks.peers.scenarios import FULL, QUICK, SCENARIOS, Bench, Scenario, Sizes, measure
from benchmarks.peers.server import PEERS_VENV, ROOT, NotStarted, Server, output

Figures = dict[str, Any]
Show = Callable[[str], None]

FORMAT = 1
_CLIENTS = [
    "celery",
    "greenstalk",
    "hiredis",
    "nats-py",
    "pika",
    "procrastinate",
    "psycopg",
    "redis",
]


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    peer: str
    scenario: str
    round: int


def chosen(scenarios: Sequence[str], quick: bool, long: bool) -> list[Scenario]:
    """The scenarios of a run: those that are named, or all that fit it."""
    if scenarios:
        return [SCENARIOS[name] for name in scenarios]
    return [
        scenario
        for scenario in SCENARIOS.values()
        if (long or not scenario.long) and not (quick and scenario.full_only)
    ]


def plan(peers: Sequence[str], scenarios: Sequence[Scenario], rounds: int, seed: int) -> list[Cell]:
    """All pairs once in each round, each round in an order of its own that the seed decides."""
    drawn = random.Random(seed)
    found = []
    for number in range(rounds):
        cells = [
            Cell(peer, scenario.name, number)
            for peer in peers
            for scenario in scenarios
            if scenario.is_for(PEERS[peer])
        ]
        drawn.shuffle(cells)
        found += cells
    return found


def run(
    peers: Sequence[str],
    scenarios: Sequence[str],
    rounds: int,
    *,
    seed: int,
    quick: bool = False,
    long: bool = False,
    directory: Path | None = None,
    show: Show = lambda _: None,
    sizes: Sizes | None = None,
    seconds_max: float | None = None,
    keep: Callable[[Figures], None] = lambda _: None,
) -> Figures:
    """One run. `keep` gets what there is after each pair; after `seconds_max` no pair begins."""
    names = [FASTI, *(name for name in peers or PEERS if name != FASTI)]
    skipped = {name: why for name in names if (why := PEERS[name].missing()) is not None}
    names = [name for name in names if name not in skipped]
    cells = plan(names, chosen(scenarios, quick, long), rounds, seed)
    found: Figures = {
        "format": FORMAT,
        "seed": seed,
        "rounds": rounds,
        "quick": quick,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **_build(),
        "machine": machine(),
        "versions": {name: PEERS[name].module.Server.version() for name in names},
        "clients": _client_versions(),
        "skipped": skipped,
        "limits": [],
        "left_out": 0,
        "cells": [],
    }
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fasti-peers-", dir=directory) as place:
        with _Servers(Path(place)) as servers:
            for number, cell in enumerate(cells):
                if seconds_max is not None and time.monotonic() - begin > seconds_max:
                    found["left_out"] = len(cells) - number
                    break
                if len(found["limits"]) <= cell.round:
                    show("the machine's limits")
                    found["limits"].append(limits(Path(place)))
                show(f"{number + 1}/{len(cells)}  {cell.peer}: {SCENARIOS[cell.scenario].title}")
                found["cells"].append(_measured(cell, servers, sizes or (QUICK if quick else FULL)))
                keep(found)
    found["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
    keep(found)
    return found


def _measured(cell: Cell, servers: _Servers, sizes: Sizes) -> Figures:
    peer, scenario = PEERS[cell.peer], SCENARIOS[cell.scenario]
    begin = time.monotonic()
    try:
        if (why := scenario.why_not(peer)) is not None:
            figures: Figures = {"cannot": why}
        else:
            with servers.one(peer, scenario.alone) as (server, scratch):
                queue = f"{cell.scenario}-{cell.round}".replace("_", "-")
                figures = measure(Bench(peer, server, queue, sizes, scratch), scenario)
    except (JobFailed, NotStarted, OSError, ArithmeticError, AssertionError) as error:
        figures = {"failed": f"{type(error).__name__}: {error}"[-2_000:]}
    return {
        "peer": cell.peer,
        "scenario": cell.scenario,
        "round": cell.round,
        "took_s": round(time.monotonic() - begin, 1),
        "figures": figures,
    }


class _Servers:
    """Started when first needed, stopped still while others are measured, ended with the run."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, Server] = {}
        self._count = 0

    @contextmanager
    def one(self, peer: Peer, alone: bool) -> Iterator[tuple[Server, Path]]:
        """A server of this peer that runs, and a directory for what a scenario writes."""
        self._count += 1
        scratch = self._place / f"scratch-{self._count}"
        scratch.mkdir()
        if alone:
            server = self._made(peer, scratch / "server")
            try:
                server.start()
                yield server, scratch
            finally:
                server.close()
                subprocess.run(["rm", "-rf", str(scratch)], check=False)
            return
        found = self._running.get(peer.name)
        if found is None:
            found = self._made(peer, self._place / peer.name)
            found.start()
            self._running[peer.name] = found
        else:
            found.resume()
        try:
            yield found, scratch
        except BaseException:
            # What state it is in, nobody knows.
            found.resume()
            found.close()
            del self._running[peer.name]
            subprocess.run(["rm", "-rf", str(self._place / peer.name)], check=False)
            raise
        found.pause()

    def _made(self, peer: Peer, directory: Path) -> Server:
        server: Server = peer.module.Server(directory, **peer.settings)
        return server

    def __enter__(self) -> _Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._running.values():
            server.close()


def limits(directory: Path) -> Figures:
    """What disk and loopback take by themselves."""
    return {"disk": sync_limits(directory, 1_000), "loopback": loopback_limits()}


def loopback_limits(rounds: int = 2_000) -> Figures:
    """How long 100 bytes take to another thread and back by TCP on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            connection, _ = door.accept()
            with connection:
                while piece := connection.recv(100):
                    connection.sendall(piece)

        thread = threading.Thread(target=answer)
        thread.start()
        took = []
        with socket.create_connection(door.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(rounds):
                begin = time.perf_counter_ns()
                connection.sendall(b"x" * 100)
                connection.recv(100)
                took.append((time.perf_counter_ns() - begin) // 1000)
        thread.join()
    return {
        "how": "100 bytes to another thread and back, TCP on the loopback",
        **latencies_ms(took),
    }


def _build() -> Figures:
    """Which Fasti this is."""
    commit = output("git", "-C", str(ROOT), "rev-parse", "HEAD:src/fasti")
    changed = output("git", "-C", str(ROOT), "status", "--porcelain", "--", "src/fasti")
    head = output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    return {"commit": head, "source": commit[:12] + ("+changes" if changed else "")}


def _client_versions() -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; " + (
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    text = output(str(PEERS_VENV / "bin" / "python"), "-c", code, *_CLIENTS)
    versions: dict[str, str] = json.loads(text) if text.startswith("{") else {}
    return versions
