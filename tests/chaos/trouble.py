"""How the faults of a schedule are made and healed, on a cluster that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from fasti.cluster.nats import NatsConnection
from fasti.errors import FastiError
from tests.chaos.schedule import SERVERS, Fault
from tests.cluster.cut_rig import CutCluster
from tests.integration.trouble.facts import monotonic_us

# Each piece of a slow server's routes is late by so much.
SLOW_S = 0.02


class Consumers(Protocol):
    """Consumers that may be paused and killed: their leases may end."""

    def pause(self, number: int) -> None: ...

    def resume(self) -> None: ...

    def replace(self, number: int) -> None: ...


class Done(NamedTuple):
    """A fault that was made and healed, by the clock of the facts."""

    fault: Fault
    began: int
    healed: int


class Trouble:
    """Two threads that make faults, until `stop`. Everything else is for the main thread."""

    def __init__(
        self, cluster: CutCluster, nats: NatsConnection, consumers: Consumers, core: int
    ) -> None:
        """The first `core` brokers are there for good; the one behind them comes and leaves."""
        self._cluster, self._nats, self._consumers, self._core = cluster, nats, consumers, core
        self.locks = {lane: threading.Lock() for lane in ("brokers", "servers")}
        self.done: list[Done] = []
        self.now: dict[str, str] = {}
        self.error: BaseException | None = None
        self._calm = False
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, lane: str, faults: Iterator[Fault]) -> None:
        thread = threading.Thread(target=self._run, args=(lane, faults), daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Returns when all is healed."""
        self._stopping.set()
        self.go_on()
        for thread in self._threads:
            thread.join(300)

    def calm_down(self) -> None:
        """Returns when all is healed; no fault comes before `go_on`."""
        # In the order in which faults take them.
        for lock in self.locks.values():
            lock.acquire()
        self._calm = True

    def go_on(self) -> None:
        if self._calm:
            self._calm = False
            for lock in self.locks.values():
                lock.release()

    def _run(self, lane: str, faults: Iterator[Fault]) -> None:
        for fault in faults:
            if self._stopping.wait(fault.pause_s):
                return
            try:
                with self.locks[lane]:
                    if self._stopping.is_set():
                        return
                    self._make(fault)
            except BaseException as error:
                self.error = self.error or error
                return
            # A lock is not fair: whoever wants it between two faults gets it.
            time.sleep(0.01)

    def _make(self, fault: Fault) -> None:
        began = monotonic_us()
        self.now[fault.lane] = str(fault)
        getattr(self, f"_{fault.kind}")(fault)
        self.now.pop(fault.lane)
        self.done.append(Done(fault, began, monotonic_us()))

    def _last(self, fault: Fault) -> None:
        """As long as the fault lasts, or until the end of all."""
        self._stopping.wait(fault.lasts_s)

    # Brokers and clients

    def _broker_killed(self, fault: Fault) -> None:
        self._cluster.brokers[fault.target].kill()
        self._last(fault)
        self._cluster.start(fault.target)

    def _broker_stopped(self, fault: Fault) -> None:
        self._cluster.brokers[fault.target].stop()
        self._last(fault)
        self._cluster.start(fault.target)

    def _broker_paused(self, fault: Fault) -> None:
        self._cluster.brokers[fault.target].pause()
        self._last(fault)
        self._cluster.brokers[fault.target].resume()

    def _broker_cut_from_nats(self, fault: Fault) -> None:
        for way in self._cluster.ways[fault.target]:
            way.shut()
        self._last(fault)
        for way in self._cluster.ways[fault.target]:
            way.reopen()

    def _broker_held_from_nats(self, fault: Fault) -> None:
        """What it wrote arrives later: when another one leads, perhaps."""
        for way in self._cluster.ways[fault.target]:
            way.hold_up()
        self._last(fault)
        for way in self._cluster.ways[fault.target]:
            way.let_go()

    def _clients_cut_from_broker(self, fault: Fault) -> None:
        self._cluster.doors[fault.target].shut()
        self._last(fault)
        self._cluster.doors[fault.target].reopen()

    def _clients_held_from_broker(self, fault: Fault) -> None:
        self._cluster.doors[fault.target].hold_up()
        self._last(fault)
        self._cluster.doors[fault.target].let_go()

    def _broker_joins(self, fault: Fault) -> None:
        """One more, which gets its share and leaves for good: softly, or at once."""
        if len(self._cluster.brokers) > self._core:
            self._cluster.start(self._core)
        else:
            self._join()
        self._last(fault)
        if fault.target % 2:
            self._cluster.brokers[self._core].stop()
        else:
            self._cluster.brokers[self._core].kill()

    def _join(self) -> None:
        """The first time. NATS may have no majority now."""
        while len(self._cluster.brokers) == self._core:
            try:
                self._cluster.join()
            except FastiError:
                if self._stopping.wait(0.5):
                    raise

    def _brokers_killed(self, fault: Fault) -> None:
        for number in range(self._core):
            self._cluster.brokers[number].kill()
        self._last(fault)
        for number in range(self._core):
            self._cluster.start(number)

    def _all_killed(self, fault: Fault) -> None:
        with self.locks[SERVERS]:
            for number in range(self._core):
                self._cluster.brokers[number].kill()
            for number in range(3):
                self._cluster.servers.kill(number)
            self._last(fault)
            for number in range(3):
                self._cluster.servers.start(number)
            for number in range(self._core):
                self._cluster.start(number)

    def _consumer_paused(self, fault: Fault) -> None:
        self._consumers.pause(fault.target)
        self._last(fault)
        self._consumers.resume()

    def _consumer_killed(self, fault: Fault) -> None:
        self._consumers.replace(fault.target)

    # Servers

    def _leader(self, fault: Fault) -> int:
        return self._cluster.journal_leader(self._nats, fault.target)

    def _follower(self, fault: Fault) -> int:
        return (self._leader(fault) + 1) % 3

    def _leader_killed(self, fault: Fault) -> None:
        self._killed([self._leader(fault)], fault)

    def _follower_killed(self, fault: Fault) -> None:
        self._killed([self._follower(fault)], fault)

    def _majority_killed(self, fault: Fault) -> None:
        self._killed([self._leader(fault), self._follower(fault)], fault)

    def _killed(self, servers: list[int], fault: Fault) -> None:
        for number in servers:
            self._cluster.servers.kill(number)
        self._last(fault)
        for number in servers:
            self._cluster.servers.start(number)

    def _leader_stopped(self, fault: Fault) -> None:
        number = self._leader(fault)
        self._cluster.servers.stop(number)
        self._last(fault)
        self._cluster.servers.start(number)

    def _leader_paused(self, fault: Fault) -> None:
        self._paused([self._leader(fault)], fault)

    def _follower_paused(self, fault: Fault) -> None:
        self._paused([self._follower(fault)], fault)

    def _majority_paused(self, fault: Fault) -> None:
        self._paused([self._leader(fault), self._follower(fault)], fault)

    def _paused(self, servers: list[int], fault: Fault) -> None:
        for number in servers:
            self._cluster.servers.pause(number)
        self._last(fault)
        for number in servers:
            self._cluster.servers.resume(number)

    def _leader_moved(self, fault: Fault) -> None:
        with suppress(FastiError):
            self._cluster.step_down(self._nats, fault.target)

    def _server_cut_off(self, fault: Fault) -> None:
        """From the other servers; brokers reach it all the same."""
        assert self._cluster.servers.routes is not None
        self._cluster.servers.routes.shut()
        self._last(fault)
        self._cluster.servers.routes.reopen()

    def _server_slow(self, fault: Fault) -> None:
        assert self._cluster.servers.routes is not None
        self._cluster.servers.routes.slow(SLOW_S, SLOW_S)
        self._last(fault)
        self._cluster.servers.routes.slow(0, 0)
