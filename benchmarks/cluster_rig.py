"""A cluster for `fasti bench cluster`: NATS servers and brokers as `fasti cluster up` starts them.

Unlike there, what dies stays dead until it is started again: when something is killed, how long that takes
is measured. All processes end with this one, however it ends. For the main thread.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fasti
from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.placement import place_shards
from fasti.doors.cluster_child import ClusterChild
from fasti.doors.cluster_plan import settle_plan
from fasti.doors.cluster_up import CLUSTER, broker_command, child_environment
from fasti.doors.nats_servers import (
    find_server,
    server_command,
    wait_for_servers,
    write_config,
)
from fasti.errors import FastiError, TimedOut
from fasti.settings.values import Address

NODES = BROKERS = SHARDS = 3
# Bulk fills a journal faster than it may be trimmed.
_JOURNAL_BYTES = 3 << 30
_WITHIN_S = 60.0
_LOOK_S = 0.02
_DEATHS_MAX = 4
_WORDS = 40
# Packs: what a standby has not read yet while others are sent.
_LAG_MAX = 100

View = dict[str, Any]


def choose_names() -> list[str]:
    """Of three brokers each leads one of three shards, and a fourth gets one: names decide that."""
    names = [f"b{number}" for number in range(1, 30)]
    for trio in itertools.combinations(names, BROKERS):
        for fourth in names:
            firsts = _firsts([*trio, fourth])
            if len(set(_firsts(trio))) == BROKERS and fourth not in trio and fourth in firsts:
                return [*trio, fourth]
    raise AssertionError


def _firsts(names: Any) -> list[str | None]:
    places = place_shards(range(SHARDS), dict.fromkeys(names, 1.0))
    return [places[shard].first for shard in range(SHARDS)]


class BenchCluster:
    """Three servers, three brokers, three shards, and one broker that may join. Always `close` it."""

    def __init__(self, directory: Path) -> None:
        """Returns when every broker leads its share."""
        plan = settle_plan(directory, BROKERS + 1, NODES, SHARDS, Address("127.0.0.1", 0))
        self.plan = plan = replace(plan, journal_bytes=_JOURNAL_BYTES)
        self.names = choose_names()
        # Who has ended without having been told to.
        self._ended: set[str] = set()
        self._ending: set[str] = set()
        program, parent, environment = find_server(), os.getpid(), child_environment()

        def child(name: str, command: Callable[[int], list[str]]) -> ClusterChild:
            return ClusterChild(name, command, directory / f"{name}.log", self._note, environment)

        def server(config: Path, _: int) -> list[str]:
            return server_command(program, config, parent)

        configs = [write_config(plan, number) for number in range(NODES)]
        self.nodes = {
            config.stem: child(config.stem, partial(server, config)) for config in configs
        }
        self.brokers = {
            name: child(name, partial(broker_command, plan, number, name))
            for number, name in enumerate(self.names)
        }
        try:
            for node in self.nodes.values():
                node.start()
            until = time.monotonic() + _WITHIN_S
            if not wait_for_servers(plan, lambda: time.monotonic() > until):
                raise TimedOut(f"the NATS servers did not find each other; see {directory}")
            for name in self.names[:BROKERS]:
                self.brokers[name].start()
            self.await_share(self.names[:BROKERS])
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the first three brokers."""
        return "fasti://" + ",".join(map(str, self.plan.listens[:BROKERS]))

    def _note(self, word: str) -> None:
        what, _, name = word.partition(" ")
        if what == "ended" and name not in self._ending:
            self._ended.add(name)

    def _check_running(self) -> None:
        """What has ended is started again, as `fasti cluster up` does; not for ever."""
        while self._ended:
            name = self._ended.pop()
            child = self.brokers.get(name) or self.nodes[name]
            line = child.take_end()
            child.plan_restart()
            if child.deaths >= _DEATHS_MAX:
                raise FastiError(f"{line}: {child.log.read_text()[-2000:]}")
            child.start()

    # What is known of it

    def view(self) -> View | None:
        """As a broker sees it; None while nobody answers."""
        try:
            with fasti.connect(self.address, timeout="2s") as client:
                view: View = client.transport.call("cluster")[0]
                return view
        except FastiError:
            return None

    def await_view(self, good: Callable[[View], bool], what: str) -> View:
        """The first view that is as wanted. Raises `timed_out`."""
        until, view = time.monotonic() + _WITHIN_S, None
        while time.monotonic() < until:
            self._check_running()
            view = self.view()
            if view is not None and not view["leaderless"] and good(view):
                return view
            time.sleep(_LOOK_S)
        seen = None if view is None else (leaders(view), view["members"])
        raise TimedOut(f"{what} took longer than {_WITHIN_S:g} s; the last that was seen: {seen}")

    def await_share(self, names: list[str]) -> None:
        """Returns when every shard is led by the first in rank among these."""
        wanted = _firsts(names)
        self.await_view(lambda view: leaders(view) == wanted, "the brokers' shares")

    def await_members(self, names: list[str]) -> View:
        """Returns when these live and no others, and every shard has a leader and a standby that is warm."""

        def is_warm(shard: dict[str, Any]) -> bool:
            lags = [lag for lag in shard["lags"].values() if lag is not None]
            return min(lags, default=_LAG_MAX) < _LAG_MAX

        def good(view: View) -> bool:
            alive = {each["name"] for each in view["members"] if each["state"] == "alive"}
            return alive == set(names) and all(map(is_warm, view["shards"]))

        return self.await_view(good, "the brokers' return")

    def alive(self) -> list[str]:
        """The brokers that run."""
        return [name for name, child in self.brokers.items() if child.pid is not None]

    def last_words(self) -> dict[str, list[str]]:
        """The ends of all logs, for whoever wants to know what went wrong."""
        children = [*self.nodes.values(), *self.brokers.values()]
        return {
            child.name: child.log.read_text(errors="replace").splitlines()[-_WORDS:]
            for child in children
            if child.log.exists()
        }

    # Streams

    @contextmanager
    def nats(self) -> Iterator[NatsConnection]:
        """A connection to the servers that run."""
        running = [
            url
            for url, node in zip(self.plan.nats_urls, self.nodes.values(), strict=True)
            if node.pid is not None
        ]
        connection = NatsConnection(NatsOptions(running))
        try:
            yield connection
        finally:
            connection.close()

    def journal_nodes(self) -> dict[int, str]:
        """The server that leads each shard's journal."""
        found: dict[int, str] = {}
        with self.nats() as connection:
            for shard in range(SHARDS):
                state = connection.stream_state(f"{CLUSTER}-j-{shard}")
                assert state is not None
                found[shard] = state.leader
        return found

    def await_replicas(self) -> None:
        """Returns when every stream has all its replicas, none behind."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            try:
                with self.nats() as connection:
                    if not any(_lags(connection, name) for name in self._streams()):
                        return
            except FastiError:
                pass
            time.sleep(0.1)
        raise TimedOut("a NATS server did not catch up")

    def _streams(self) -> list[str]:
        return [f"{CLUSTER}-{kind}-{shard}" for kind in "jbp" for shard in range(SHARDS)]

    # Processes

    def start(self, name: str) -> None:
        """A broker or a server, again or for the first time."""
        self._ending.discard(name)
        (self.brokers.get(name) or self.nodes[name]).start()

    def kill(self, name: str) -> float:
        """SIGKILL. When, by the clock that doesn't jump: all processes of a machine share it."""
        child = self.brokers.get(name) or self.nodes[name]
        at = time.monotonic()
        self._end([child], signal.SIGKILL, 10.0)
        return at

    def _end(self, children: list[ClusterChild], number: signal.Signals, within_s: float) -> None:
        running = [child for child in children if child.pid is not None]
        for child in running:
            self._ending.add(child.name)
            child.stop(number)
        for child in running:
            child.join(within_s)

    def close(self) -> None:
        """Ends everything."""
        for children in (self.brokers, self.nodes):
            each = list(children.values())
            self._end(each, signal.SIGTERM, 15.0)
            self._end(each, signal.SIGKILL, 10.0)
        self.plan.close()


def _lags(connection: NatsConnection, stream: str) -> bool:
    """Whether a server that keeps a stream doesn't have all of it, as its leader sees it."""
    answer = json.loads(connection.ask(f"$JS.API.STREAM.INFO.{stream}", b"", 2.0))
    replicas = answer["cluster"].get("replicas", [])
    return any(not each.get("current") or each.get("lag") for each in replicas)


def leaders(view: View) -> list[str | None]:
    """By shard."""
    return [shard["leader"] for shard in sorted(view["shards"], key=lambda each: each["shard"])]


@contextmanager
def bench_cluster(directory: Path | None) -> Iterator[BenchCluster]:
    """In a directory that is deleted afterwards."""
    with TemporaryDirectory(prefix="fasti-bench-", dir=directory) as place:
        cluster = BenchCluster(Path(place))
        try:
            yield cluster
        finally:
            cluster.close()
