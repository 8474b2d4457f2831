"""Messages on their way from a consumer to the workers of a handler.

Workers take for themselves: whoever finds nothing waiting takes the next few from the consumer, for
all, while the others wait for their turn. So a message is taken when somebody is free to begin with
it: until then it counts as not started, and stopping gives it back. When handlers take microseconds
several are taken at a time, about a millisecond's work, because handing over one by one costs more
than they do.

What waits here is bounded by the consumer's prefetch. Any thread may call.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from fasti.app.verdicts import GIVE_BACK, Verdict, bounded
from fasti.errors import FastiError, IllegalTransition, InvalidArgument

logger = logging.getLogger("fasti.app")

_RUN_MAX = 64
_AHEAD_S = 0.001


class Source(Protocol):
    """What a feed needs of a consumer."""

    def take(self, count: int) -> list[Any]: ...
    def stop(self) -> None: ...


class Feed:
    """The messages of one handler. `failed` is told once what ended it, if that was an error."""

    def __init__(self, source: Source, prefetch: int, failed: Callable[[FastiError], None]) -> None:
        self._source = source
        self._failed = failed
        self._turn = threading.Lock()
        self._ready: deque[Any] = deque()
        self._stopped = False
        self._run_max = max(1, min(_RUN_MAX, prefetch // 2))
        self._run = 1

    def take(self) -> Any | None:
        """The next message, when it is due; None at the end."""
        ready = self._ready
        while not self._stopped:
            try:
                return ready.popleft()
            except IndexError:
                pass
            with self._turn:
                if not ready and not self._stopped:
                    ready.extend(self._fetch(self._run))
        self._give_back()
        return None

    def take_many(self, most: int) -> list[Any]:
        """Up to so many, at least one; none at the end."""
        with self._turn:
            found = self._fetch(most)
        if self._stopped:
            for message in found:
                carry_out(message, GIVE_BACK)
            return []
        return found

    def took(self, seconds: float) -> None:
        """How long a handler took: the next are taken accordingly."""
        run = self._run
        if seconds * run > _AHEAD_S:
            self._run = max(1, run >> 1)
        elif seconds * run < _AHEAD_S / 4 and run < self._run_max:
            self._run = min(self._run_max, run << 1)

    def _fetch(self, most: int) -> list[Any]:
        """With the turn. None at the end."""
        if self._stopped:
            return []
        try:
            found = self._source.take(most)
        except FastiError as error:
            if not self._stopped:
                self._stopped = True
                self._failed(error)
            return []
        if not found:
            self._stopped = True
        return found

    def stop(self) -> None:
        """Hands out no more; what nobody has begun is given back."""
        self._stopped = True
        self._source.stop()
        self._give_back()

    def _give_back(self) -> None:
        while True:
            try:
                message = self._ready.popleft()
            except IndexError:
                return
            carry_out(message, GIVE_BACK)


def _answer(message: Any, verdict: Verdict) -> None:
    """Sends an answer; one that can't be sent, because it is too large, fails the message."""
    try:
        message.reply(
            verdict.payload,
            headers=verdict.headers,
            content_type=verdict.content_type,
            wait=False,
        )
    except InvalidArgument as error:
        logger.error("the answer to %r can't be sent: %s", message, error)
        message.nack(bounded(f"its answer can't be sent: {error.message}"))


def carry_out(message: Any, verdict: Verdict) -> bool:
    """Tells the broker what becomes of a message. False if it was finished before.

    By its handler, which may do so itself, or because the app has stopped meanwhile.
    """
    try:
        if message.finished:
            return False
        if verdict.op == "ack":
            message.ack()
        elif verdict.op == "reply":
            _answer(message, verdict)
        elif verdict.op == "nack":
            message.nack(verdict.reason)
        elif verdict.op == "reject":
            message.reject(verdict.reason)
        else:
            message.release(verdict.delay_us / 1_000_000)
    except IllegalTransition:
        return False
    except FastiError as error:
        logger.error("%s of %r was refused: %s", verdict.op, message, error)
        return False
    return True
