"""A shard with its threads: many callers, one sequencer, one committer, one housekeeper.

Callers put commands and queries into the inbox and wait. The sequencer (sequencer.py) takes what is
there and steps the engine. The committer (committer.py) writes and syncs what the steps decided while the
next step runs, and only then lets replies and deliveries go. The housekeeper (housekeeper.py) writes
checkpoints, loads slices of runs and prepares journal segments. Each is a step with a thread around it,
from the runtime: in virtual time one thread does them all in turn. A caller that finds nobody at work
leads: its thread does the sequencer's turn and the committer's, and is answered without a word to another
thread.

When something fails, the engine is dropped and loaded again (recovery.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker import clock_record, reading
from fasti.broker.clock import LeaseTicks
from fasti.broker.committer import Commit, Committer, Work
from fasti.broker.cron.fire_counts import FireCounts
from fasti.broker.damage import DamageControl
from fasti.broker.faults import Faults
from fasti.broker.feed import Feed
from fasti.broker.health import Pulse
from fasti.broker.holds import Holds
from fasti.broker.housekeeper import Housekeeper
from fasti.broker.recovery import Recovery
from fasti.broker.request import Request
from fasti.broker.room import Room
from fasti.broker.scrubber import Scrubber
from fasti.broker.sequencer import Sequencer
from fasti.broker.session import Session
from fasti.broker.shard_map import Leader, moved
from fasti.broker.shared_parts import SharedParts
from fasti.broker.stalls import Stalls
from fasti.config import ShardSettings
from fasti.core import commands
from fasti.core.command import Command
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.layout import ALONE, ShardPlace
from fasti.core.replies import (
    ConsumerReplaced,
    Deliver,
    Messages,
    Reply,
    SchedulesChanged,
    SessionDoubted,
)
from fasti.core.sinks.commands import SinkChanged
from fasti.errors import Closed, FastiError, TimedOut
from fasti.protocol.feed_name import FeedName
from fasti.runtime import Runtime
from fasti.storage.storage_engine import StorageEngine
from fasti.storage.store import ShardStore

_log = logging.getLogger("fasti.broker.shard")

Int64s = NDArray[np.int64]


class Shard:
    """Opens the storage that it is given and serves it until `close`."""

    def __init__(
        self,
        storage: StorageEngine,
        settings: ShardSettings | None = None,
        runtime: Runtime | None = None,
        name: str = "",
        place: ShardPlace = ALONE,
        shared: SharedParts | None = None,
    ) -> None:
        """`shared` is what it has in common with the other shards of its process."""
        self.place = place
        # Under which this process leads it.
        self.epoch = 1
        # Set where another process may lead it while this one lives: who does, as far as is known.
        self.whereabouts: Callable[[], Leader] | None = None
        # Set when it leaves this process: who leads it now. What is not admitted yet answers `moved` then.
        self.elsewhere: Leader | None = None
        # It stays, whatever becomes of the journal.
        self.name = name or str(place.number)
        self.settings = settings or ShardSettings()
        self._is_alone = shared is None
        shared = shared or SharedParts(self.settings, runtime)
        self.shared = shared
        self.runtime: Runtime = shared.runtime
        self._monotonic = self.runtime.monotonic
        self._machine = machine = self.runtime.clock
        # The only time that the broker goes by and tells its clients.
        self.clock = shared.clock
        self.ticks = LeaseTicks(machine)
        self._storage = storage
        self._closed = False
        self._one_closes = threading.Lock()
        self._opens_session = threading.Lock()
        self.sessions: dict[int, Session] = {}
        self._next_session = 1
        self.faults = Faults(machine)
        self.stalls = Stalls(self._monotonic)
        # What became durable, for those who follow; and who is told when schedules change.
        self.feed = Feed(self.runtime)
        self.on_schedules: Callable[[int], None] | None = None
        # Who is told when a sink's batch is carried out.
        self.on_sinks: Callable[[], None] | None = None
        self.fire_counts = FireCounts()
        # Whether the directory, when it was opened, looked like a copy of another.
        self.is_copy = False
        self.room = Room(self._has_room, self.free_bytes, self._monotonic)
        # What is lent to it of the process's memory, where it shares that.
        self.memory_bytes: int | None = None
        self.store: ShardStore
        self.engine: Engine
        self.committer: Committer
        self.holds = Holds(self._monotonic)
        self.threads = shared.threads
        self.recovery = Recovery(self)
        self.sequencer = Sequencer(self)
        self.damage = DamageControl(self)
        self.housekeeper = Housekeeper(self)
        self.scrubber = Scrubber(self)
        self.pulse = Pulse(self)
        self.open(None)
        try:
            shared.journals.add(self)
            self.sequencer.start()
            self.housekeeper.start()
            self.scrubber.start()
            if self._is_alone:
                shared.start()
        except BaseException:
            self.close(checkpoint=False)
            raise

    def open(self, cut_after: int | None) -> None:
        """Loads the engine; the journal ends after `cut_after`, if given: nothing behind it was promised."""
        settings = self.settings
        self.store = ShardStore(self._storage, settings, cut_after)
        self.store.feed_bytes_max = partial(self.shared.journals.feed_bytes, self)
        try:
            self.engine = self.store.load(
                lambda: Engine(
                    settings.memory_bytes, settings.leases_max, settings.limits, self.place
                )
            )
            if self.memory_bytes is not None:
                self.engine.memory.budget_bytes = self.memory_bytes
            if cut_after is None:
                last_us = self.engine.state.last_at_us
                if self.shared.serves and self.store.journal.is_replicated:
                    # The engine stands at its last event's time until the clock of this process is as far.
                    self.clock.check(last_us)
                elif not (self.shared.serves and self.shared.wait_until(last_us)):
                    expected_us = clock_record.expected_us(self.store.storage, self._machine)
                    self.clock.begin_at(last_us, expected_us)
                self.record_clock()
            self._warn_of_copy()
            self.engine.start(self.ticks.now())
            self.committer = Committer(
                self.store,
                self._show,
                self._answer,
                self.recovery.journal_failed,
                self.housekeeper.look,
                self.feed.synced,
                self.sequencer.wake,
                self.threads,
                self.stalls,
                self.ticks,
                self.label("fasti-committer"),
            )
        except BaseException:
            self.store.close()
            raise

    def _warn_of_copy(self) -> None:
        """Once: a directory that was opened lives here from then on."""
        if self.store.storage.copy_warning is not None:
            self.is_copy = True
            _log.warning("%s", self.store.storage.copy_warning)

    # For callers: any thread

    @property
    def feed_name(self) -> FeedName:
        """What positions of the change feed belong to."""
        return FeedName(self.name, f"{self.store.journal.incarnation:016x}")

    def label(self, name: str) -> str:
        """The name of one of its threads: with the shard's number where there are several."""
        return name if self.place.count == 1 else f"{name}-{self.place.number}"

    def submit(
        self, inputs: Sequence[Command], engine: Engine | None = None, lead: bool = False
    ) -> Future[list[Any]]:
        """Hands commands over; the future holds their replies once they are durable.

        With `lead` this thread decides, writes and syncs them itself, and what came meanwhile, if no
        other thread is at it. It must hold no lock then that a turn takes.
        """
        for command in inputs:
            _prepare_keys(self.engine, command)
            if engine is None and self.faults.suspects:
                self.faults.check(command.bare)
        return self.sequencer.enter(Request.of(inputs, self.runtime.future(), engine), lead)

    def ask(self, query: Any, engine: Engine | None = None) -> Future[Any]:
        """Hands an input over whose value is told as soon as its step is decided.

        What it tells may not be durable yet: a caller to whom that matters goes on to `submit`.
        """
        if engine is None and self.faults.suspects:
            self.faults.check(query)
        return self.sequencer.enter(
            Request.of([query], self.runtime.future(), engine, at_once=True)
        )

    def call(self, command: Any, timeout: float | None = None, lead: bool = False) -> Any:
        """One command's reply, durable."""
        return self.submit([command], lead=lead).result(timeout)[0]

    def open_session(self) -> Session:
        """A place where leased messages arrive."""
        with self._opens_session:
            session = Session(self._next_session, self)
            self.sessions[session.number] = session
            self._next_session += 1
        return session

    @property
    def inbox_rows(self) -> int:
        """Rows that wait for the sequencer."""
        return self.sequencer.inbox_rows

    @property
    def failure(self) -> FastiError | None:
        """What the shard is recovering from, or why it has ended."""
        return self.recovery.failure

    @property
    def recoveries(self) -> int:
        """How often it has recovered."""
        return self.recovery.count

    @property
    def recovers(self) -> bool:
        """Whether it is opened again, or was a moment ago and has written nothing between failures."""
        return self.recovery.is_unproven

    def wake(self) -> None:
        """Something has changed that the sequencer may be waiting for."""
        self.sequencer.wake()

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the sequencer takes nothing any more: closed, or failed for good."""
        self.sequencer.when_ended(tell)

    def checkpoint(self, timeout_s: float | None = None) -> None:
        """Writes a checkpoint now and returns when it is complete. Raises `timed_out`."""
        try:
            self.housekeeper.checkpoint_now().result(timeout_s)
        except TimeoutError as error:
            raise TimedOut(f"the checkpoint took more than {timeout_s:g} s, and goes on") from error

    def fetch(self, topic: str, target: commands.Target) -> tuple[Messages, pa.RecordBatch]:
        """Messages and their payloads, row by row."""
        return reading.fetch(self, topic, target)

    def update(
        self,
        topic: str,
        target: commands.Target,
        rows: Rows,
        versions: Int64s | int = 0,
        owner: str = "",
    ) -> Reply:
        """New payloads; each message keeps its key and its time of creation."""
        return reading.update(self, topic, target, rows, versions, owner)

    def redrive(self, topic: str, ids: Int64s, when: commands.When | None = None) -> Reply:
        """Dead messages live again, under the keys that they had."""
        return reading.redrive(self, topic, ids, when or commands.When())

    def record_clock(self) -> None:
        """Leaves a word for the next start; after every change of what the clock goes by."""
        clock_record.write(self.store.storage, self._machine, self.clock)

    def close(self, checkpoint: bool = True) -> None:
        """Answers what was handed over, writes a last checkpoint, and lets the directory go.

        Called twice, or by several threads, all return when it is done.
        """
        with self._one_closes:
            if self._closed:
                return
            if checkpoint:
                # The journal has it all: without this one the next start only takes longer.
                with suppress(FastiError):
                    self.checkpoint()
            self.scrubber.stop()
            self.housekeeper.stop()
            self.sequencer.close()
            self.committer.stop()
            self.shared.journals.remove(self)
            if self._is_alone:
                self.shared.stop()
            self.lose_sessions()
            self._closed = True
            self.record_clock()
            self.store.close()

    @property
    def is_stopped(self) -> bool:
        """Whether it takes nothing any more: closed, or failed for good."""
        return self.sequencer.stopped

    @property
    def failed(self) -> bool:
        """Whether it has given up: nothing will be answered any more."""
        return self.sequencer.stopped and self.recovery.failure is not None

    def end_error(self, why: str = "the shard is closed") -> FastiError:
        """What is told when it has ended here: where it is, or why it is closed."""
        return Closed(why) if self.elsewhere is None else moved(self.place.number, self.elsewhere)

    def lose_sessions(self) -> None:
        """The engine that knew them is gone."""
        for session in list(self.sessions.values()):
            session.lose()

    def _has_room(self, needed_bytes: int) -> bool:
        """For the housekeeper, while something is refused."""
        try:
            if self.store.capacity.room_bytes() >= needed_bytes:
                return True
        except FastiError:
            return False  # It is being opened again.
        return self.free_bytes() >= needed_bytes + self.settings.segment_bytes

    def free_bytes(self) -> int:
        """What the disk has left; 0 if it doesn't say."""
        try:
            return self.store.capacity.free_bytes()
        except FastiError:
            return 0

    # Around the sync: the committer's turn

    def _show(self, work: Work, commit: Commit) -> None:
        """Messages go before the replies of their step: a consumer that comes back knows by the
        answer to its heartbeat that it has all its leases again.
        """
        for effect in work.step.effects:
            if isinstance(effect, Deliver):
                session = self.sessions.get(effect.session)
                if session is not None:
                    session.arrive(effect, commit)

    def _answer(self, work: Work) -> None:
        self.feed.durable(work.step.frames)
        begin = 0
        for request in work.requests:
            end = begin + len(request.inputs)
            if not request.at_once:
                request.answer.set_result(work.step.replies[begin:end])
            begin = end
        # The end of a session goes last.
        for effect in work.step.effects:
            if isinstance(effect, ConsumerReplaced):
                session = self.sessions.get(effect.session)
                if session is not None:
                    session.end(effect)
            elif isinstance(effect, SessionDoubted):
                session = self.sessions.get(effect.session)
                if session is not None:
                    session.doubted = True
            elif isinstance(effect, SchedulesChanged) and self.on_schedules is not None:
                self.on_schedules(effect.topic)
            elif isinstance(effect, SinkChanged) and self.on_sinks is not None:
                self.on_sinks()


def _prepare_keys(engine: Engine, command: Command) -> None:
    """Works keys' partitions out in the caller's thread: the sequencer finds them."""
    for produce in command.produces():
        if produce.keys is not None:
            topic = engine.state.by_name.get(produce.topic)
            if topic is not None and topic.settings.partitions > 1:
                topic.kind.prepare_keys(topic, produce.keys)
