"""Workers of a handler: N threads, each of which takes a message, has it handled, and finishes it.

Where the handler runs is a `Executor`: in the thread itself, or in a process of the thread's own
(`processes.py`). A thread can't be ended from outside. So a handler that runs on past its time limit
only loses its lease (the consumer renews it no longer), and one that runs on past the end of the app
has its message given back; what it says afterwards counts for nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from fasti.app.calls import Call, attempt
from fasti.app.feed import MessageFeed, carry_out
from fasti.app.reports import report
from fasti.app.stats import WorkerTally
from fasti.app.verdicts import ACK, GIVE_BACK, Verdict

logger = logging.getLogger("fasti.app")


class Executor(Protocol):
    """Where a slot's messages are handled. For the slot's thread, but for `abort`."""

    def ready(self, tally: WorkerTally) -> bool:
        """Before a message is taken: makes sure that it could be handled. False: no more."""

    def call(self, message: Any) -> Verdict:
        """Has a message handled. Raises nothing."""

    def abort(self) -> None:
        """Ends the call that is under way, if it can be. Any thread."""

    def end(self) -> None:
        """No more calls will come."""


class ThreadExecutor:
    """Runs the handler in the thread itself."""

    def __init__(self, label: str, call: Call) -> None:
        self._label = label
        self._call = call

    def ready(self, tally: WorkerTally) -> bool:
        """Always."""
        return True

    def call(self, message: Any) -> Verdict:
        """Calls the handler."""
        verdict, error = attempt(self._call, message)
        if not verdict.good:
            report(self._label, message, verdict, error)
        return verdict

    def abort(self) -> None:
        """A thread can't be ended."""

    def end(self) -> None:
        """Nothing to do."""


class Slot:
    """One worker. `message` is what it has in hand."""

    __slots__ = ("executor", "message", "tally", "thread")

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.tally = WorkerTally()
        self.message: Any = None
        self.thread: threading.Thread | None = None


class Slots:
    """All workers of one handler. Started and stopped by the app's threads."""

    def __init__(
        self,
        label: str,
        feed: MessageFeed,
        executors: list[Executor],
        *,
        ended: Callable[[], None],
        stop_asked: Callable[[str], None],
        crashed: Callable[[Exception], None],
    ) -> None:
        self._label = label
        self._feed = feed
        self._slots = [Slot(executor) for executor in executors]
        self._ended = ended
        self._stop_asked = stop_asked
        self._crashed = crashed

    def start(self) -> None:
        """Begins to take messages."""
        for number, slot in enumerate(self._slots):
            name = f"fasti-{self._label}-{number}"
            # Daemons: a handler that hangs must not keep the program from ending.
            slot.thread = threading.Thread(target=self._work, args=(slot,), name=name, daemon=True)
            slot.thread.start()

    def stop(self) -> None:
        """Takes no more messages."""
        self._feed.stop()

    def done(self) -> bool:
        """Whether all workers have ended."""
        return not any(slot.thread and slot.thread.is_alive() for slot in self._slots)

    def abandon(self) -> None:
        """What is still in hand is given back, and ended where it can be."""
        for slot in self._slots:
            message = slot.message
            if message is not None and carry_out(message, GIVE_BACK):
                logger.warning("%s did not end in time: %r is given back", self._label, message)
            slot.executor.abort()

    def join(self, timeout: float) -> None:
        """Waits for workers that are about to end."""
        until = monotonic() + timeout
        for slot in self._slots:
            thread = slot.thread
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - monotonic()))

    def owns(self, thread: threading.Thread) -> bool:
        """Whether the thread is a worker."""
        return any(slot.thread is thread for slot in self._slots)

    def tallies(self) -> list[WorkerTally]:
        """The counts, one for each worker."""
        return [slot.tally for slot in self._slots]

    def _work(self, slot: Slot) -> None:
        try:
            self._handle_all(slot)
            slot.executor.end()
        except Exception as error:
            logger.exception("a worker of %s ended", self._label)
            self._crashed(error)
        finally:
            # The callback looks at `done`, which this thread would still contradict.
            slot.thread = None
            self._ended()

    def _handle_all(self, slot: Slot) -> None:
        feed, executor, tally = self._feed, slot.executor, slot.tally
        take, call = feed.take, executor.call
        while executor.ready(tally):
            message = take()
            if message is None:
                return
            slot.message = message
            tally.in_flight = 1
            verdict = call(message)
            if verdict is ACK:
                # A handler that takes the message may have finished it.
                if not message.finished:
                    carry_out(message, verdict)
                tally.handled += 1
            else:
                carry_out(message, verdict)
                tally.count(verdict)
                if verdict.stop:
                    self._stop_asked(verdict.reason)
            slot.message = None
            tally.in_flight = 0
