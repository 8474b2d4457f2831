"""A broker inside the test, in virtual time: "three days later" takes a millisecond.

The broker is the real one, with its threads, journal and sessions; only its clock stands still
until the test moves it on. What is due then is delivered to consumers and apps as it would be by a
server, by real threads, so a test waits for them with `settle` instead of sleeping.

Two clocks: `advance` moves wall time, by which messages fall due. Leases run on the broker's
monotonic clock, which `advance` leaves alone: a consumer that works on a message keeps it. `expire_leases`
lets that clock run on until every lease is over, as if each worker had died.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.clock import EngineClock
from fasti.broker.host import Host
from fasti.broker.metrics.counts import Metrics
from fasti.client.durations import Duration, aware_us, duration_us
from fasti.client.embedded_transport import EmbeddedTransport
from fasti.client.shards.transport import ShardedTransport
from fasti.client.transport import Transport
from fasti.config import Durability, ShardSettings
from fasti.core.log.commands import GroupBacklog, ReadBacklog
from fasti.errors import InvalidArgument, NotFound, TimedOut
from fasti.runtime import SystemRuntime
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import LocalFiles
from fasti.storage.shard_folders import ShardFolders

if TYPE_CHECKING:
    from fasti.app import aio
    from fasti.app.app import App
    from fasti.client.client import Client
    from fasti.testing.idle import Run

# A day like any other, at noon: far from daylight saving, leap days and the end of the year.
START = datetime(2030, 3, 6, 12, 0, 0, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Small files: a test's broker holds little and should open at once.
_SETTINGS = ShardSettings(
    durability=Durability.INTERVAL,
    segment_bytes=1 << 20,
    memory_bytes=256 << 20,
    leases_max=1 << 16,
)
_PATIENCE_S = 30.0
_STEPS_TO_SETTLE = 4
_ENDING = ("ack", "nack", "release", "reject", "reply")


class VirtualClock:
    """The clocks of the test's machine. They stand still until `move` is called."""

    boot = ""

    def __init__(self, start: datetime = START) -> None:
        self._start_us = aware_us(start, "start")
        self._elapsed_us = 0
        # By how much the wall clock was set off.
        self._off_us = 0
        self._tick = 0
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def wall_ns(self) -> int:
        """Wall time, which may be set."""
        return (self._start_us + self._elapsed_us + self._off_us) * 1000

    def elapsed_ns(self) -> int:
        """How far the time was moved on."""
        return self._elapsed_us * 1000

    def tick(self) -> int:
        """Monotonic time, by which leases expire."""
        return self._tick

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` after every move; returns how to stop that."""
        with self._lock:
            self._listeners.append(moved)

        def stop() -> None:
            with self._lock:
                if moved in self._listeners:
                    self._listeners.remove(moved)

        return stop

    def move(self, by_us: int = 0, tick_us: int = 0, off_us: int = 0) -> None:
        """Lets time pass, lets leases' time pass, sets the wall clock off; tells everybody."""
        with self._lock:
            self._elapsed_us += by_us
            self._tick += tick_us
            self._off_us += off_us
            listeners = list(self._listeners)
        for moved in listeners:
            moved()


class VirtualTime:
    """The broker's clock for its clients, as `fasti.client.transport.BrokerClock` has it."""

    unsure_us = 0

    def __init__(self, machine: VirtualClock, clock: EngineClock) -> None:
        self.now_us, self.listen = clock.now_us, machine.listen

    def seconds_until(self, at_us: int) -> float:
        """What has not come doesn't come by waiting: only a move brings it."""
        return 0.0 if at_us <= self.now_us() else math.inf


class VirtualBroker:
    """A whole broker for one test; a context manager. Any thread may call.

    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("emails")
        client.producer("emails").send(b"hello", delay="3d").result()
        broker.advance("3d")
        message = next(iter(client.consumer("emails")))
    """

    def __init__(
        self,
        start: datetime | None = None,
        settings: ShardSettings | None = None,
        shards: int = 1,
    ) -> None:
        """`shards`: how many the broker has, all in this process."""
        self.machine = VirtualClock(start or START)
        self._place = tempfile.TemporaryDirectory(prefix="fasti-testing-")
        self.watch = _Watch()
        # Schedules fire when the time is moved on.
        self.host = Host(
            _storages(self._place.name, shards),
            settings or _SETTINGS,
            shards=shards,
            cluster="testing" if shards > 1 else "",
            metrics=self.watch,
            runtime=SystemRuntime(self.machine),
            threaded=False,
        )
        # The only ones, or those of the catalogue.
        self.shard, self.service = self.host.all_shards()[0], self.host.all_services()[0]
        self._schedulers = [each for s in self.host.all_services() for each in s.schedulers]
        self.clock = VirtualTime(self.machine, self.shard.clock)
        self._clients: list[Client] = []
        self._closed = False

    def client(self, owner: str = "") -> Client:
        """A client of this broker, closed with it."""
        from fasti.client.client import Client

        client = Client(self.transport(), owner=owner)
        self._clients.append(client)
        return client

    def transport(self) -> Transport:
        """The way to this broker, for a client made by hand."""
        ways = [
            EmbeddedTransport(service=service, clock=self.clock)
            for service in self.host.all_services()
        ]
        if len(ways) == 1:
            return ways[0]

        def close() -> None:
            for way in ways:
                way.close()

        return ShardedTransport(ways, clock=self.clock, name="an embedded broker", close=close)

    @property
    def now(self) -> datetime:
        """What the broker's clock shows."""
        return _EPOCH + timedelta(microseconds=self.clock.now_us())

    def advance(self, by: Duration) -> None:
        """Moves the time on. What falls due is on its way to consumers when this returns."""
        self._move(duration_us(by, "by"), 0)

    def advance_to(self, moment: datetime) -> None:
        """Moves the time on to a moment. Raises `invalid_argument` if it lies in the past."""
        by_us = aware_us(moment, "moment") - self.clock.now_us()
        if by_us < 0:
            raise InvalidArgument(f"{moment} is past: time doesn't go back", field="moment")
        self._move(by_us, 0)

    def set_clock(self, by: timedelta) -> None:
        """Sets the machine's wall clock, ahead or back, while no time passes. What the broker
        makes of it is in [operating](../operating.md#the-clock).
        """
        self.machine.move(off_us=by // timedelta(microseconds=1))
        self._serve_due()

    def expire_leases(self) -> None:
        """Every lease runs out, as if its holder had died. Messages come again at once,
        to any consumer that waits.
        """
        self._move(0, self.shard.settings.limits.lease_us_max)

    def settle(self, timeout: float = _PATIENCE_S) -> None:
        """Waits until nothing is ready or leased, and the groups of logs have had every row: all
        that is due has been worked off. What is ready in a paused topic is not waited for.

        For tests of an app or of consumers in threads. Raises `timed_out` with what is left if
        it is not finished in so many real seconds.
        """
        if not self.watch.wait_for(lambda: not self.open_work(), timeout):
            raise TimedOut(f"still open after {timeout} s: {self.open_work()}")

    def run_until_idle(
        self,
        app: App | aio.App,
        *,
        until: Duration | datetime | None = None,
        runs_max: int = 10_000,
        timeout: float = _PATIENCE_S,
    ) -> list[Run]:
        """Runs an app's handlers until nothing of theirs is ready: what ran, in order.

            remind.later(Cart(7), delay="3d")
            assert broker.run_until_idle(app) == []
            runs = broker.run_until_idle(app, until="3d")

        With `until`, a moment or a length of time from now, time goes on to it, and stops at every
        moment at which something is due, so that messages come at their times, and retries and
        schedules too. An app that doesn't run is started for this, with a client of this broker, and
        stopped afterwards.

        Raises `timed_out` if there is no end after `runs_max` messages, as when a handler puts a
        message for itself each time, or if a handler takes `timeout` real seconds.
        """
        from fasti.app.app import App
        from fasti.testing.idle import IdleRun

        base = app if isinstance(app, App) else app.base
        if base.bound not in self._clients:
            app.bind(self.client(base.owner))
        return IdleRun(self, base, runs_max=runs_max, timeout=timeout).run(until)

    def flush(self) -> None:
        """Waits until everything that clients of this broker have sent is there."""
        for client in self._clients:
            client._flush_all()

    def open_work(self, names: Collection[str] | None = None) -> dict[str, dict[str, int]]:
        """What is ready or leased now, by topic; of logs, what their groups have to do."""
        found, _ = self._own_transport.call("topics")
        open_work = {}
        for topic in found["topics"]:
            name, counts = topic["topic"], topic["counts"]
            if names is not None and name not in names:
                continue
            if topic["paused"]:
                if counts["leased"]:
                    open_work[name] = {"leased": counts["leased"]}
                continue
            if topic["settings"]["kind"] == "log":
                # Its rows stay; what its groups have to do is work.
                left = {group: backlog.rows for group, backlog in self._backlog(name).items()}
            else:
                left = {state: counts[state] for state in ("ready", "leased")}
                if left["leased"]:
                    left["leased"] -= self._sent_ahead(name)
            if any(left.values()):
                open_work[name] = left
        return open_work

    def _sent_ahead(self, name: str) -> int:
        """Messages that are with consumers, and whose time has not come: they can't begin yet."""
        return self._messages(name, state="leased", due_from=self.clock.now_us() + 1).num_rows

    def _messages(self, name: str, **wanted: Any) -> Any:
        messages = self._own_client.messages(name)
        return messages.list(limit=None, columns=["due_us"], **wanted)

    @cached_property
    def _own_transport(self) -> Transport:
        return self.transport()

    @cached_property
    def _own_client(self) -> Client:
        return self.client()

    def next_due_us(self, names: Collection[str]) -> int | None:
        """When a message of these topics is due next, or any schedule has something to do."""
        now_us = self.clock.now_us()
        # Schedules that were put since the time was moved are not known to it yet.
        found = [at_us for at_us in (self._catch_up(),) if at_us is not None]
        for topic in self._own_client.topics():
            if topic.name not in names:
                continue
            if topic.settings.kind == "log":
                backlogs = self._backlog(topic.name).values()
                found += [backlog.retry_us for backlog in backlogs if backlog.retry_us is not None]
            else:
                due = self._messages(topic.name, due_from=now_us + 1)["due_us"]
                found += [pc.min(due).as_py()] if len(due) else []
        return min(found, default=None)

    def _backlog(self, name: str) -> dict[str, GroupBacklog]:
        """What the groups of a log have to do; nothing if the log is gone."""
        try:
            # Of all shards together.
            found: dict[str, list[GroupBacklog]] = {}
            for shard in self.host.all_shards():
                for group, backlog in shard.ask(ReadBacklog(name)).result().items():
                    found.setdefault(group, []).append(backlog)
        except NotFound:
            return {}
        return {group: _joined(backlogs) for group, backlogs in found.items()}

    def _move(self, wall_us: int, tick_us: int) -> None:
        """In pieces, so that schedules find the moments at which they are due."""
        until_us = self.clock.now_us() + wall_us
        while (at_us := self._catch_up()) is not None and at_us < until_us:
            self._move_on(max(at_us - self.clock.now_us(), 0), 0)
        self._move_on(until_us - self.clock.now_us(), tick_us)
        self._catch_up()

    def _catch_up(self) -> int | None:
        """Schedules do what they have to by now: when they have something to do next."""
        for scheduler in self._schedulers:
            scheduler.catch_up()
        moments = [scheduler.next_us() for scheduler in self._schedulers]
        return min((at_us for at_us in moments if at_us is not None), default=None)

    def _move_on(self, wall_us: int, tick_us: int) -> None:
        self.machine.move(wall_us, tick_us)
        self._serve_due()

    def _serve_due(self) -> None:
        # The first step hands out what is due; those behind it what that left to be done.
        for _ in range(_STEPS_TO_SETTLE):
            for shard in self.host.all_shards():
                shard.submit([]).result(_PATIENCE_S)
        if self.host.catalogue is not None:
            self.host.catalogue.delete_idle()

    def close(self) -> None:
        """Closes the clients and the broker, and deletes its files."""
        if self._closed:
            return
        self._closed = True
        try:
            for client in reversed(self._clients):
                client.close()
        finally:
            self.host.begin_stopping()
            self.host.close_services()
            self.host.abandon()
            self._place.cleanup()

    def __enter__(self) -> VirtualBroker:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()


def _storages(path: str, shards: int) -> dict[int, FileStorage]:
    """A folder for each shard; one shard has the whole."""
    folders = ShardFolders(Path(path), shards).folders()
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return {number: FileStorage(LocalFiles(str(at))) for number, at in enumerate(folders)}


def _joined(backlogs: list[GroupBacklog]) -> GroupBacklog:
    retries = [each.retry_us for each in backlogs if each.retry_us is not None]
    return GroupBacklog(sum(each.rows for each in backlogs), min(retries, default=None))


class _Watch(Metrics):
    """Counts as ever, and wakes the threads that wait for the broker to come to rest."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.changes = 0
        # How often consumers have finished with messages.
        self.ends = 0

    def mutated(self, op: str, topic: str, status: NDArray[np.uint8]) -> None:
        super().mutated(op, topic, status)
        self.note(op, len(status))

    def of_shard(self, shards: int) -> Metrics:
        return _ShardWatch(self)

    def note(self, op: str, rows: int) -> None:
        """Something has changed, on any shard."""
        with self._changed:
            self.changes += 1
            if op in _ENDING:
                self.ends += rows
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Looks again after every change, until the condition holds or the time is up."""
        while True:
            with self._changed:
                seen = self.changes
            if condition():
                return True
            with self._changed:
                while self.changes == seen:
                    if not self._changed.wait(timeout):
                        return condition()


class _ShardWatch(Metrics):
    """Those of one of several shards."""

    def __init__(self, whole: _Watch) -> None:
        super().__init__()
        self._whole = whole

    def mutated(self, op: str, topic: str, status: NDArray[np.uint8]) -> None:
        super().mutated(op, topic, status)
        self._whole.note(op, len(status))
