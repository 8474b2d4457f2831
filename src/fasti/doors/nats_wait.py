"""A broker that starts before NATS does, or while its servers still look for each other, waits for them.

Whatever may pass is tried again until all steps of the start are done or the time is over. What won't pass by
waiting (credentials that are refused, servers that may lose messages, a cluster with another number of shards) is
raised at once. SIGTERM and Ctrl-C end the process meanwhile: nothing was begun yet.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from fasti.broker.logs import fields
from fasti.doors.lifetime import end
from fasti.errors import FastiError, TimedOut, Unavailable
from fasti.model import back_off

Result = TypeVar("Result")

_log = logging.getLogger("fasti.broker.cluster")

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 1.0
_SAY_EVERY_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class NatsWait:
    """For one start: `seconds` are for all its steps together. For one thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._tries = 0
        self._said_at: float | None = None

    def insist(self, what: str, step: Callable[[], Result]) -> Result:
        """The result of a step. `Unavailable` when the time is over; what waiting doesn't change is raised as it
        is.
        """
        while True:
            self._tries += 1
            try:
                result = step()
            except (TimedOut, Unavailable) as error:
                self._pause(what, error)
                continue
            if self._said_at is not None:
                self._said_at = None
                _log.info("NATS has answered: %s", what, extra=fields(waited_s=self._waited_s()))
            return result

    def _pause(self, what: str, error: FastiError) -> None:
        left_s = self._began + self._seconds - time.monotonic()
        if left_s <= 0:
            raise Unavailable(
                f"NATS was not ready within {self._seconds:g} s: {what} failed, {self._tries} tries in all; "
                f"the last one: {error.message}"
            ) from error
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            extra = fields(waited_s=self._waited_s(), left_s=round(left_s, 1))
            _log.warning("waiting for NATS: %s: %s", what, error.message, extra=extra)
        time.sleep(min(back_off(_PAUSE_FIRST_S, self._tries, _PAUSE_MAX_S), left_s))

    def _waited_s(self) -> float:
        return round(time.monotonic() - self._began, 1)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the process at once, as a stop that was asked for. Also where it is the first process
    of a container, which no signal ends that nobody listens to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        _log.info("stopped", extra=fields(because=signal.Signals(number).name))
        end(0)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
