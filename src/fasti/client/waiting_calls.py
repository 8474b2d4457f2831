"""A call that waits for its answer, and may be given up by another thread while it waits.

gRPC has no way to end a single call from outside, so such a call is made in a thread of its own, which stays behind
until its time is over; a call on a stream ends with its stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

from fasti.errors import FastiError, Unavailable
from fasti.runtime import Runtime

T = TypeVar("T")


class WaitingCall:
    """One attempt of a call. `give_up` is for any thread, the rest for the one that calls."""

    __slots__ = ("_end", "_lock", "is_given_up", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.is_given_up = False
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None

    def ends_by(self, end: Callable[[], None] | None) -> None:
        """How it is ended from now on; None: not at all."""
        with self._lock:
            self._end = end
            late = self.is_given_up and end is not None
        if late and end is not None:
            end()

    def give_up(self) -> None:
        """Its caller gets an error that says that it may have happened or not."""
        with self._lock:
            self.is_given_up = True
            if self._end is not None:
                self._end()

    def error(self) -> FastiError:
        """What its caller gets then."""
        message = "the broker does not answer, and no longer leads the shard"
        return Unavailable(message, details={"cause": "given up"})

    def wait_aside(self, runtime: Runtime, call: Callable[[], T]) -> T:
        """The result of a call that nothing ends from outside, or the error if it is given up."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:
                with suppress(InvalidStateError):
                    answer.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    answer.set_result(result)

        def end() -> None:
            with suppress(InvalidStateError):
                answer.set_exception(self.error())

        if self.is_given_up:
            raise self.error()
        runtime.thread("fasti-call", run).start()
        self.ends_by(end)
        try:
            return answer.result()
        finally:
            self.ends_by(None)
