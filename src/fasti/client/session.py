"""A consumer's session in threads: connects, writes and reads for a `ConsumerMachine`.

One thread per consumer does what the machine's `poll` says; the stream's reading thread brings what
the broker writes; user threads hand in what they finished. All of them enter the machine with `lock`,
and call `wake` before they leave it. `Taking` is how user threads take messages: they wait on a condition
of that lock.

A consumer of a topic on several shards has a session for each (`sessions.py`): they have one lock, one
window and one way to take.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fasti.client import forking
from fasti.client.absence import absence_of
from fasti.client.durations import Duration, duration_us
from fasti.client.failures import Failures
from fasti.client.machines.consumer import ConsumerMachine, Write
from fasti.client.machines.holding import Holding
from fasti.client.machines.holdings import Holdings
from fasti.client.machines.now import Now
from fasti.client.machines.places import SharedCredit
from fasti.client.machines.returns import Return
from fasti.client.machines.run import Run, prepare
from fasti.client.outcomes import Outcomes
from fasti.client.replies import Replies
from fasti.client.settling import Settling, Waiter, await_outcomes
from fasti.client.topics import check_consumable
from fasti.client.transport import BrokerClock, Content, Header, Stream, Transport
from fasti.errors import Closed, FastiError, TimedOut, Unavailable
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_from_json
from fasti.runtime import ENDED, Runtime, Thread

# A longer sleep than this is cut, so that a clock that leapt is noticed.
SLEEP_MAX_S = 60.0


class Taking:
    """The takers of one consumer. `wake` looks at the machine's flags; it is called with the lock."""

    def __init__(
        self,
        runtime: Runtime,
        lock: threading.Lock,
        holding: Holding | Holdings,
        clock: BrokerClock,
        wake: Callable[[], None],
    ) -> None:
        self._lock, self._holding, self._clock, self._wake = lock, holding, clock, wake
        self._changed = runtime.condition(lock)
        self.monotonic = runtime.monotonic

    def now(self) -> Now:
        """What the clocks show."""
        clock = self._clock
        return Now(self.monotonic(), clock.now_us(), clock.unsure_us, clock.seconds_until)

    def notify(self) -> None:
        """With the lock: what takers wait for may have happened."""
        self._changed.notify_all()

    def look_again(self) -> None:
        """The clock may have leapt."""
        with self._lock:
            self._holding.stir()
            self._wake()

    def await_run(self, until: float | None) -> Run | None:
        """The run whose first held message is due; None at `until` (monotonic), or at the end.

        The caller takes from it by `take_each` or `take_due` and then gives it to `put_back`. Raises
        what ended the session.
        """
        holding = self._holding
        with self._lock:
            while True:
                now = self.now()
                run = holding.due_run(now)
                if run is not None or holding.ended:
                    self._wake()
                    return run
                wait_s = min(holding.watch(now), SLEEP_MAX_S)
                self._wake()
                if until is not None:
                    wait_s = min(wait_s, until - now.s)
                    if until <= now.s:
                        return None
                holding.takers += 1
                self._changed.wait(wait_s)
                holding.takers -= 1

    def put_back(self, run: Run) -> None:
        """What was not taken of a run waits on.

        It never waits for the lock: an iterator that is thrown away puts back wherever Python collects
        it, in the middle of the session's own work, too. Then the next call that takes does it.
        """
        self._holding.put_back(run)
        if self._lock.acquire(blocking=False):
            try:
                self._holding.collect()
                self._wake()
            finally:
                self._lock.release()

    def take_due(self, run: Run, count: int) -> tuple[int, int]:
        """Up to `count` rows of the run that are due now, as [begin, end)."""
        with self._lock:
            rows = self._holding.take_due(run, count, self.now())
            self._wake()
            return rows


logger = logging.getLogger("fasti.client")

_LAST_WORD_S = 1.0
CLOSE_S = 30.0
# What has no answer when the time to close is over is tried once more, for so long.
_LAST_TRY_S = 1.0


