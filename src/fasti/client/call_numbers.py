"""The numbers of calls: under its number a call whose answer got lost is made again, and happens once.

Numbers are one shard's: each way to a shard has its own. What comes of a call is remembered by the broker
as long as this side may ask for it, which it tells with every call: the lowest number that is still open.
Any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fasti.client import forking
from fasti.client.flight_errors import was_never_sent
from fasti.client.transport import REPEATABLE, Header
from fasti.errors import CallForgotten, FastiError, OutcomeUnknown, Unavailable
from fasti.protocol.numbered import NUMBERED, ONCE
from fasti.runtime import Runtime


class PendingCall:
    """One call, from its first attempt to its end. Of one thread."""

    __slots__ = ("_begun_at", "_client", "_is_maybe", "_number", "_runtime", "_since", "action")

    def __init__(self, action: str, runtime: Runtime) -> None:
        self.action = action
        self._runtime = runtime
        # Without a number until `CallNumbers` gives it one.
        self._client, self._number, self._since = "", 0, 0
        self._begun_at = 0.0
        # An attempt may have reached the broker, and nobody said what came of it.
        self._is_maybe = False

    def give_number(self, client: str, number: int, since: int) -> None:
        """Before the first attempt."""
        self._client, self._number, self._since = client, number, since

    def header(self, header: Header) -> Header:
        """The header of the next attempt."""
        if not self._number:
            return header
        once: Header = {"client": self._client, "number": self._number}
        if self._since != self._number:
            once["since"] = self._since
        now = self._runtime.monotonic()
        if self._begun_at:
            once["age_us"] = max(1, round((now - self._begun_at) * 1e6))
        else:
            self._begun_at = now
        return {**header, ONCE: once}

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be made again after an attempt that may have reached a broker."""
        return bool(self._number) or self.action in REPEATABLE

    def may_repeat(self, error: FastiError) -> bool:
        """Whether to make it again, after an attempt that failed like this."""
        if isinstance(error, CallForgotten):
            return False
        if isinstance(error, (Unavailable, OutcomeUnknown)):
            self._is_maybe |= not was_never_sent(error)
            return self.is_repeatable
        # Refused for now, before anybody looked for what became of an earlier attempt.
        return bool(self._number) and self._is_maybe and error.retryable

    def give_up(self, error: FastiError) -> FastiError:
        """What its caller is told if it is not made again."""
        if self._number and self._is_maybe and error.retryable:
            return OutcomeUnknown(
                f"{self.action} may have happened or not: {error.message}", details=error.details
            )
        return error


class CallNumbers:
    """Of one way to one shard."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._draw()
        forking.register(self)

    def _draw(self) -> None:
        """A name that no other client has, in this process or another."""
        self._client = os.urandom(16).hex()
        self._last = 0
        # In the order in which they were begun, which is that of the numbers.
        self._open: dict[int, None] = {}

    def _fork_locks(self) -> list[forking.Lock]:
        return [self._lock]

    def _forked(self) -> None:
        """In a child process: the numbers are the parent's."""
        self._draw()

    @contextmanager
    def call(self, action: str) -> Iterator[PendingCall]:
        """A call, with a number if it can have one; it is not made again behind the block."""
        pending = PendingCall(action, self._runtime)
        if action not in NUMBERED:
            yield pending
            return
        with self._lock:
            self._last = number = self._last + 1
            self._open[number] = None
            client, since = self._client, next(iter(self._open))
        pending.give_number(client, number, since)
        try:
            yield pending
        finally:
            with self._lock:
                self._open.pop(number, None)
