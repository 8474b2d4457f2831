"""A cluster on a network that can be cut, held up and slowed down anywhere: between a broker and the NATS servers,
between clients and a broker, and between a NATS server and the others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fasti.broker.launch import BrokerProcess
from fasti.broker.ports import reserve
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection
from fasti.cluster.pack import Pack, decode_pack
from fasti.errors import FastiError
from fasti.settings.values import Address
from tests.cluster.cluster_rig import SHARDS, Cluster
from tests.cluster.nats_rig import NatsServers, wait_until
from tests.integration.trouble.proxy import Proxy

STEP_DOWN = "$JS.API.STREAM.LEADER.STEPDOWN"


class CutServers(NatsServers):
    """Three servers. All routes of the first one go through `routes`, and clients hear of no other address than
    those that they were given.
    """

    def __init__(self, stores: list[Path] | None = None) -> None:
        self.routes: Proxy | None = None
        try:
            super().__init__(3, stores=stores)
        except BaseException:
            self.close()
            raise

    def _routes_of(self, number: int) -> list[str]:
        """The first asks only itself (some address it must have), so that all its routes are made by the others,
        through the proxy.
        """
        if self.routes is None:
            self.routes = Proxy("127.0.0.1", self._routes[0])
        if number == 0:
            return [f"127.0.0.1:{self._routes[0]}"]
        return [self.routes.place, f"127.0.0.1:{self._routes[3 - number]}"]

    def _cluster_options(self, number: int) -> str:
        options = "no_advertise: true"
        if number == 0:
            assert self.routes is not None
            options += f', advertise: "{self.routes.place}"'
        return f", {options}"

    def is_out_of_room(self, number: int) -> bool:
        """Whether a server has met a full disk."""
        return "no space left" in self.log(number)

    def close(self) -> None:
        super().close()
        if self.routes is not None:
            self.routes.close()


class CutCluster(Cluster):
    """Brokers that reach NATS, and are reached by clients, through proxies of their own."""

    servers: CutServers

    def __init__(self, *given: Any, **more: Any) -> None:
        self.doors: list[Proxy] = []
        # By broker, then by server.
        self.ways: list[list[Proxy]] = []
        self._kept: list[socket.socket] = []
        super().__init__(*given, **more)

    def _broker(self, number: int) -> BrokerProcess:
        with ExitStack() as stack:
            (kept,) = reserve(Address("127.0.0.1", 0))
            stack.callback(kept.close)
            port = int(kept.getsockname()[1])
            door = stack.enter_context(Proxy("127.0.0.1", port))
            ways = [stack.enter_context(Proxy("127.0.0.1", to)) for to in self.servers.ports]
            settings = self.settings(f"b{number}") | {
                "nats": ",".join(f"nats://{way.place}" for way in ways),
                "advertise": door.place,
            }
            broker = BrokerProcess(
                self.directory / f"b{number}", listen=f"127.0.0.1:{port}", settings=settings
            )
            # It runs: from here on they belong to it.
            stack.pop_all()
        self._kept.append(kept)
        self.doors.append(door)
        self.ways.append(ways)
        return broker

    def place(self, number: int) -> str:
        return self.doors[number].place

    def start(self, number: int, seconds: float = 120) -> None:
        """Starts a broker that was ended, as often as it takes: NATS may have no majority now."""

        def started() -> bool:
            with suppress(FastiError):
                self.brokers[number].start()
            return self.brokers[number].running

        wait_until(started, f"broker {number}", seconds)

    def _proxies(self) -> list[Proxy]:
        return [*self.doors, *(way for ways in self.ways for way in ways)]

    def close(self) -> None:
        for proxy in self._proxies():
            proxy.let_go()
            proxy.reopen()
        try:
            super().close()
        finally:
            for proxy in self._proxies():
                proxy.close()
            for reservation in self._kept:
                reservation.close()

    # NATS, as an operator sees it

    def streams(self, shard: int) -> list[str]:
        names = ShardNames.of(self.name, shard)
        return [names.journal_stream, names.pointer_stream, names.blocks_stream]

    def journal_leader(self, nats: NatsConnection, shard: int) -> int:
        """The server that leads a shard's journal, once there is one."""

        def leader() -> str:
            with suppress(FastiError):
                state = nats.stream_state(self.streams(shard)[0])
                return "" if state is None else state.leader
            return ""

        found: str = wait_until(leader, f"a leader of the journal of shard {shard}")
        return int(found.removeprefix("n"))

    def step_down(self, nats: NatsConnection, shard: int, to: int | None = None) -> None:
        """The server that leads a shard's streams leaves that to another one, perhaps to a certain one."""
        wanted = {} if to is None else {"placement": {"preferred": f"n{to}"}}
        for stream in self.streams(shard):
            with suppress(FastiError):
                nats.ask(f"{STEP_DOWN}.{stream}", json.dumps(wanted).encode(), 5)

    def lead_journals(self, nats: NatsConnection, server: int) -> None:
        """Returns when a server leads the streams of all shards."""
        for shard in range(SHARDS):

            def leads(shard: int = shard) -> bool:
                if self.journal_leader(nats, shard) == server:
                    return True
                self.step_down(nats, shard, server)
                return False

            wait_until(leads, f"server {server} as the leader of shard {shard}")


