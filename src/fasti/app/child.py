"""A worker process of a handler: takes jobs from a pipe, calls the handler, sends verdicts back.

The main thread handles; another reads the pipe, so that the process ends at once when its parent is
gone, in the middle of a handler too. Signals for the whole group, such as Ctrl-C, are the parent's
business and are not heeded here.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import signal
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

from fasti.app.calls import Call, attempt, call_of
from fasti.app.handler import HandlerLocation
from fasti.app.reach import Reach
from fasti.app.verdicts import ACK, Verdict, bounded, split
from fasti.client.columns import as_bytes
from fasti.client.durations import Duration, as_datetime, duration_us
from fasti.client.machines.returns import due_again
from fasti.client.replies import REPLY_TO, asked
from fasti.errors import IllegalTransition, InvalidArgument

_ORPHANED = 3
_TRACE_CHARACTERS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class Job:
    """A message as plain values."""

    id: int
    topic: str
    payload: bytes
    key: str | None
    headers: dict[str, str]
    content_type: str | None
    due_us: int
    started_us: int
    created: datetime
    attempts: int
    attempts_max: int
    last_reason: str | None
    version: int


def job_of(message: Any) -> Job:
    """What a message says, for the pipe."""
    return Job(*(getattr(message, name) for name in Job.__slots__))


@dataclass(slots=True)
class RemoteMessage:
    """What a handler in a worker process gets as its message: reads as `fasti.Message` does.

    What is said about it is carried out by the parent, when the handler has ended.
    """

    _job: Job
    _pipe: Connection
    verdict: Verdict | None = field(default=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    @property
    def due(self) -> datetime:
        """When it was due."""
        return as_datetime(self._job.due_us)

    @property
    def finished(self) -> bool:
        """Whether the handler has said what becomes of it."""
        return self.verdict is not None

    def ack(self, *, wait: bool = False, timeout: Duration | None = None) -> None:
        """Done."""
        self._finish(ACK, wait)

    def nack(
        self,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        """Failed."""
        delay_us, due_us = split(due_again(delay, at, due))
        self._finish(Verdict("nack", bounded(reason), delay_us, due_us=due_us), wait)

    def reject(
        self, reason: str = "", *, wait: bool = False, timeout: Duration | None = None
    ) -> None:
        """Failed for good."""
        self._finish(Verdict("reject", bounded(reason)), wait)

    def release(
        self,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        """Given back."""
        delay_us, due_us = split(due_again(delay, at, due))
        self._finish(Verdict("release", "by its handler", delay_us, due_us=due_us), wait)

    @property
    def reply_to(self) -> str | None:
        """Where the caller waits for an answer to it; None if no caller waits."""
        return self._job.headers.get(REPLY_TO)

    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        wait: bool = False,
    ) -> None:
        """Answers it, and acks it."""
        asked(self._job.headers)
        verdict = Verdict(
            "reply", payload=as_bytes(payload), content_type=content_type, headers=headers
        )
        self._finish(verdict, wait)

    def extend(
        self, length: Duration, *, wait: bool = False, timeout: Duration | None = None
    ) -> None:
        """Has the lease last `length` from now."""
        _refuse_to_wait(wait)
        self._pipe.send(("extend", duration_us(length, "length")))

    def _finish(self, verdict: Verdict, wait: bool) -> None:
        _refuse_to_wait(wait)
        if self.verdict is not None:
            raise IllegalTransition(f"message {self._job.id} was finished already")
        self.verdict = verdict


def _refuse_to_wait(wait: bool) -> None:
    if wait:
        raise InvalidArgument("wait=True is not available in a worker process", field="wait")


def main(place: HandlerLocation, reach: Reach | None, pipe: Connection) -> None:
    """The life of a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler that does nothing, rather than SIG_IGN: programs started from here inherit that.
        signal.signal(number, lambda *_: None)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, jobs), name="fasti-pipe", daemon=True).start()
    with asyncio.Runner() as runner:
        try:
            handler = place.find()
            app = handler.app
            app.in_worker_process(reach)
            call = call_of(handler.function, handler.shape, handler.codec, app.middlewares)
            _run_hooks(runner, app.start_hooks)
        except BaseException as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
            return
        pipe.send(("ready", os.getpid()))
        if handler.shape.is_async:
            call = _awaited(runner, call)
        _handle_all(call, jobs, pipe)
        _run_hooks(runner, app.stop_hooks)
        app.close()


def _read(pipe: Connection, jobs: queue.SimpleQueue[Job | None]) -> None:
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            os._exit(_ORPHANED)
        jobs.put(job)
        if job is None:
            return


def _awaited(runner: asyncio.Runner, call: Call) -> Call:
    return lambda message: runner.run(call(message))


def _run_hooks(runner: asyncio.Runner, hooks: list[Any]) -> None:
    for hook in hooks:
        result = hook()
        if inspect.iscoroutine(result):
            runner.run(result)


def _handle_all(call: Call, jobs: queue.SimpleQueue[Job | None], pipe: Connection) -> None:
    while (job := jobs.get()) is not None:
        message = RemoteMessage(job, pipe)
        verdict, error = attempt(call, message)
        trace = ""
        if error is not None:
            lines = traceback.format_exception(error)
            trace = "".join(lines)[-_TRACE_CHARACTERS_MAX:]
        if message.verdict is not None:
            # What the handler has said itself counts; a request to stop is kept besides.
            verdict = replace(message.verdict, stop=verdict.stop)
        pipe.send(("verdict", (verdict, trace)))
