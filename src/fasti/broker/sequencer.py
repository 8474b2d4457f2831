"""The sequencer: takes what callers brought, a bounded piece at a time, and steps the engine.

Callers put requests into its inbox, bulk produce apart: everything else goes first. A turn takes some of
them, decides them in one step, and hands the step to the committer. Nothing else changes the engine, so
that its inputs tell all that it does. While the committer is behind, or bulk waits for room in the
journal, the sequencer waits too.

Its own thread has the turns, or a caller that leads (`enter`). While the shard recovers from a failure,
turns are pieces of the recovery.

A step that raises ends in a recovery, because what it left of the engine can't be trusted; but of it
nothing was written, so no outcome is unknown. The request that raised answers `internal`, the others of
the step are decided by the next engine. Where it can't be told which one raised they are decided one at a
time, and the one that raises again answers `internal`. A command that raises before anything of it was
applied is refused by the engine itself, which goes on.

Nothing here polls: the sequencer sleeps until a command comes or the next moment that the engine asked
for.

While too few of the servers answer that keep a replicated journal (`Committer.no_quorum`) nothing is decided.
What came before waits; what comes then is refused with `no_quorum`, for certain and at once. Only what can't
be said again is taken into the inbox: words of sessions, and what was made for this very engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fasti.broker.committer import Work
from fasti.broker.lanes import Lanes
from fasti.broker.request import Request, find_culprit, fits
from fasti.broker.threads import Driver, Queue
from fasti.core import still_reads
from fasti.core.command import Command
from fasti.core.engine import internal_error
from fasti.core.replies import Asked, Reply, Step
from fasti.core.work import StepFailed
from fasti.errors import (
    Closed,
    FastiError,
    InternalError,
    NoQuorum,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
)

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_FRAME_OVERHEAD_BYTES = 1024
# The housekeeper looks for room as often.
_FULL_RETRY_US = 1_000_000
# Condition variables can't wait for centuries, messages can; and where the system doesn't tell that
# its clock was set, this is how late that is noticed.
_SLEEP_MAX_S = 60.0
# Servers that are away may take a while to come back.
_NO_QUORUM_RETRY_US = 1_000_000
# So often a request is decided anew because its step was void.
_RERUNS_MAX = 4


class Moving(Exception):
    """The engine doesn't stand still: it answers in a step."""