def check_journals(nats: NatsConnection, cluster: str) -> None:
    """In every journal's stream each pack counts: none is missing, none is of a leader that was replaced."""
    for shard in range(SHARDS):
        stream = ShardNames.of(cluster, shard).journal_stream
        while True:
            state = nats.stream_state(stream)
            assert state is not None
            try:
                _check_journal(nats, stream, state.first_sequence, state.last_sequence)
                break
            except AssertionError:
                now = nats.stream_state(stream)
                # What was trimmed while it was read is not missing.
                if now is None or now.first_sequence == state.first_sequence:
                    raise


def _check_journal(nats: NatsConnection, stream: str, first: int, end: int) -> None:
    last: Pack | None = None
    for pack in _packs(nats, stream, first, end):
        if last is not None:
            header = pack.header
            assert pack.place == last.place + 1, f"{stream}: {pack.place} after {last.place}"
            assert pack.before == last.checksum, f"{stream}: another pack before {pack.place}"
            assert header.epoch == last.header.epoch + header.is_start, (stream, header)
            assert header.is_start or header.has_writer_of(last.header), (stream, header)
        last = pack


def _packs(nats: NatsConnection, stream: str, first: int, end: int) -> Iterator[Pack]:
    while first <= end:
        found = nats.read(stream, first, 8 << 20)
        assert found, f"{stream} has nothing at {first}, its end is {end}"
        for message in found:
            if message.sequence <= end:
                yield decode_pack(message.data, stream)
        first = found[-1].sequence + 1


@contextmanager
def cut_servers(stores: list[Path] | None = None) -> Iterator[CutServers]:
    made = CutServers(stores)
    try:
        nats = made.connect()
        wait_until(lambda: _all_there(nats), "a stream on all servers")
        nats.close()
        yield made
    finally:
        made.close()


def _all_there(nats: NatsConnection) -> bool:
    with suppress(FastiError):
        nats.ensure_stream({"name": "rig", "subjects": ["rig"], "num_replicas": 3})
        return True
    return False


@contextmanager
def cut_cluster(
    servers: CutServers, directory: Path, brokers: int = 2, **more: Any
) -> Iterator[tuple[CutCluster, NatsConnection]]:
    """The cluster, and an operator's connection to NATS."""
    with ExitStack() as stack:
        nats = servers.connect()
        stack.callback(nats.close)
        made = CutCluster(servers, directory, brokers, **more)
        stack.callback(made.close)
        try:
            yield made, nats
        except Exception:
            print(made.log())
            raise
