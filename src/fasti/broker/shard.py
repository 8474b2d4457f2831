"""A shard with its threads: many callers, one sequencer, one committer, one housekeeper.

Callers put commands and queries into the inbox and wait. The sequencer takes what is there, a bounded
piece at a time and bulk produce last, and steps the engine: nothing else changes it, so that its inputs
tell all that it does. The committer writes and syncs what the steps decided while the next step runs,
and only then lets replies and deliveries go. The housekeeper writes checkpoints, loads slices of runs and
prepares journal segments. Each is a step with a thread around it, from the runtime: in virtual time one
thread does them all in turn. A caller that finds nobody at work leads: its thread does the sequencer's
turn and the committer's, and is answered without a word to another thread.

When an append or sync fails, no caller is told ok: everything that was decided and not yet durable
answers `unknown` (or `storage_full`, if nothing of it was written), the engine is dropped, and a
new one is loaded from the manifest and the journal as far as it was synced. Consumers' credits go
with the engine; their sessions raise `closed` when they next receive, and may lease again.

A step that raises ends in the same recovery, because what it left of the engine can't be trusted; but of
it nothing was written, so no outcome is unknown. The request that raised answers `internal`, the
others of the step are decided by the next engine. Where it can't be told which one raised they are
decided one at a time, and the one that raises again answers `internal`. A command that raises before
anything of it was applied is refused by the engine itself, which goes on.

Nothing here polls: the sequencer sleeps until a command comes or the next moment that the engine
asked for.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker import clock_record, reading
from fasti.broker.clock import EngineClock, LeaseTicks
from fasti.broker.committer import Commit, Committer, Work
from fasti.broker.cron.fire_counts import FireCounts
from fasti.broker.damage import DamageControl
from fasti.broker.faults import Faults
from fasti.broker.feed import Feed
from fasti.broker.health import Pulse
from fasti.broker.holds import Holds
from fasti.broker.housekeeper import Housekeeper
from fasti.broker.request import Request, find_culprit, fits
from fasti.broker.room import Room
from fasti.broker.scrubber import Scrubber
from fasti.broker.session import Session
from fasti.broker.threads import Driver, Queue, Threads
from fasti.config import ShardSettings
from fasti.core import commands
from fasti.core.command import Command
from fasti.core.engine import Engine, internal_error
from fasti.core.keys import Rows
from fasti.core.replies import (
    Asked,
    ConsumerReplaced,
    Deliver,
    Messages,
    Reply,
    SchedulesChanged,
    SessionDoubted,
    Step,
)
from fasti.core.sinks.commands import SinkChanged
from fasti.core.work import StepFailed
from fasti.errors import (
    Closed,
    FastiError,
    InternalError,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
    StorageFull,
    TimedOut,
)
from fasti.model import back_off
from fasti.protocol.feed_name import FeedName
from fasti.runtime import Runtime, SystemRuntime
from fasti.storage.storage_engine import StorageEngine
from fasti.storage.store import ShardStore

_log = logging.getLogger("fasti.broker.shard")

_FRAME_OVERHEAD_BYTES = 1024
# The housekeeper looks for room as often.
_FULL_RETRY_US = 1_000_000
# Condition variables can't wait for centuries, messages can; and where the system doesn't tell that
# its clock was set, this is how late that is noticed.
_SLEEP_MAX_S = 60.0
# So many recoveries in a row that led to nothing, and the shard gives up.
_FAILURES_MAX = 8
# For so long after failures in a row health doesn't say that work gets done, unless some is.
_PROBATION_S = 5.0
# So often a request is decided anew because its step was void.
_RERUNS_MAX = 4

Int64s = NDArray[np.int64]


class Shard:
    """Opens the storage that it is given and serves it until `close`."""

    def __init__(
        self,
        storage: StorageEngine,
        settings: ShardSettings | None = None,
        runtime: Runtime | None = None,
        name: str = "0",
    ) -> None:
        # It stays, whatever becomes of the journal.
        self.name = name
        self.settings = settings or ShardSettings()
        self.runtime: Runtime = runtime or SystemRuntime()
        self._monotonic = self.runtime.monotonic
        self._machine = machine = self.runtime.clock
        # The only time that the broker goes by and tells its clients.
        self.clock = EngineClock(machine, self.settings)
        self._ticks = LeaseTicks(machine)
        self._storage = storage
        self._wakeup = self.runtime.condition()
        self._urgent: deque[Request] = deque()
        self._bulk: deque[Request] = deque()
        self._inbox_rows = 0
        # Bulk that waits until a segment is prepared; it is asked for once.
        self._short_of_room: Request | None = None
        self._closing = False
        # The sequencer takes nothing any more.
        self._stopped = False
        self._closed = False
        # What the sequencer has taken, and what its last step asked for.
        self._taken: list[Request] = []
        self._last_step: Step | None = None
        # The turn is led by a caller, who leads the committer next.
        self._is_led = False
        self._one_closes = threading.Lock()
        self._failure: FastiError | None = None
        self._failures_in_a_row = 0
        # While it recovers, once the engine is dropped: up to where the journal is synced, and when to
        # open it again.
        self._reopen: tuple[int, float] | None = None
        self._recovered_at = 0.0
        self.sessions: dict[int, Session] = {}
        self._next_session = 1
        self.recoveries = 0
        self.faults = Faults(machine)
        # What became durable, for those who follow; and who is told when schedules change.
        self.feed = Feed(self.runtime)
        self.on_schedules: Callable[[int], None] | None = None
        # Who is told when a sink's batch is carried out.
        self.on_sinks: Callable[[], None] | None = None
        self.fire_counts = FireCounts()
        # Whether the directory, when it was opened, looked like a copy of another.
        self.is_copy = False
        self.room = Room(self._has_room, self.free_bytes, self._monotonic)
        self.store: ShardStore
        self.engine: Engine
        self.committer: Committer
        self.holds = Holds(self._monotonic)
        # What is produced waits for room; the sequencer counts what it takes.
        self._produced = Queue("produce", lambda: bool(self._bulk))
        self.threads = Threads(self.settings.stall_us / 1e6, self.runtime)
        self.threads.add(self._produced)
        self._sequencer = Driver(
            self.threads, "fasti-sequencer", self._wakeup, self._take, self._turn, self._died
        )
        self.damage = DamageControl(self)
        self.housekeeper = Housekeeper(self)
        self.scrubber = Scrubber(self)
        self.pulse = Pulse(self)
        self._open(None)
        try:
            self._sequencer.start()
            self.housekeeper.start()
            self.scrubber.start()
            self.threads.start()
        except BaseException:
            self.close(checkpoint=False)
            raise

    def _open(self, cut_after: int | None) -> None:
        settings = self.settings
        self.store = ShardStore(self._storage, settings, cut_after)
        try:
            self.engine = Engine(settings.memory_bytes, settings.leases_max, settings.limits)
            self.store.load(self.engine)
            if cut_after is None:
                expected_us = clock_record.expected_us(self.store.storage, self._machine)
                self.clock.begin_at(self.engine.state.last_at_us, expected_us)
                self.record_clock()
            self._warn_of_copy()
            self.engine.start(self._ticks.now())
            self.committer = Committer(
                self.store,
                self._show,
                self._answer,
                self._fail,
                self.housekeeper.look,
                self.feed.synced,
                self.wake,
                self.threads,
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

    def submit(
        self, inputs: Sequence[Command], engine: Engine | None = None, lead: bool = False
    ) -> Future[list[Any]]:
        """Hands commands over; the future holds their replies once they are durable.

        With `lead` this thread decides, writes and syncs them itself, and what came meanwhile, if no
        other thread is at it. It must hold no lock then.
        """
        for command in inputs:
            self._route(command)
            if engine is None and self.faults.suspects:
                self.faults.check(command)
        return self._enter(Request.of(inputs, self.runtime.future(), engine), lead)

    def ask(self, query: Any, engine: Engine | None = None) -> Future[Any]:
        """Hands an input over whose value is told as soon as its step is decided.

        What it tells may not be durable yet: a caller to whom that matters goes on to `submit`.
        """
        if engine is None and self.faults.suspects:
            self.faults.check(query)
        return self._enter(Request.of([query], self.runtime.future(), engine, at_once=True))

    def _enter(self, request: Request, lead: bool = False) -> Future[Any]:
        bulk, rows = request.is_bulk, request.rows
        with self._wakeup:
            if self._closing or self._stopped:
                raise self._is_closed()
            # What frees space and memory gets in for longer than what takes it.
            room = self.settings.inbox_rows_max * (1 if bulk else 2)
            if request.engine is None and self._inbox_rows + rows > room:
                raise Overloaded("the inbox is full", retry_after_us=10_000)
            self._inbox_rows += rows
            (self._bulk if bulk else self._urgent).append(request)
            leads = lead and self._failure is None and self._sequencer.begin_to_lead()
            # Who has a turn looks for more after it.
            if not leads and not self._sequencer.in_turn:
                self._wakeup.notify()
        if leads:
            self._is_led = True
            self._sequencer.lead()
            self.committer.lead()
        return request.answer

    def _route(self, command: Command) -> None:
        """Works keys' partitions out here, by the caller's thread: the sequencer finds them."""
        for produce in command.produces():
            if produce.keys is not None:
                topic = self.engine.state.by_name.get(produce.topic)
                if topic is not None and topic.settings.partitions > 1:
                    topic.kind.prepare_keys(topic, produce.keys)

    def call(self, command: Any, timeout: float | None = None, lead: bool = False) -> Any:
        """One command's reply, durable."""
        return self.submit([command], lead=lead).result(timeout)[0]

    def open_session(self) -> Session:
        """A place where leased messages arrive."""
        with self._wakeup:
            session = Session(self._next_session, self)
            self.sessions[session.number] = session
            self._next_session += 1
        return session

    @property
    def inbox_rows(self) -> int:
        """Rows that wait for the sequencer."""
        return self._inbox_rows

    @property
    def failure(self) -> FastiError | None:
        """What the shard is recovering from, or why it has ended."""
        return self._failure

    @property
    def recovers(self) -> bool:
        """Whether it is opened again, or was a moment ago and has written nothing between failures."""
        lately = self._monotonic() - self._recovered_at < _PROBATION_S
        unproven = self._failures_in_a_row > 0 and not self.committer.committed
        return self._failure is not None or (lately and unproven)

    def wait_ended(self) -> None:
        """Returns when the sequencer takes nothing any more: closed, or failed for good."""
        self._sequencer.wait()

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
            with self._wakeup:
                self._closing = True
                self._wakeup.notify()
            self._sequencer.join()
            self.committer.stop()
            self.threads.stop()
            for session in list(self.sessions.values()):
                session.lose()
            self._closed = True
            self.record_clock()
            self.store.close()

    @property
    def is_stopped(self) -> bool:
        """Whether it takes nothing any more: closed, or failed for good."""
        return self._stopped

    @property
    def failed(self) -> bool:
        """Whether it has given up: nothing will be answered any more."""
        return self._stopped and self._failure is not None

    def _is_closed(self) -> Closed:
        if self._failure is not None:
            return Closed(f"the shard could not recover: {self._failure}")
        return Closed("the shard is closed")

    # The sequencer

    def _take(self) -> float | None:
        """With the lock: takes a bounded piece of what there is to do, or says how long to wait."""
        if self._failure is not None:
            return self._seconds_to_recovery()
        if self._taken:
            return 0.0
        if self.committer.is_behind:
            return None
        may_take_bulk = self._may_take_bulk()
        if not (self._urgent or may_take_bulk or self._closing):
            wait_s = self._seconds_to_wake()
            if wait_s is None or wait_s > 0:
                return wait_s
        taken = self._taken
        rows = 0
        bulk = self._bulk if self._closing or may_take_bulk else ()
        produced = len(self._bulk)
        for queue in (self._urgent, bulk):
            while queue and fits(taken, rows, queue[0]):
                taken.append(queue.popleft())
                rows += taken[-1].rows
        self._inbox_rows -= rows
        self._produced.progress += produced != len(self._bulk)
        return 0.0

    def _turn(self) -> bool:
        led, self._is_led = self._is_led, False
        if self._failure is not None:
            if self._recover():
                return True
            self._refuse()
            return False
        if not self._taken and self._closing and self._stop_if_idle():
            self._refuse()
            return False
        last = self._last_step
        tick = self._ticks.look(last.wake_at_tick if last is not None else None)
        self._last_step = self._step(self._taken, tick, led)
        self._taken = []
        return True

    def _died(self, error: BaseException) -> None:
        """By a fault of the program: the shard has failed for good."""
        self._failure = InternalError(f"the sequencer failed: {error!r}")
        self._refuse()

    def _stop_if_idle(self) -> bool:
        """The end, unless something came in meanwhile."""
        with self._wakeup:
            self._stopped = not (self._urgent or self._bulk or self._failure)
            return self._stopped

    def _may_take_bulk(self) -> bool:
        """Whether there is bulk, and room for it. While room is made, everything else goes on."""
        if not self._bulk:
            return False
        request = self._bulk[0]
        if self.store.capacity.room_bytes() >= self._needed_bytes(request):
            return True
        if self._short_of_room is not request:
            self._short_of_room = request
            self.housekeeper.ask_for_spare()
        return not self.housekeeper.making_room

    def _needed_bytes(self, request: Request) -> int:
        return request.size_bytes + _FRAME_OVERHEAD_BYTES + self.committer.waiting_bytes

    def wake(self) -> None:
        """Something has changed that the sequencer may be waiting for."""
        with self._wakeup:
            self._wakeup.notify()

    def _seconds_to_wake(self) -> float | None:
        step = self._last_step
        if step is None:
            return None
        if step.more:
            return 0.0
        waits = []
        if step.wake_at_us is not None:
            waits.append(self.clock.seconds_until(step.wake_at_us))
        if step.wake_at_tick is not None:
            waits.append((step.wake_at_tick - self._ticks.now()) / 1e6)
        return min(*waits, _SLEEP_MAX_S) if waits else None

    def _step(self, requests: list[Request], tick: int, led: bool) -> Step:
        admitted = [request for request in requests if self._admit(request)]
        inputs = [command for request in admitted for command in request.inputs]
        try:
            step = self.engine.step(inputs, self.clock.now_us(), tick)
            for fault in step.faults:
                self.faults.note_refused(fault)
            for frame in step.frames:
                if frame.rows is not None:
                    self.store.payloads.keep(frame.sequence, frame.rows, frame.events[-1].at_us)
            for effect in step.effects:
                if isinstance(effect, Asked):
                    self.housekeeper.load(effect, self.engine)
            if _answer_queries(admitted, step.replies) or step.frames or step.effects:
                self.committer.take_over(Work(step, admitted), wake=not led)
        except Exception as error:
            self._void(error, admitted)
            return Step()
        return step

    def _void(self, error: Exception, requests: list[Request]) -> None:
        """A step raised: the engine is to be dropped, and nothing of the step was written.

        What raised is told so. The others are decided again, by the next engine.
        """
        failed = error if isinstance(error, StepFailed) else StepFailed()
        cause = error.__cause__ if isinstance(error, StepFailed) and error.__cause__ else error
        culprit, command = find_culprit(requests, failed.place)
        known = culprit is not None or bool(failed.serving)
        if not known and len(requests) == 1 and requests[0].suspect:
            culprit, command = requests[0], requests[0].inputs[0] if requests[0].inputs else None
        if culprit is not None:
            culprit.answer.set_exception(internal_error(command, cause))
        self.faults.note_dropped(command, cause, failed.serving)
        others = [
            request for request in requests if request is not culprit and not request.answer.done()
        ]
        self._decide_again(others, suspect=not known)
        reason = FastiError(f"the engine failed: {cause!r}")
        reason.__cause__ = cause
        self._fail(reason, [])

    def _decide_again(self, requests: list[Request], suspect: bool) -> None:
        """They come first, in their order. Sessions are lost, and so is what they asked for."""
        again = []
        for request in requests:
            request.reruns += 1
            request.suspect |= suspect
            lost = any(command.needs_session for command in request.inputs)
            if lost or request.reruns > _RERUNS_MAX:
                unknown = OutcomeUnknown("the engine failed on something else: ask again")
                request.answer.set_exception(unknown)
            else:
                again.append(request)
        with self._wakeup:
            for request in reversed(again):
                (self._bulk if request.is_bulk else self._urgent).appendleft(request)
                self._inbox_rows += request.rows

    def _admit(self, request: Request) -> bool:
        """Refuses payloads while the disk has no room, so that the rest can still be written."""
        if request.engine is not None and request.engine is not self.engine:
            request.answer.set_exception(Closed("the engine that this was for is gone"))
            return False
        if not request.size_bytes:
            return True
        needed = self._needed_bytes(request)
        if self.store.capacity.room_bytes() >= needed:
            return True
        try:
            while self.store.capacity.room_bytes() < needed and self._make_room():
                pass
            # More than is prepared ahead: new segments are made for it, beside the reserve.
            missing = needed - self.store.capacity.room_bytes()
            if (
                missing > 0
                and self.store.capacity.free_bytes() < missing + self.settings.segment_bytes
            ):
                raise StorageFull(f"{missing} bytes are missing")
            return True
        except StorageFull as error:
            self._note_full(needed)
            replies = [Reply.refused(_full(error)) for _ in request.inputs]
            request.answer.set_result(replies)
            return False
        except FastiError:
            return True  # The journal is broken: the committer will find out and say so.

    def _note_full(self, needed_bytes: int) -> None:
        if self.room.refuse(needed_bytes):
            self.housekeeper.ask_for_spare()

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

    def _make_room(self) -> bool:
        try:
            return self.store.capacity.prepare_spare()
        except StorageFull:
            if self.store.give_up_feed():
                return True
            raise

    # Around the sync: the committer's thread

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

    # Failure

    def _fail(self, error: FastiError, undone: list[Work]) -> None:
        """The journal failed: no caller whose work is not durable is told ok."""
        requests = [request for work in undone for request in work.requests]
        full = isinstance(error, StorageFull)
        try:
            for request in requests:
                if not request.answer.done():
                    unknown = OutcomeUnknown(f"storage failed: {error}")
                    request.answer.set_exception(_full(error) if full else unknown)
            if full:
                size_bytes = sum(request.size_bytes for request in requests)
                self._note_full(size_bytes + _FRAME_OVERHEAD_BYTES)
        finally:
            with self._wakeup:
                self._failure = error
                self._wakeup.notify()

    def _seconds_to_recovery(self) -> float | None:
        """With the lock. Longer each time that nothing was written since the last recovery."""
        if self._reopen is None:
            return None if self.housekeeper.is_finishing else 0.0
        return 0.0 if self._closing else self._reopen[1] - self._monotonic()

    def _recover(self) -> bool:
        """One piece of a recovery: drops the engine, then loads it again; False if that can't be done."""
        if self._reopen is not None:
            return self._open_again(self._reopen[0])
        self.committer.stop()
        if self.housekeeper.pause():
            self._drop_engine()
        return True

    def _drop_engine(self) -> None:
        # What was answered when it was written (durability `interval`) is kept if it can be.
        with suppress(FastiError):
            self.store.journal.sync()
        synced = self.store.journal.synced_sequence
        self._failures_in_a_row = 0 if self.committer.committed else self._failures_in_a_row + 1
        for session in list(self.sessions.values()):
            session.lose()
        self.store.close()
        self._plan_reopening(synced)

    def _plan_reopening(self, synced: int) -> None:
        pause_s = back_off(0.005, self._failures_in_a_row, 1.0) if self._failures_in_a_row else 0.0
        self._reopen = (synced, self._monotonic() + pause_s)

    def _open_again(self, synced: int) -> bool:
        # Opening a large directory takes its time: it recovers, and doesn't stand still.
        self._sequencer.idle()
        try:
            self._open(synced)
        except (StorageFull, StorageFailed) as error:
            # It may pass: the disk was full, or a cable was loose.
            self._failure = error
            self._failures_in_a_row += 1
            self._plan_reopening(synced)
            return self._failures_in_a_row <= _FAILURES_MAX
        except Exception as error:
            self._failure = error if isinstance(error, FastiError) else FastiError(repr(error))
            return False
        self._sequencer.busy()
        self.feed.reset()
        # The files are others now, and what was held of the old ones may be deleted.
        self.holds.drop_all()
        _log.warning("the shard has recovered from: %s", self._failure)
        self._failure = self._reopen = None
        self._recovered_at = self._monotonic()
        self.recoveries += 1
        self.housekeeper.resume()
        return True

    def _refuse(self) -> None:
        """The sequencer ends: every caller that waits is told so."""
        with self._wakeup:
            self._stopped = True
            waiting = [*self._taken, *self._urgent, *self._bulk]
            self._urgent.clear()
            self._bulk.clear()
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(self._is_closed())
        if self._failure is not None:
            for session in list(self.sessions.values()):
                session.lose()


def _full(error: FastiError) -> StorageFull:
    """What a caller is told: nothing happened, and when to ask again."""
    reason = f"the disk has no room: {error}"
    return StorageFull(reason, retry_after_us=_FULL_RETRY_US, details=error.details)


def _answer_queries(requests: list[Request], replies: list[Any]) -> bool:
    """Tells the values that need not be durable. True if other requests wait until theirs are."""
    place, others = 0, False
    for request in requests:
        if request.at_once:
            request.tell(replies[place])
        else:
            others = True
        place += len(request.inputs)
    return others
