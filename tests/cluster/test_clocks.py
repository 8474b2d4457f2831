"""Brokers whose clocks are wrong: they hand their shards over, and nothing is delivered early by the true clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import fasti
from fasti.broker.clock import ClockState
from fasti.broker.metrics.counts import Metrics
from fasti.doors.cluster_process import ClusterProcess
from fasti.doors.flight import FlightDoor
from fasti.errors import FastiError
from fasti.runtime import SystemClock, SystemRuntime
from fasti.settings.load import load
from fasti.settings.values import Address
from tests.cluster.cluster_rig import SMALL
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.shards.shards_rig import close_host

SHARDS = 4
MAX_SKEW_US = 250_000


class LyingClock(SystemClock):
    """Its wall is wrong by as much as it is told."""

    ahead_us = 0

    def wall_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.ahead_us * 1000


class Station:
    """A broker of a cluster in the test's process, with a clock of its own."""

    def __init__(
        self, servers: NatsServers, cluster: str, name: str, directory: Path, ahead_us: int
    ) -> None:
        self.name, self.clock = name, LyingClock()
        self.clock.ahead_us = ahead_us
        settings = load(
            {
                **SMALL,
                "cluster": cluster,
                "nats": ",".join(servers.urls),
                "nats_replicas": 1,
                "nats_system_credentials": str(servers.system_credentials),
                "shards": SHARDS,
                "broker_name": name,
                "data": directory / name,
            },
            {},
        )
        self._process = ClusterProcess(settings, SystemRuntime(self.clock))
        self.host = self._process.make_host(Metrics())
        self._door = FlightDoor(self.host)
        self._door.start()
        self._process.join(self.host, Address("127.0.0.1", self._door.port))

    @property
    def address(self) -> str:
        return str(self.host.address)

    def clocks_ahead_ms(self) -> dict[str, float]:
        """Of all members, as it sees them."""
        assert self.host.cluster_view is not None
        try:
            members = self.host.cluster_view()["members"]
        except FastiError:
            return {}
        return {member["name"]: member["clock_ahead_ms"] for member in members}

    def stop(self) -> None:
        self.host.begin_stopping()
        self._process.leave()
        self._door.stop()
        close_host(self.host)
        self._process.close()


class Stations:
    """Brokers that come one after the other."""

    def __init__(self, servers: NatsServers, directory: Path, stack: ExitStack) -> None:
        self._servers, self._directory, self._stack = servers, directory, stack
        self._cluster = new_cluster()
        self.all: list[Station] = []

    def join(self, ahead_us: int = 0) -> Station:
        name = f"b{len(self.all)}"
        station = Station(self._servers, self._cluster, name, self._directory, ahead_us)
        self._stack.callback(station.stop)
        self.all.append(station)
        return station

    def wait_led(self, *by: Station) -> None:
        """When all shards are led, by some of these."""

        def led() -> bool:
            return sorted(n for each in by for n in each.host.numbers) == list(range(SHARDS))

        wait_until(led, f"leaders of all shards among {[each.name for each in by]}")

    @property
    def address(self) -> str:
        return "fasti://" + ",".join(station.address for station in self.all)


@pytest.fixture
def stations(one_server: NatsServers, tmp_path: Path) -> Iterator[Stations]:
    with ExitStack() as stack:
        yield Stations(one_server, tmp_path, stack)


def now_us() -> int:
    """By the true clock."""
    return time.time_ns() // 1000


@contextmanager
def sent_ahead(address: str, delay_us: int, count: int = 4 * SHARDS) -> Iterator[None]:
    """Messages on all shards. At the end all have come, none of them before its time."""
    with fasti.connect(address, timeout="60s") as client:
        with client.producer("t") as producer:
            began_us = now_us()
            receipts = [
                producer.send(b"%d" % number, delay=f"{delay_us}us", partition=number % SHARDS)
                for number in range(count)
            ]
            assert all(receipt.result("60s").ok for receipt in receipts)
        yield
        came: set[bytes] = set()
        with client.consumer("t") as consumer:
            while len(came) < count:
                for message in consumer.take(count, timeout="60s"):
                    assert now_us() >= began_us + delay_us - MAX_SKEW_US
                    came.add(message.payload)
                    message.ack()


def test_a_leader_whose_clock_leaps_ahead_yields_before_anything_is_early(
    stations: Stations,
) -> None:
    for _ in range(3):
        stations.join()
    stations.wait_led(*stations.all)
    with fasti.connect(stations.address, timeout="60s") as client:
        client.create_topic("t", partitions=SHARDS)
    liar = max(stations.all, key=lambda station: len(station.host.numbers))
    others = [station for station in stations.all if station is not liar]
    with sent_ahead(stations.address, 4_000_000):
        liar.clock.ahead_us = 10_000_000
        stations.wait_led(*others)
        assert liar.host.clock.read().state is ClockState.DOUBTING
        ahead_ms = others[0].clocks_ahead_ms()
        assert ahead_ms[liar.name] > 5_000
        wait_until(lambda: liar.clocks_ahead_ms()[liar.name] > 5_000, "its own view")
        assert "fasti_clock_ahead_seconds 10.0" in liar.host.metrics_text()
        assert abs(ahead_ms[others[0].name]) < 250
    # It is right again, and so are the others of which the same is said.
    liar.clock.ahead_us = 0
    wait_until(lambda: liar.host.clock.read().state is not ClockState.DOUBTING, "a right clock")


@pytest.mark.long
@pytest.mark.parametrize("ahead_us", [10_000_000, -10_000_000])
def test_a_leader_with_a_wrong_clock_yields_to_those_that_come_and_nothing_is_early(
    stations: Stations, ahead_us: int
) -> None:
    liar = stations.join(ahead_us)
    # One that is alone leads, whatever its clock.
    stations.wait_led(liar)
    with fasti.connect(stations.address, timeout="60s") as client:
        client.create_topic("t", partitions=SHARDS)
        with client.producer("t") as producer:
            for partition in range(SHARDS):
                assert producer.send(b"x", delay="1h", partition=partition).result("60s").ok
    others = [stations.join(), stations.join()]
    stations.wait_led(*others)
    # The last events of all shards may be ten seconds ahead of the new leaders' clocks.
    with sent_ahead(stations.address, 2_000_000):
        pass
    assert all(abs(each.host.clock.now_us() - now_us()) < MAX_SKEW_US for each in others)
    assert not liar.host.numbers


def test_a_leap_that_the_others_have_seen_as_well_is_believed_at_once(stations: Stations) -> None:
    """As when a virtual machine goes on after a pause: elapsed time did not go on meanwhile."""
    for ahead_us in (0, 10_000_000, 10_000_000):
        stations.join(ahead_us)
    behind = stations.all[0]
    wait_until(lambda: len(behind.clocks_ahead_ms()) == 3, "all members")
    behind.clock.ahead_us = 10_000_000
    wait_until(lambda: behind.host.clock.now_us() > now_us() + 9_000_000, "the leap to be believed")
    assert behind.host.clock.state is ClockState.FOLLOWING
