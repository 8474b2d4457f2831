"""Handlers in worker processes: for work that needs a core of its own, or may crash.

Processes are spawned, never forked: gRPC and fork don't mix. Each slot's thread has one process and a
pipe to it. The parent keeps the session, the leases and their renewals, so that a busy handler can't
starve them; a message goes through the pipe as plain values and its verdict comes back.

A process that dies fails its message and is replaced, with growing pauses while it dies again. One
whose handler runs over its time limit is killed, which fails the message too.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from fasti.app import child
from fasti.app.handler import HandlerLocation
from fasti.app.reach import Reach
from fasti.app.reports import report
from fasti.app.stats import WorkerTally
from fasti.app.verdicts import Verdict, bounded, over_time

logger = logging.getLogger("fasti.app")

_SPAWN = multiprocessing.get_context("spawn")
# multiprocessing keeps a list of children that starting one goes through.
_STARTING = threading.Lock()
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 10.0
_START_S = 60.0
_END_S = 5.0
# A child of the child may keep the pipe open, so the process is looked at as well, now and then.
_LOOK_S = 2.0


class ProcessExecutor:
    """Runs the handler in a process. `reach` is how its handlers' own sends reach a broker; `stopping` ends waits."""

    def __init__(
        self,
        label: str,
        place: HandlerLocation,
        reach: Reach | None,
        time_limit_us: int | None,
        stopping: threading.Event,
        started: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._label = label
        self._place = place
        self._reach = reach
        self._time_limit_us = time_limit_us
        self._stopping = stopping
        self._started = started
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._tally = WorkerTally()
        self._deaths = 0
        self._begun = False
        self._aborted = False

    # The slot's thread

    def ready(self, tally: WorkerTally) -> bool:
        """Starts the process, or a new one in its place. False when the app stops meanwhile."""
        self._tally = tally
        return self._ensure()

    def _ensure(self) -> bool:
        while not self._alive():
            self._let_go()
            if self._begun:
                self._tally.replaced += 1
            if self._deaths:
                pause = min(_PAUSE_FIRST_S * 2 ** (self._deaths - 1), _PAUSE_MAX_S)
                if self._stopping.wait(pause):
                    return False
            if self._stopping.is_set():
                return False
            self._begun = True
            try:
                self._start()
            except Exception as error:
                self._deaths += 1
                logger.error("a worker process of %s can't be started: %s", self._label, error)
        return not self._aborted

    def _alive(self) -> bool:
        if self._process is None or self._pipe is None:
            return False
        try:
            # Nothing is under way, so what can be read is the end.
            return self._process.is_alive() and not self._pipe.poll(0)
        except OSError:
            return False

    def _start(self) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=child.main,
            args=(self._place, self._reach, theirs),
            name=f"fasti-{self._label}",
        )
        try:
            with _STARTING:
                process.start()
        finally:
            theirs.close()
        self._process, self._pipe = process, ours
        reply = self._hear(time.monotonic() + _START_S)
        if reply is None:
            self._kill()
            raise TimeoutError(f"it was not ready within {_START_S:g} s")
        what, value = reply
        if what != "ready":
            raise RuntimeError(value)
        self._started(process.pid or 0)

    def call(self, message: Any) -> Verdict:
        """Sends the message there and waits for the verdict."""
        # It may have died while there was nothing to do, which is not this message's fault.
        if not self._ensure():
            return Verdict("release", "the app stops")
        limit_us = self._time_limit_us
        deadline = None if limit_us is None else time.monotonic() + limit_us / 1_000_000
        try:
            assert self._pipe is not None
            self._pipe.send(child.job_of(message))
            while True:
                reply = self._hear(deadline)
                if reply is None:
                    assert limit_us is not None
                    return self._over_time(message, limit_us)
                what, value = reply
                if what == "extend":
                    message.extend(value / 1_000_000)
                elif what == "verdict":
                    self._deaths = 0
                    return self._verdict(message, *value)
                else:
                    raise EOFError
        except (OSError, EOFError):
            return self._died(message)

    def _hear(self, deadline: float | None) -> tuple[str, Any] | None:
        """What the process says next; None at the deadline. Raises `EOFError` if it has died."""
        assert self._pipe is not None
        assert self._process is not None
        while True:
            wait = _LOOK_S
            if deadline is not None:
                wait = min(wait, deadline - time.monotonic())
                if wait <= 0:
                    return None
            if self._pipe.poll(wait):
                reply: tuple[str, Any] = self._pipe.recv()
                return reply
            if not self._process.is_alive():
                raise EOFError

    def _verdict(self, message: Any, verdict: Verdict, trace: str) -> Verdict:
        if not verdict.good:
            report(self._label, message, verdict, trace=trace)
        return verdict

    def _over_time(self, message: Any, limit_us: int) -> Verdict:
        self._kill()
        verdict = over_time(limit_us)
        report(self._label, message, verdict)
        return verdict

    def _died(self, message: Any) -> Verdict:
        code = self._kill()
        if self._aborted:
            return Verdict("release", "the app stops")
        self._deaths += 1
        reason = f"worker process died ({_why(code)})"
        verdict = Verdict("nack", bounded(reason))
        report(self._label, message, verdict)
        return verdict

    def _kill(self) -> int | None:
        """Makes sure that it has ended; its exit code."""
        process = self._process
        if process is None:
            return None
        # One that closed its pipe has ended or is about to; its own code tells more than ours.
        process.join(0.2)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode
        self._let_go()
        return code

    def _let_go(self) -> None:
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()

    def end(self) -> None:
        """Has the process run its hooks and end; kills it if it doesn't."""
        process, pipe = self._process, self._pipe
        if process is not None and pipe is not None:
            with suppress(OSError):
                pipe.send(None)
            process.join(_END_S)
        self._let_go()

    # Any thread

    def abort(self) -> None:
        """Kills the process: the app's time is over."""
        self._aborted = True
        process = self._process
        if process is not None:
            with suppress(ValueError, AttributeError):
                process.kill()


def _why(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
