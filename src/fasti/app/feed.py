"""Messages on their way from a consumer to the workers of a handler.

Workers take for themselves, one message at a time, from what the consumer holds; when it holds
nothing that is due one of them waits for it, and the others wait for their turn. So a message is
taken when a worker is free to begin with it: until then it counts as not started, goes back when no
worker is free for long, and stopping gives it back. Any thread may call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from fasti.app.verdicts import GIVE_BACK, Verdict, bounded
from fasti.errors import FastiError, IllegalTransition, InvalidArgument

logger = logging.getLogger("fasti.app")


class MessageSource(Protocol):
    """What a feed needs of a consumer."""

    def take_now(self) -> Any | None: ...
    def take(self, count: int) -> list[Any]: ...
    def stop(self) -> None: ...


class MessageFeed:
    """The messages of one handler. `failed` is told once what ended it, if that was an error."""

    def __init__(self, source: MessageSource, failed: Callable[[FastiError], None]) -> None:
        self._source = source
        self._failed = failed
        self._turn = threading.Lock()
        self._stopped = False

    def take(self) -> Any | None:
        """The next message, when it is due; None at the end."""
        take_now = self._source.take_now
        while not self._stopped:
            message = take_now()
            if message is None:
                with self._turn:
                    messages = self._fetch(1)
                message = messages[0] if messages else None
            if message is not None:
                if not self._stopped:
                    return message
                carry_out(message, GIVE_BACK)
        return None

    def take_many(self, most: int) -> list[Any]:
        """Up to so many, at least one; none at the end."""
        with self._turn:
            messages = self._fetch(most)
        if self._stopped:
            for message in messages:
                carry_out(message, GIVE_BACK)
            return []
        return messages

    def _fetch(self, most: int) -> list[Any]:
        """With the turn. None at the end."""
        if self._stopped:
            return []
        try:
            messages = self._source.take(most)
        except FastiError as error:
            if not self._stopped:
                self._stopped = True
                self._failed(error)
            return []
        if not messages:
            self._stopped = True
        return messages

    def stop(self) -> None:
        """Hands out no more; the consumer gives back what no worker has begun."""
        self._stopped = True
        self._source.stop()


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


def _when(verdict: Verdict) -> dict[str, Any]:
    """When it is to be due again, if the verdict says it."""
    if verdict.due_us is not None:
        return {"due": verdict.due_us}
    return {} if verdict.delay_us is None else {"delay": verdict.delay_us / 1_000_000}


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
            message.nack(verdict.reason, **_when(verdict))
        elif verdict.op == "reject":
            message.reject(verdict.reason)
        else:
            message.release(**_when(verdict))
    except IllegalTransition:
        return False
    except FastiError as error:
        logger.error("%s of %r was refused: %s", verdict.op, message, error)
        return False
    return True
