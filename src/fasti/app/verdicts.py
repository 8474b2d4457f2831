"""What a handler's end means for its message: decided here, carried out elsewhere.

A handler that returns has done its work: ack. If a caller waits for an answer, what it returned is the
answer, and goes with the ack. One that raises has failed: nack, with the error as
the reason, and the topic's retry policy says when it comes again. Two exceptions are not failures but
orders: `Retry` says when it comes again, and may say that this was no attempt, `Reject` makes it dead
at once.
`KeyboardInterrupt` and `SystemExit` mean that the program ends: the message is given back.

Values only; any thread and process may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from fasti.client.durations import Duration
from fasti.client.machines.returns import DueAt, due_again

# As long as the broker's default limit for reasons, in UTF-8.
REASON_BYTES_MAX = 1024

Op = Literal["ack", "nack", "release", "reject", "reply"]


class Retry(Exception):
    """Raised by a handler: not now, again after `delay`, or `at` (`due`) a moment.

        raise fasti.Retry(delay="30s", reason="the mail server is full")

    It counts as an attempt, so after the topic's `max_attempts` the message is dead, with this
    reason. Without a moment the topic's retry policy says when it comes again. With `count=False` the
    attempt doesn't count, and without a moment it comes again at once: bound that yourself.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        reason: str = "",
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        count: bool = True,
    ) -> None:
        super().__init__(reason or "again later")
        self.delay, self.reason, self.at, self.due, self.count = delay, reason, at, due, count
        # Raises here, in the handler, rather than later in a worker thread.
        self.when = due_again(delay, at, due)

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry, (type(self), self.delay, self.reason, self.at, self.due, self.count)


def _retry(kind: type[Retry], delay: Any, reason: str, at: Any, due: Any, count: bool) -> Retry:
    return kind(delay, reason, at=at, due=due, count=count)


class Reject(Exception):
    """Raised by a handler: this message will never succeed. It is dead at once, with the reason.

    raise fasti.Reject("no such order")
    """


class Undecodable(Reject):
    """A payload that can't be made into what the handler takes: trying again would not help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a message. `stop` asks the app to stop as well.

    When it is due again, a delay or a moment says; if neither does, the topic or at once.
    """

    op: Op
    reason: str = ""
    delay_us: int | None = None
    stop: bool = False
    due_us: int | None = None
    # The handler asked for it to come again.
    retry: bool = False
    # Of a reply:
    payload: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] | None = None

    @property
    def good(self) -> bool:
        """Whether the handler has done its work."""
        return self.op in ("ack", "reply")


ACK = Verdict("ack")
GIVE_BACK = Verdict("release")


def judge(error: BaseException) -> Verdict:
    """What an exception that left a handler means."""
    if isinstance(error, Retry):
        op: Op = "nack" if error.count else "release"
        delay_us, due_us = split(error.when)
        return Verdict(op, bounded(str(error)), delay_us, due_us=due_us, retry=True)
    if isinstance(error, Reject):
        return Verdict("reject", bounded(str(error) or type(error).__name__))
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return Verdict("release", type(error).__name__, stop=True)
    return Verdict("nack", bounded(described(error)))


def split(when: int | DueAt | None) -> tuple[int | None, int | None]:
    """A delay or a moment, as a verdict has them."""
    return (None, when.due_us) if isinstance(when, DueAt) else (when, None)


def over_time(limit_us: int) -> Verdict:
    """What a handler that outlived its time limit gets."""
    return Verdict("nack", f"time limit: not done after {limit_us / 1_000_000:g} s")


def described(error: BaseException) -> str:
    """`TypeName: text`, or the name alone."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "(its text can't be made)"
    return f"{name}: {text}" if text else name


def bounded(reason: str, bytes_max: int = REASON_BYTES_MAX) -> str:
    """Cut to what the broker takes, between characters."""
    raw = reason.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    mark = " …".encode()
    return raw[: bytes_max - len(mark)].decode("utf-8", "ignore") + mark.decode()
