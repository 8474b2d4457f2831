"""Brokers whose shards move: hosts in the test's process, each behind a door on loopback, and one storage for
each shard, which one of them has at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import fasti
import fasti.aio
from fasti.broker.caller import PEER
from fasti.broker.host import Host
from fasti.config import ShardSettings
from fasti.doors.flight import FlightDoor
from fasti.errors import Corruption, Fenced, NoQuorum, Unavailable
from fasti.storage.memory_storage import MemoryStorage, OpenMemory
from tests.shards.shards_rig import SETTINGS, close_host

SHARDS = 4
WAIT_S = 30.0


# As long as a call of a replicated journal waits for its servers.
PATIENCE_S = 0.3


class SharedStorage:
    """What a shard stands on, wherever it is led. `take` fences those that took it before.

    Its servers may be away: `answers` is cleared then, and nothing becomes durable.
    """

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.lock = threading.Lock()
        self.epoch = 0
        self.answers = threading.Event()
        self.answers.set()
        # How often a leader has proved that it leads.
        self.proofs = 0
        # What it has lost, for whoever leads it.
        self.damage: Corruption | None = None

    def take(self, epoch: int) -> TakenStorage:
        return TakenStorage(self, epoch)


class TakenStorage:
    """A `StorageEngine` for whoever leads under an epoch."""

    def __init__(self, shared: SharedStorage, epoch: int) -> None:
        self.shared, self.epoch = shared, epoch

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> Any:
        shared = self.shared
        with shared.lock:
            if shared.damage is not None:
                raise shared.damage
            if shared.epoch > self.epoch:
                raise Fenced(f"epoch {shared.epoch} has begun")
            shared.epoch, shared.inner.is_open = self.epoch, False
            return _Open(self, shared.inner.open(settings))

    def await_servers(self) -> None:
        if not self.shared.answers.wait(PATIENCE_S):
            raise NoQuorum("the servers of this shard are away", retry_after_us=10_000)

    def check(self) -> None:
        if self.shared.damage is not None:
            raise self.shared.damage
        if self.shared.epoch != self.epoch:
            raise Fenced(f"epoch {self.shared.epoch} has begun")


class _Open:
    def __init__(self, taken: TakenStorage, opened: OpenMemory) -> None:
        self._taken, self._opened = taken, opened
        self.journal = _Journal(taken, opened.journal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def close(self) -> None:
        with self._taken.shared.lock:
            if self._taken.shared.epoch == self._taken.epoch:
                self._opened.close()


class _Journal:
    is_replicated = True

    def __init__(self, taken: TakenStorage, journal: Any) -> None:
        self._taken, self._journal = taken, journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, *arguments: Any, **options: Any) -> Any:
        with self._taken.shared.lock:
            self._taken.check()
            return self._journal.append(*arguments, **options)

    def sync(self) -> None:
        self._taken.await_servers()
        with self._taken.shared.lock:
            self._taken.check()
            self._journal.sync()

    def prove(self) -> int:
        self._taken.await_servers()
        with self._taken.shared.lock:
            self._taken.shared.proofs += 1
            self._taken.check()
        return 256


class Broker:
    """One process: a host behind a door."""

    def __init__(self) -> None:
        self.host = Host({}, SETTINGS, shards=SHARDS, cluster="moving")
        self.door = FlightDoor(self.host)
        self.host.address = f"127.0.0.1:{self.door.port}"
        self.fenced: dict[int, threading.Event] = {n: threading.Event() for n in range(SHARDS)}
        self.host.on_fenced = lambda number: self.fenced[number].set()

    @property
    def address(self) -> str:
        return str(self.host.address)

    def stop(self) -> None:
        self.host.begin_stopping()
        self.door.stop()
        close_host(self.host)


class Brokers:
    """Some of them, who can call each other. The shards are spread over the first ones."""

    def __init__(self, count: int, empty: int = 0) -> None:
        self.storages = [SharedStorage() for _ in range(SHARDS)]
        self.epochs = [0] * SHARDS
        self.all = [Broker() for _ in range(count + empty)]
        for broker in self.all:
            broker.host.peers = self
        for shard in range(SHARDS):
            self.lead(shard, self.all[shard % count])

    @property
    def address(self) -> str:
        return "fasti://" + ",".join(broker.address for broker in self.all)

    def call(
        self, shard: int, action: str, header: Mapping[str, Any], timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """As `broker.peers.Peers` says."""
        leader = next((b for b in self.all if shard in b.host.numbers), None)
        if leader is None:
            raise Unavailable(f"nobody leads shard {shard}", details={"shard": shard})
        return leader.host.service(shard).call(PEER, action, {"version": 1, **header})[0]

    def lead(self, shard: int, broker: Broker) -> None:
        """The broker leads it from now on, whoever did before; all are told."""
        self.epochs[shard] += 1
        epoch = self.epochs[shard]
        broker.host.add(shard, self.storages[shard].take(epoch), epoch)
        for other in self.all:
            other.host.map.note(shard, epoch, broker.address)

    def leader(self, shard: int) -> Broker:
        return next(broker for broker in self.all if shard in broker.host.numbers)

    def move(self, shard: int, broker: Broker) -> None:
        """Politely."""
        self.leader(shard).host.drop(shard, broker.address, self.epochs[shard] + 1)
        self.lead(shard, broker)

    def take_over(self, shard: int, broker: Broker) -> Broker:
        """The old leader learns of it by its next append. Gives that one."""
        old = self.leader(shard)
        self.lead(shard, broker)
        return old

    def stop(self) -> None:
        for broker in self.all:
            broker.stop()


@contextmanager
def brokers_of(count: int, empty: int = 0) -> Iterator[Brokers]:
    made = Brokers(count, empty)
    try:
        yield made
    finally:
        made.stop()


class Load:
    """Producers, consumers and calls on a topic, in threads and in a loop, until `finish`.

    Messages are numbers. What was acknowledged is to be taken once, but for those that were cancelled.
    """

    def __init__(self, address: str, lease: str = "20s") -> None:
        self.address = address
        self.sent: set[int] = set()
        self.cancelled: set[int] = set()
        self.taken: Counter[int] = Counter()
        self.early: list[int] = []
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stop, self._drained = threading.Event(), threading.Event()
        self._calls = 0
        with fasti.connect(address, timeout="30s") as client:
            client.create_topic("t", partitions=2 * SHARDS, lease=lease)
        self._pool = ThreadPoolExecutor(8)
        works: list[Callable[[], None]] = [
            lambda: self._produce(0),
            lambda: self._cancel_and_move(10_000_000),
            self._consume,
            lambda: asyncio.run(self._produce_in_loop(20_000_000)),
            lambda: asyncio.run(self._consume_in_loop()),
        ]
        self._works = [self._pool.submit(self._guarded, work) for work in works]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            with self._changed:
                self.failures.append(repr(error))
                self._changed.notify_all()
            raise

    def _note_sent(self, numbers: list[int], calls: int = 0) -> None:
        with self._changed:
            self.sent.update(numbers)
            self._calls += calls
            self._changed.notify_all()

    def _note_taken(self, message: Any) -> None:
        number = int(message.payload)
        with self._changed:
            self.taken[number] += 1
            if message.started_us < message.due_us:
                self.early.append(number)
            self._changed.notify_all()

    def _produce(self, first: int) -> None:
        with fasti.connect(self.address, timeout="30s") as client, client.producer("t") as producer:
            while not self._stop.is_set():
                numbers = list(range(first, first + 20))
                first += 20
                receipts = [producer.send(b"%d" % n, key=f"k{n}", delay="5ms") for n in numbers]
                for receipt in receipts:
                    assert receipt.result("30s").ok
                self._note_sent(numbers)

    async def _produce_in_loop(self, first: int) -> None:
        async with await fasti.aio.connect(self.address, timeout="30s") as client:
            producer = client.producer("t")
            while not self._stop.is_set():
                numbers = list(range(first, first + 20))
                first += 20
                receipts = [await producer.send(b"%d" % n, key=f"k{n}") for n in numbers]
                assert all([(await receipt).ok for receipt in receipts])
                self._note_sent(numbers)
            await producer.flush()

    def _cancel_and_move(self, number: int) -> None:
        with fasti.connect(self.address, timeout="30s") as client, client.producer("t") as producer:
            messages = client.messages("t")
            while not self._stop.is_set():
                number += 2
                gone, moved = f"k{number}", f"k{number + 1}"
                for n in (number, number + 1):
                    assert producer.send(b"%d" % n, key=f"k{n}", delay="1h").result("30s").ok
                assert messages.cancel(key=gone).ok
                assert messages.move(key=moved, delay="1ms").ok
                self._note_sent([number, number + 1], calls=1)
                self.cancelled.add(number)

    def _consume(self) -> None:
        with (
            fasti.connect(self.address, timeout="30s") as client,
            client.consumer("t", name="threads") as consumer,
        ):
            while not self._drained.is_set():
                for message in consumer.take(50, timeout="50ms"):
                    self._note_taken(message)
                    message.ack()

    async def _consume_in_loop(self) -> None:
        async with await fasti.aio.connect(self.address, timeout="30s") as client:
            async with client.consumer("t", name="loop") as consumer:
                while not self._drained.is_set():
                    for message in await consumer.take(50, timeout="50ms"):
                        self._note_taken(message)
                        message.ack()

    def go_on(self, count: int = 150, calls: int = 3) -> None:
        """Returns when so many more were sent and taken, and so many calls answered."""
        with self._changed:
            sent, taken = len(self.sent) + count, len(self.taken) + count
            answered = self._calls + calls

            def is_so() -> bool:
                done = len(self.sent) >= sent and len(self.taken) >= taken
                return bool(self.failures) or (done and self._calls >= answered)

            assert self._changed.wait_for(is_so, 2 * WAIT_S), (len(self.sent), len(self.taken))
            assert not self.failures, self.failures

    def finish(self) -> None:
        """Ends it, and looks at what came of it."""
        try:
            self._stop.set()
            for work in (self._works[0], self._works[1], self._works[3]):
                work.result(2 * WAIT_S)
            with self._changed:
                wanted = self.sent - self.cancelled
                done = self._changed.wait_for(lambda: wanted <= self.taken.keys(), 2 * WAIT_S)
                assert done, sorted(wanted - self.taken.keys())[:20]
        finally:
            self._stop.set()
            self._drained.set()
            self._pool.shutdown()
        for work in self._works:
            work.result(0)
        assert not self.failures
        assert not self.early
        assert not self.cancelled & self.taken.keys()
        assert set(self.taken) == self.sent - self.cancelled
        twice = [number for number, count in self.taken.items() if count > 1]
        assert not twice, twice[:20]


@contextmanager
def load_on(brokers: Brokers) -> Iterator[Load]:
    load = Load(brokers.address)
    try:
        yield load
    except BaseException:
        load._stop.set()
        load._drained.set()
        raise
    load.finish()
