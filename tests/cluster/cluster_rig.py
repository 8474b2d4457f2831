"""Brokers of one cluster as processes, over NATS servers that can be killed as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import fasti
from fasti.broker.launch import BrokerProcess
from tests.cluster.nats_rig import NatsServers, new_cluster, wait_until
from tests.conformance.protocol_client import Client
from tests.integration.trouble.load import TOPIC, finish, go_on, start_all
from tests.integration.trouble.rig import Crew, crew

SHARDS = 4
SMALL: dict[str, Any] = {
    # The rig's servers set 4 GiB aside at most, for all clusters of a file.
    "nats_journal_size": "64MiB",
    "memory": "128MiB",
    "checkpoint_size": "2MiB",
}


class Cluster:
    """Brokers `b0`, `b1` and so on, which share nothing but NATS. Always `close` it."""

    shards = SHARDS

    def __init__(
        self, servers: NatsServers, directory: Path, brokers: int = 2, name: str | None = None
    ) -> None:
        self.servers, self.directory = servers, directory
        self.name = name or new_cluster()
        self.brokers: list[BrokerProcess] = []
        try:
            # One after the other: the first leads all shards until it hands some over.
            for _ in range(brokers):
                self.join()
            self.wait_led()
        except BaseException:
            self.close()
            raise

    def settings(self, broker_name: str) -> dict[str, Any]:
        return {
            **SMALL,
            "cluster": self.name,
            "nats": ",".join(self.servers.urls),
            "nats_replicas": len(self.servers.urls),
            "nats_system_credentials": str(self.servers.system_credentials),
            "shards": self.shards,
            "broker_name": broker_name,
        }

    def _broker(self, number: int) -> BrokerProcess:
        name = f"b{number}"
        return BrokerProcess(self.directory / name, settings=self.settings(name))

    def join(self) -> int:
        """One more broker; its number."""
        number = len(self.brokers)
        self.brokers.append(self._broker(number))
        return number

    @property
    def address(self) -> str:
        """Of all brokers, those that don't run among them: as a client would have it."""
        return "fasti://" + ",".join(self.place(number) for number in range(len(self.brokers)))

    def place(self, number: int) -> str:
        """The `host:port` of a broker."""
        return self.brokers[number].address.removeprefix("fasti://")

    def _map(self, asked: int) -> list[dict[str, Any]]:
        # The broker itself: what lies before it may be cut.
        with Client(self.brokers[asked].address.removeprefix("fasti://")) as client:
            told, _ = client.reply("hello")
        found: list[dict[str, Any]] = told["map"]
        return found

    def epochs(self, asked: int) -> dict[int, int]:
        """Of every shard, as one broker tells clients: it rises whenever the shard is taken over."""
        return {item["shard"]: item["epoch"] for item in self._map(asked)}

    def leaders(self, asked: int) -> dict[int, int]:
        """Which broker leads which shard, as one of them tells clients."""
        numbers = {self.place(number): number for number in range(len(self.brokers))}
        return {
            item["shard"]: asked if item["address"] is None else numbers[item["address"]]
            for item in self._map(asked)
        }

    def busy_and_other(self) -> tuple[int, int]:
        """Of two brokers: the one that leads the most shards first."""
        ((busy, _), *_) = Counter(self.wait_led().values()).most_common()
        return busy, 1 - busy

    def wait_led(self, by: Iterable[int] | None = None) -> dict[int, int]:
        """When each of these brokers says that every shard is led, and by one of them: by whom."""
        able = set(range(len(self.brokers)) if by is None else by)

        def led() -> dict[int, int] | None:
            maps = [self.leaders(number) for number in able]
            good = all(len(found) == self.shards and set(found.values()) <= able for found in maps)
            return maps[0] if good and all(found == maps[0] for found in maps) else None

        found: dict[int, int] = wait_until(led, "a leader of every shard")
        return found

    def wait_leads(self, number: int) -> dict[int, int]:
        """When a broker leads something, and all agree about it."""

        def leads() -> dict[int, int] | None:
            found = self.wait_led()
            return found if number in found.values() else None

        found: dict[int, int] = wait_until(leads, f"a shard of broker {number}")
        return found

    def log(self) -> str:
        return "\n".join(
            f"--- b{number}\n{broker.log()}" for number, broker in enumerate(self.brokers)
        )

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


@contextmanager
def cluster_of(
    servers: NatsServers, directory: Path, brokers: int = 2, name: str | None = None
) -> Iterator[Cluster]:
    made = Cluster(servers, directory, brokers, name)
    try:
        yield made
    except BaseException:
        print(made.log())
        raise
    finally:
        made.close()


class Loaded:
    """A cluster under load: its workers, and what they have told."""

    def __init__(self, cluster: Cluster, workers: Crew) -> None:
        self.cluster, self.workers = cluster, workers

    def go_on(self, facts: int = 50) -> None:
        """Returns when much more was done, by senders and by consumers."""
        go_on(self.workers, facts)

    def longest_pause_s(self) -> float:
        """Between two acknowledged sends, of all producers together."""
        times = [fact["at"] for fact in self.workers.book.all("sent")]
        gaps = [after - before for before, after in pairwise(times)]
        return max(gaps, default=0) / 1e6


@contextmanager
def under_load(
    cluster: Cluster, seed: int, topic: str = "t", every_send_ok: bool = True
) -> Iterator[Loaded]:
    """Producers, changers and consumers on all shards. At the end every promise must have been kept."""
    with fasti.connect(cluster.address) as client:
        client.create_topic(topic, **{**TOPIC, "partitions": 2 * SHARDS})
    with crew(cluster.address) as workers:
        start_all(workers, seed, topic=topic)
        loaded = Loaded(cluster, workers)
        loaded.go_on()
        yield loaded
        loaded.go_on()
        # For whoever reads the output: nothing asserts how long something took.
        print(f"longest pause: {loaded.longest_pause_s():.2f} s")
        ledger = finish(workers, cluster, topic=topic, every_send_ok=every_send_ok)
    assert len(ledger.acked) > 100
    assert {message >> 51 for message in ledger.acked} == set(range(2 * SHARDS))
