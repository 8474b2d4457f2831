"""A consumer of a topic on several shards: a session with each, and one way to take from all of them.

The sessions enter their machines with one lock, so that what is shared between them (the places for messages,
who waits for one, what comes next) changes in one step. Each has its own thread and stream: a broker process
that is away is waited for by its own session, and the messages of the others go on. What ends one session for
good (another consumer took the name, the topic is gone) ends the consumer.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from fasti.client import forking
from fasti.client.failures import Failures
from fasti.client.machines.consumer import ConsumerMachine
from fasti.client.machines.holdings import Holdings
from fasti.client.machines.places import Places, SharedCredit
from fasti.client.machines.run import prepare
from fasti.client.session import CLOSE_S, Session, Taking, consumable_settings
from fasti.client.transport import Transport
from fasti.errors import FastiError, Unavailable
from fasti.model import Limits, TopicSettings

logger = logging.getLogger("fasti.client")


class ShardTaking(Taking):
    """Of one session: its own clocks. Takers wait for all of them together."""

    def __init__(self, session: Session, whole: Taking, runtime: Any) -> None:
        super().__init__(runtime, session.lock, session.holding, session.clock, session.wake)
        self._whole = whole

    def notify(self) -> None:
        """With the lock: what takers wait for may have happened."""
        self._whole.notify()


class ShardSession(Session):
    """One of several sessions of a consumer: that with shard `number`."""

    def __init__(self, sessions: Sessions, number: int) -> None:
        transport = sessions.transport.shard(number)
        credit = SharedCredit(sessions.places, sessions.limits.credit_max)
        super().__init__(
            transport,
            sessions.topic,
            sessions.consumer,
            prefetch=None,
            time_limit_us=sessions.time_limit_us,
            limits=sessions.limits,
            group=sessions.group,
            failures=sessions.failures,
            linger=sessions.linger,
            lock=sessions.lock,
            credit=credit,
        )
        self.number = number
        self._sessions = sessions
        self.taking = ShardTaking(self, sessions.taking, transport.runtime)
        credit.join(self.machine, self._work.notify, self.clock.now_us)

    def wake(self) -> None:
        """With the lock: wakes those for whom the machine has something."""
        super().wake()
        self._sessions.look(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """Those that are its own."""
        return [*self.replies._fork_locks()]


class Sessions:
    """What one consumer has with the shards of its topic. As `Session` to the consumer. Any thread."""

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
    ) -> None:
        self.transport, self.topic, self.consumer, self.group = transport, topic, consumer, group
        self.time_limit_us, self.limits, self.linger = time_limit_us, limits, linger
        self.failures = failures or Failures(topic)
        self.lock = threading.Lock()
        self.clock = transport.clock
        self.places = Places(prefetch)
        self.holding = Holdings(self.places)
        self.taking = self._make_taking()
        self.sessions: list[ShardSession] = []
        self._starting = threading.Lock()
        self._closing = self._draining = self._failed = False
        self._closed = threading.Event()
        forking.register(self)

    def _make_taking(self) -> Taking:
        runtime = self.transport.runtime
        return Taking(runtime, self.lock, self.holding, self.clock, self.wake)

    def _make_session(self, number: int) -> ShardSession:
        return ShardSession(self, number)

    def start(self) -> None:
        """Connects to the shards that have a partition of the topic, once. Raises `not_found` if there
        is no such topic, `invalid_argument` if it is of a kind that can't be consumed.
        """
        if self.sessions or self._closing:
            return
        with self._starting:
            if self.sessions or self._closing:
                return
            prepare()
            # A topic that was made anew since it was last asked for may be on other shards.
            self.transport.forget_layout(self.topic)
            numbers = self.transport.layout(self.topic).all_shards
            settings = self._settings(numbers)
            with self.lock:
                if self._closing:
                    return
                sessions = [self._make_session(number) for number in numbers]
                for session in sessions:
                    self.holding.add(session)
                self.sessions = sessions
            for session in sessions:
                session.start(settings)
                if self._draining:
                    with self.lock:
                        session.machine.drain()

    def _settings(self, numbers: list[int]) -> TopicSettings:
        """From any shard of the topic that answers."""
        problem: FastiError | None = None
        for number in numbers:
            try:
                return consumable_settings(self.transport.shard(number), self.topic, self.group)
            except Unavailable as error:
                problem = error
        assert problem is not None
        raise problem

    @property
    def machines(self) -> list[ConsumerMachine]:
        """Those of its sessions."""
        return [session.machine for session in self.sessions]

    def wake(self) -> None:
        """With the lock: wakes those for whom a machine has something."""
        for session in self.sessions:
            session.wake()

    def look(self, session: ShardSession) -> None:
        """With the lock: a session's machine has made a step."""
        self.holding.lower_bounds(session)
        if session.holding.fault is not None and not self._failed:
            self._failed = True
            # Nothing more is taken. What is in hand is still leased, and can be finished.
            for other in self.sessions:
                if other is not session:
                    other.machine.drain()
                    other.wake()

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """The one that its sessions share."""
        return [self.lock]

    def _forked(self) -> None:
        """In a child process: the sessions see to themselves."""
        self._starting = threading.Lock()

    # User threads

    def want(self, rows: int, *, batches: bool = False) -> None:
        """User code works on so many at once; with `batches` it shall not wait for the next ones."""
        window = self.places.window
        if not batches and (not window.adapts or rows <= window.least):
            return
        with self.lock:
            if batches:
                window.want_batches(rows)
            else:
                window.want(rows)
            for session in self.sessions:
                session.machine.want(rows, batches=batches)
                session.wake()

    def drain(self) -> None:
        """Takes no more and gives back what was not started; what is in hand stays leased."""
        with self.lock:
            self._draining = True
            self.holding.end()
            for session in self.sessions:
                session.machine.drain()
                session.wake()
            self.taking.notify()

    def flush(self, timeout: float | None) -> None:
        """Waits until everything that was returned so far is answered. Raises `timed_out`."""
        until = self._until(timeout)
        with self.lock:
            # Everything goes now; then each is waited for.
            for session in self.sessions:
                session.machine.mark()
                session.wake()
        for session in self.sessions:
            session.flush(None if until is None else max(0.0, until - self.taking.monotonic()))

    def close(self, timeout: float | None) -> None:
        """Waits for answers, ends the sessions, gives back what was not started."""
        until = self._until(timeout)
        with self.lock:
            first, self._closing = not self._closing, True
            self.holding.end()
            self.taking.notify()
        if not first:
            # Another thread is at it.
            self._closed.wait(timeout)
            return
        try:
            self._close(until)
        finally:
            self._closed.set()

    def _close(self, until: float | None) -> None:
        problems: list[FastiError] = []
        # Those whose broker is away would use up the time of the others.
        for session in sorted(self.sessions, key=lambda session: not session.machine.known):
            try:
                session.close(self._left_s(until))
            except FastiError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def close_aside(self) -> None:
        """Closes in a thread of its own: the consumer was thrown away."""
        if self.sessions and not self._closing:
            threading.Thread(target=self._close_quietly, name="fasti-close", daemon=True).start()

    def _close_quietly(self) -> None:
        try:
            self.close(CLOSE_S)
        except FastiError as error:
            logger.warning("a consumer of %r was not closed cleanly: %s", self.topic, error)

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else self.taking.monotonic() + timeout

    def _left_s(self, until: float | None) -> float | None:
        return None if until is None else max(0.1, until - self.taking.monotonic())