class Session:
    """What one consumer has with the broker. Threads as said above."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        consumer: str,
        *,
        prefetch: int | None,
        time_limit_us: int | None,
        limits: Limits,
        group: str = "",
        failures: Failures | None = None,
        linger: bool = True,
        lock: threading.Lock | None = None,
        credit: SharedCredit | None = None,
    ) -> None:
        self.topic, self.group, self.consumer = topic, group, consumer
        # Where actions find what is leased here.
        self.header: Header = {"topic": topic, "group": group} if group else {"topic": topic}
        self.reason_bytes_max = limits.reason_bytes_max
        self.payload_bytes_max = limits.payload_bytes_max
        self.failures = failures or Failures(topic)
        self.settling = Settling(transport, self.header, self.failures, limits.batch_rows_max)
        self.lock = lock or threading.Lock()
        self.clock, self._runtime = transport.clock, transport.runtime
        self.machine = ConsumerMachine(
            topic,
            consumer,
            os.urandom(8).hex(),
            prefetch=prefetch,
            time_limit_us=time_limit_us,
            limits=limits,
            draw=self._runtime.random,
            on_network=transport.on_network,
            linger=linger,
            credit=credit,
        )
        # Every ack counts here, every message is taken there: one step less to go.
        self.gathering = self.machine.gathering
        self.holding = self.machine.holding
        self.machines = [self.machine]
        self.taking = Taking(self._runtime, self.lock, self.holding, self.clock, self.wake)
        self._transport = transport
        # Answers to requests go beside the session, with the acks of what they answer.
        self.replies = Replies(self, transport, self._notify_answered)
        self._work = self._runtime.condition(self.lock)
        self._answered = self._runtime.condition(self.lock)
        self._thread: Thread | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._stream: Stream | None = None
        self._absence = absence_of(transport)
        # Returns that are settled in the machine, and whose failures are not in their books yet.
        self._settling = 0
        self._closed = threading.Event()
        forking.register(self)

    def start(self, settings: TopicSettings | None = None) -> None:
        """Connects, once. Raises `not_found` if there is no such topic, `invalid_argument` if it is
        of a kind that can't be consumed; nothing where its settings are given.
        """
        with self.lock:
            started = self._thread is not None or self.machine.closing
        if started:
            return
        prepare()
        if settings is None:
            settings = consumable_settings(self._transport, self.topic, self.group)
        with self.lock:
            if self._thread is None and not self.machine.closing:
                self.machine.settings = settings
                self._stop_listening = self.clock.listen(self.taking.look_again)
                self._thread = self._runtime.thread(
                    f"fasti-consume-{self.topic}", partial(_run, self), self._turn, self._work
                )
                self._thread.start()

    @property
    def attempts_max(self) -> int:
        """The topic's `max_attempts`; 0 for no bound."""
        return self.machine.settings.max_attempts

    def wake(self) -> None:
        """With the lock: wakes those for whom the machine has something."""
        machine = self.machine
        if machine.work:
            machine.work = False
            self._work.notify()
        if machine.answered:
            machine.answered = False
            self._answered.notify_all()
        if self.holding.changed:
            self.holding.changed = False
            self.taking.notify()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """The session's, and that of its replies."""
        return [self.lock, *self.replies._fork_locks()]

    def _forked(self) -> None:
        """In a child process: name, leases and all that is on its way are the parent's."""
        with self.lock:
            self.machine.abandon(forking.made_before())
            self._thread = self._stream = None
            self._settling = 0
            self._closed = threading.Event()
            self._closed.set()
            self._stop_listening = lambda: None
        self.replies._forked()

    # User threads

    def limit_s(self, timeout: Duration | None) -> float:
        """How long to wait for an answer."""
        return self._transport.timeout_s if timeout is None else duration_us(timeout) / 1_000_000

    def acked(self, run: Run) -> None:
        """A run has gathered acks."""
        if self.gathering.put(run) or self.machine.over:
            with self.lock:
                unsent = self.machine.send_acks()
                self.wake()
            if unsent:
                self._return_afterwards(unsent)

    def give_back(
        self,
        returned: Return,
        wait: bool = False,
        timeout: Duration | None = None,
        *,
        finished: bool = False,
    ) -> Outcomes | None:
        """Sends what is to be told about rows; waits for the outcomes if asked to.

        Raises what `ConsumerMachine.give_back` raises, `timed_out`, and with `wait` the error that
        refused it.
        """
        waiter = None
        if wait:
            returned.waiter = waiter = Waiter()
        with self.lock:
            taken = self.machine.give_back(returned, finished=finished)
            self.wake()
        if not taken:
            self._return_afterwards([returned])
        if waiter is None:
            return None
        return await_outcomes(returned, waiter, self.limit_s(timeout), self.failures)

    def finished_elsewhere(self, run: Run, row: int) -> None:
        """A transaction finished a message: its place is free."""
        with self.lock:
            self.machine.finish_elsewhere(run, row)
            self.wake()

    def in_hand_again(self, run: Run, row: int, *, lost: bool) -> None:
        """What was to finish a message was refused, because its lease is `lost` or otherwise."""
        with self.lock:
            self.machine.put_in_hand(run, row, lost=lost)
            self.wake()

    @property
    def tokens_known(self) -> bool:
        """Whether all leases have the tokens that the broker knows: not while it reconnects."""
        return self.machine.known or self.machine.over

    def await_tokens(self, timeout: float) -> bool:
        """Waits until they are known; False if they are not in time."""
        with self.lock:
            return self._answered.wait_for(lambda: self.tokens_known, timeout)

    def want(self, rows: int, *, batches: bool = False) -> None:
        """User code works on so many at once; with `batches` it shall not wait for the next ones."""
        window = self.machine.credit.window
        if not batches and (not window.adapts or rows <= window.least):
            return  # As known before: every `take` passes here.
        with self.lock:
            self.machine.want(rows, batches=batches)
            self.wake()

    def drain(self) -> None:
        """Takes no more and gives back what was not started; what is in hand stays leased."""
        with self.lock:
            self.machine.drain()
            self.wake()

    def flush(self, timeout: float | None) -> None:
        """Waits until everything that was returned so far is answered. Raises `timed_out`."""
        with self.lock:
            mark = self.machine.mark()
            self.wake()
            # A reply that is refused is returned, so that everything has to be waited for.
            self._await_answers(None if self.replies.busy else mark, timeout)

    def _await_answers(self, mark: int | None, timeout: float | None) -> None:
        """Waits for what was returned before the mark; without one for everything, replies too."""

        def is_answered() -> bool:
            if self._settling or (mark is None and self.replies.busy):
                return False
            return self._thread is None or self.machine.is_answered(mark)

        if not self._answered.wait_for(is_answered, timeout):
            raise TimedOut(f"not everything returned to {self.topic!r} was answered in time")

    def _notify_answered(self) -> None:
        with self.lock:
            self._answered.notify_all()

    # The end

    def close(self, timeout: float | None) -> None:
        """Waits for answers, ends the session, gives back what was not started."""
        with self.lock:
            first = self.machine.close()
            self.wake()
        if not first:
            # Another thread is at it.
            self._closed.wait(timeout)
            return
        try:
            self._close(timeout)
        finally:
            self._closed.set()

    def close_aside(self) -> None:
        """Closes in a thread of its own: the consumer was thrown away."""
        if self._thread is not None and not self.machine.closing:
            threading.Thread(target=self._close_quietly, name="fasti-close", daemon=True).start()

    def _close_quietly(self) -> None:
        try:
            self.close(CLOSE_S)
        except FastiError as error:
            logger.warning("a consumer of %r was not closed cleanly: %s", self.topic, error)

    def _close(self, timeout: float | None) -> None:
        until = None if timeout is None else self._runtime.monotonic() + timeout
        problem: FastiError | None = None
        try:
            with self.lock:
                self.machine.urge()
                self.wake()
                self._await_answers(None, timeout)
        except FastiError as error:
            problem = error
        with self.lock:
            unanswered = self.machine.end()
            self.wake()
        self._stop_listening()
        self._absence.left(id(self))
        if self._thread is not None:
            self._thread.join(_left_s(self._runtime, until, 0.1))
        self._end_stream(until)
        self._return_afterwards(unanswered, until)
        with self.lock:
            unstarted = self.machine.custody.release_unstarted()
        self._return_afterwards(unstarted, until)
        if problem is not None:
            raise problem

    def _end_stream(self, until: float | None) -> None:
        """The broker takes back the credit: nothing more arrives when this has returned."""
        stream = self._stream
        if stream is None:
            return
        stream.finish()
        with self.lock:
            self._answered.wait_for(
                lambda: self._stream is None, _left_s(self._runtime, until, 0.1)
            )
            self.machine.stream_number += 1
        stream.cancel()

    def _return_afterwards(self, returns: list[Return], until: float | None = None) -> None:
        """Without a session, the same goes as actions."""
        self.settling.send(returns, _left_s(self._runtime, until, _LAST_TRY_S))

    # The session's thread

    def _turn(self, wait: bool = False) -> float | None:
        """One step of the machine's; or how long until there is one, for which it may wait."""
        stream: Stream | None = None
        number = 0
        try:
            with self.lock:
                stream, number = self._stream, self.machine.stream_number
                step = self.machine.poll(self.taking.now())
                if step.action == "wait":
                    wait_s = None if step.wait_s == math.inf else step.wait_s
                    if wait:
                        self._work.wait(wait_s)
                    return wait_s
            if step.action == "end":
                return ENDED
            if step.action == "connect":
                self._connect()
            elif step.action == "resume":
                self._lost(number, Unavailable("leases were not renewed in time"), away=False)
            elif stream is not None:
                if step.overlong:
                    logger.warning(
                        "%d messages of %r are held for longer than their time limit",
                        step.overlong,
                        self.topic,
                    )
                _write(stream, step.writes)
        except FastiError as error:
            if stream is not None:
                self._broke(number, error)
            else:
                self._lost(None, error)
        except Exception as error:  # The thread must live as long as its consumer.
            logger.exception("the session of %r on %r", self.consumer, self.topic)
            self._lost(None, FastiError(f"{type(error).__name__}: {error}"))
        return 0.0

    def _connect(self) -> None:
        with self.lock:
            number, identity = self.machine.connect()
        stream = self._transport.consume(
            {"call": "consume", "rows": True, **self.header, **identity},
            lambda header, content: self._arrived(number, header, content),
            lambda error: self._lost(number, error or Closed("the broker ended the session")),
        )
        with self.lock:
            writes = self.machine.open(number, self.taking.now())
            if writes is not None:
                self._stream = stream
        if writes is None:
            # The thread that closed the session could not wait, and doesn't know of this stream.
            stream.cancel()
            return
        try:
            _write(stream, writes)
        except FastiError as error:
            self._broke(number, error)

    def _broke(self, number: int, error: FastiError) -> None:
        """A write failed. The end of the session says more than the write that met it."""
        with self.lock:
            self._work.wait_for(lambda: number != self.machine.stream_number, _LAST_WORD_S)
        self._lost(number, error)

    # The stream's reading thread

    def _arrived(self, number: int, header: Header, content: Content) -> None:
        machine = self.machine
        kind = header.get("kind")
        if kind == "leased" and content is not None:
            run = machine.custody.decode(self, header, content, machine.settings.lease_us)
            with self.lock:
                if number == machine.stream_number:
                    machine.lease(run)
                    self.wake()
            return
        if kind == "error" and machine.ends_session(header):
            self._lost(number, error_from_json(header["error"]))
            return
        with self.lock:
            if number != machine.stream_number:
                return
            settled = machine.receive(header, self.taking.now())
            self.wake()
            self._settling += settled is not None
        if settled is not None:
            returned, error = settled
            try:
                if error is None:
                    outcomes = returned.outcomes(header)
                    returned.settle(outcomes)
                    if not outcomes.all_ok:
                        self.settling.rows_failed(returned, outcomes)
                else:
                    self.settling.failed(returned, error)
            finally:
                self._settled()
        elif kind == "heartbeat" and machine.known:
            self._absence.found(id(self))

    def _settled(self) -> None:
        """A thread that waits until all is answered finds the failures in their books."""
        with self.lock:
            self._settling -= 1
            self._answered.notify_all()

    def _lost(self, number: int | None, error: FastiError, away: bool = True) -> None:
        """The session is lost: it connects again, or user code is told."""
        machine = self.machine
        with self.lock:
            if number is not None and number != machine.stream_number:
                return
            stream, self._stream = self._stream, None
            over = machine.over
            failed = machine.lose(error, self.taking.now())
            self.wake()
            if over:
                return
            # After the machine has listed what is not finished: a reply comes here before it finishes
            # its message, so it is in one of the two lists.
            machine.custody.remember(self.replies.under_way())
            self._settling += 1
        logger.debug("the session of %r on %r ended: %s", self.consumer, self.topic, error)
        if failed is not None or machine.closing:
            self._absence.left(id(self))
        elif away:
            self._absence.lost(id(self), f"consumer {self.consumer!r} of {self.topic!r}", error)
        try:
            for returned in failed or ():
                self.settling.failed(returned, error)
        finally:
            self._settled()
        if stream is not None:
            with suppress(FastiError):
                stream.cancel()


def consumable_settings(transport: Transport, topic: str, group: str) -> TopicSettings:
    """Those of a topic that is to be consumed. Raises `not_found`, `invalid_argument`."""
    header, _ = transport.call("topic", {"topic": topic})
    settings = TopicSettings.from_dict(header["settings"])
    check_consumable(topic, settings.kind, group)
    return settings


def _run(session: Session) -> None:
    while session._turn(wait=True) != ENDED:
        pass


def _left_s(runtime: Runtime, until: float | None, least_s: float) -> float | None:
    return None if until is None else max(least_s, until - runtime.monotonic())


def _write(stream: Stream, writes: list[Write]) -> None:
    for header, returned in writes:
        stream.send(header, None if returned is None else returned.batch())