class Sequencer:
    """One per shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._recovery = shard, shard.recovery
        self._wakeup = shard.threads.condition()
        self._urgent: deque[Request] = deque()
        self._bulk = Lanes()
        # Rows that wait.
        self.inbox_rows = 0
        # Bulk that waits until a segment is prepared; it is asked for once.
        self._short_of_room: Request | None = None
        self.closing = False
        # Nothing is decided: the shard is about to be handed over, and callers wait.
        self._held = False
        # It takes nothing any more.
        self.stopped = False
        self._tell_end: list[Callable[[], None]] = []
        # What was taken, and what the last step asked for.
        self._taken: list[Request] = []
        self._last_step: Step | None = None
        # The turn is led by a caller, who leads the committer next.
        self._is_led = False
        # What is produced waits for room; what is taken counts as progress.
        self._produced = Queue(shard.label("produce"), self._bulk_should_go_on)
        shard.threads.add(self._produced)
        self._driver = Driver(
            *(shard.threads, shard.label("fasti-sequencer"), self._wakeup),
            *(self._take, self._turn, self._died),
        )

    # Any thread

    def start(self) -> None:
        """Begins."""
        self._driver.start()

    def enter(self, request: Request, lead: bool = False) -> Future[Any]:
        """A request's answer, to come; with `lead` by this thread, if no other is at it."""
        bulk, rows = request.is_bulk, request.rows
        with self._wakeup:
            if self.closing or self.stopped:
                raise self._is_closed()
            no_quorum = self._shard.committer.no_quorum
            if no_quorum is not None and not request.waits_out:
                if no_quorum.details.get("full") and request.size_bytes:
                    raise full_disk(no_quorum)
                raise self._no_quorum("nothing was done")
            # What frees space and memory gets in for longer than what takes it.
            room = self._shard.settings.inbox_rows_max * (1 if bulk else 2)
            if request.engine is None and self.inbox_rows + rows > room:
                raise Overloaded("the inbox is full", retry_after_us=10_000)
            self.inbox_rows += rows
            (self._bulk if bulk else self._urgent).append(request)
            leads = (
                lead
                and not self._held
                and self._recovery.failure is None
                and self._shard.committer.may_be_led
            )
            leads = leads and self._driver.begin_to_lead()
            # Who has a turn looks for more after it.
            if not leads and not self._driver.in_turn:
                self._wakeup.notify()
        if leads:
            self._is_led = True
            self._driver.lead()
            self._shard.committer.lead()
        return request.answer

    def read_still(self, command: Command) -> Any:
        """The reply to a command that changes nothing while `no_quorum` keeps the engine still.

        In the caller's thread. Raises `no_quorum` if what the engine shows is not all durable, and `Moving` if
        it doesn't stand still.
        """
        with self._wakeup:
            shard = self._shard
            if self.closing or self.stopped:
                raise self._is_closed()
            moves = self._driver.in_turn or self._recovery.failure is not None
            if moves or shard.committer.no_quorum is None:
                raise Moving
            if shard.engine.state.next_frame - 1 > shard.store.journal.synced_sequence:
                raise self._no_quorum("it has changes that may come to nothing")
            return still_reads.read(shard.engine, command, shard.clock.now_us())

    def _no_quorum(self, consequence: str) -> NoQuorum:
        return NoQuorum(
            f"too few servers answer for shard {self._shard.name}: {consequence}",
            retry_after_us=_NO_QUORUM_RETRY_US,
        )

    def wake(self) -> None:
        """Something has changed that it may be waiting for."""
        with self._wakeup:
            self._wakeup.notify()

    def hold(self, held: bool) -> None:
        """Decides nothing for a while; what comes waits. One that is closed decides it after all."""
        with self._wakeup:
            self._held = held
            self._wakeup.notify()

    def fail(self, error: FastiError) -> None:
        """The shard has to recover from this, unless it is fenced."""
        with self._wakeup:
            self._recovery.note(error)
            self._wakeup.notify()

    def note_full(self, size_bytes: int) -> None:
        """There was no room in the journal for so much."""
        self._note_full(size_bytes + _FRAME_OVERHEAD_BYTES)

    def close(self) -> None:
        """Decides what was handed over; returns when its thread has ended."""
        with self._wakeup:
            self.closing = True
            self._wakeup.notify()
        self._driver.join()
        # The threads of a process outlive its shards.
        self._shard.threads.remove(self._produced)

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Calls `tell` in its last turn; at once if that was."""
        with self._wakeup:
            if not self.stopped:
                self._tell_end.append(tell)
                return
        tell()

    def opening(self) -> None:
        """In its turn: opening a large directory takes its time. It recovers, and doesn't stand still."""
        self._driver.idle()

    def opened(self) -> None:
        """In its turn: there is progress again."""
        self._driver.busy()

    def _is_closed(self) -> FastiError:
        if self._recovery.failure is not None:
            return self._shard.end_error(f"the shard could not recover: {self._recovery.failure}")
        return self._shard.end_error()

    # The turn

    def _take(self) -> float | None:
        """With the lock: takes a bounded piece of what there is to do, or says how long to wait."""
        if self._recovery.failure is not None:
            return self._recovery.seconds_left(self.closing)
        if self._taken:
            return 0.0
        if self._held and not self.closing:
            return None
        if self._shard.committer.no_quorum is not None:
            # At the end nothing is waited for: the committer gives up what it has.
            if not self.closing:
                return None
        elif self._shard.committer.is_behind:
            return None
        may_take_bulk = self._may_take_bulk()
        if not (self._urgent or may_take_bulk or self.closing):
            wait_s = self._seconds_to_wake()
            if wait_s is None or wait_s > 0:
                return wait_s
        taken = self._taken
        rows = 0
        produced = len(self._bulk)
        while self._urgent and fits(taken, rows, self._urgent[0]):
            taken.append(self._urgent.popleft())
            rows += taken[-1].rows
        if self.closing or may_take_bulk:
            while self._bulk and fits(taken, rows, self._bulk.first):
                taken.append(self._bulk.popleft())
                rows += taken[-1].rows
        self.inbox_rows -= rows
        self._produced.progress += produced != len(self._bulk)
        return 0.0

    def _turn(self) -> bool:
        led, self._is_led = self._is_led, False
        if self._recovery.failure is not None:
            if self._recovery.go_on():
                return True
            self._refuse()
            return False
        if not self._taken and self.closing and self._stop_if_idle():
            self._refuse()
            return False
        last = self._last_step
        tick = self._shard.ticks.look(last.wake_at_tick if last is not None else None)
        self._last_step = self._step(self._taken, tick, led)
        self._taken = []
        return True

    def _died(self, error: BaseException) -> None:
        """By a fault of the program: the shard has failed for good."""
        self._recovery.failure = InternalError(f"the sequencer failed: {error!r}")
        self._refuse()

    def _stop_if_idle(self) -> bool:
        """The end, unless something came in meanwhile."""
        with self._wakeup:
            self.stopped = not (self._urgent or self._bulk or self._recovery.failure)
            return self.stopped

    def _refuse(self) -> None:
        """The end: every caller that waits is told so."""
        with self._wakeup:
            self.stopped = True
            tell_end, self._tell_end = self._tell_end, []
            waiting = [*self._taken, *self._urgent, *self._bulk]
            self._urgent.clear()
            self._bulk.clear()
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(self._is_closed())
        if self._recovery.failure is not None:
            self._shard.lose_sessions()
        for tell in tell_end:
            tell()

    def _seconds_to_wake(self) -> float | None:
        step = self._last_step
        if step is None:
            return None
        if step.more:
            return 0.0
        waits = []
        if step.wake_at_us is not None:
            waits.append(self._shard.clock.seconds_until(step.wake_at_us))
        # While the ticks stand no moment of theirs comes; it is woken when they go on.
        if step.wake_at_tick is not None and not self._shard.ticks.stand:
            waits.append((step.wake_at_tick - self._shard.ticks.now()) / 1e6)
        return min(*waits, _SLEEP_MAX_S) if waits else None

    # Steps

    def _step(self, requests: list[Request], tick: int, led: bool) -> Step:
        shard = self._shard
        admitted = [request for request in requests if self._admit(request)]
        inputs = [command for request in admitted for command in request.inputs]
        begin = shard.runtime.monotonic()
        try:
            with shard.shared.stepping:
                step = shard.engine.step(inputs, shard.clock.now_us(), tick)
                frames = shard.store.encode(step.frames)
            shard.stalls.since("step", begin, admitted)
            for fault in step.faults:
                shard.faults.note_refused(fault)
            for frame in step.frames:
                if frame.rows is not None:
                    shard.store.payloads.keep(frame.sequence, frame.rows, frame.events[-1].at_us)
            for effect in step.effects:
                if isinstance(effect, Asked):
                    shard.housekeeper.load(effect, shard.engine)
            if _answer_queries(admitted, step.replies) or step.frames or step.effects:
                shard.committer.take_over(Work(step, admitted, frames), wake=not led)
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
            first = requests[0].inputs[0].bare if requests[0].inputs else None
            culprit, command = requests[0], first
        if culprit is not None:
            culprit.answer.set_exception(internal_error(command, cause))
        self._shard.faults.note_dropped(command, cause, failed.serving)
        others = [
            request for request in requests if request is not culprit and not request.answer.done()
        ]
        self._decide_again(others, suspect=not known)
        reason = FastiError(f"the engine failed: {cause!r}")
        reason.__cause__ = cause
        self.fail(reason)

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
                self.inbox_rows += request.rows

    # Room in the journal

    def _bulk_should_go_on(self) -> bool:
        """For the watchdog. Servers that are away are no fault of the broker's."""
        return bool(self._bulk) and self._shard.committer.no_quorum is None

    def _may_take_bulk(self) -> bool:
        """Whether there is bulk, and room for it. While room is made, everything else goes on."""
        if not self._bulk:
            return False
        request, housekeeper = self._bulk.first, self._shard.housekeeper
        if self._shard.store.capacity.room_bytes() >= self._needed_bytes(request):
            return True
        if self._short_of_room is not request:
            self._short_of_room = request
            self._shard.stalls.note("room")
            housekeeper.ask_for_spare()
        return not housekeeper.making_room

    def _needed_bytes(self, request: Request) -> int:
        waiting_bytes = self._shard.committer.waiting_bytes
        return request.size_bytes + _FRAME_OVERHEAD_BYTES + waiting_bytes

    def _admit(self, request: Request) -> bool:
        """Refuses payloads while the disk has no room, so that the rest can still be written."""
        shard = self._shard
        if request.engine is not None and request.engine is not shard.engine:
            request.answer.set_exception(Closed("the engine that this was for is gone"))
            return False
        if not request.size_bytes:
            return True
        needed, capacity = self._needed_bytes(request), shard.store.capacity
        if capacity.room_bytes() >= needed:
            return True
        try:
            while capacity.room_bytes() < needed and self._make_room():
                pass
            # More than is prepared ahead: new segments are made for it, beside the reserve.
            missing = needed - capacity.room_bytes()
            if missing > 0 and capacity.free_bytes() < missing + shard.settings.segment_bytes:
                raise StorageFull(f"{missing} bytes are missing")
            return True
        except StorageFull as error:
            self._note_full(needed)
            replies = [Reply.refused(full_disk(error)) for _ in request.inputs]
            request.answer.set_result(replies)
            return False
        except FastiError:
            return True  # The journal is broken: the committer will find out and say so.

    def _make_room(self) -> bool:
        store = self._shard.store
        try:
            made = store.capacity.prepare_spare()
            if made:
                self._shard.stalls.note("segment")
            return made
        except StorageFull:
            if store.give_up_feed():
                return True
            raise

    def _note_full(self, needed_bytes: int) -> None:
        if self._shard.room.refuse(needed_bytes):
            self._shard.housekeeper.ask_for_spare()


def full_disk(error: FastiError) -> StorageFull:
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
