"""What a handler's end means for its message: decided here, carried out elsewhere.

A handler that returns has done its work: ack. If somebody waits for an answer, what it returned is the
answer, and goes with the ack. One that raises has failed: nack, with the error as
the reason, and the topic's retry policy says when it comes again. Two exceptions are no failures but
orders: `Retry` gives the message back for later and counts no attempt, `Reject` makes it dead at once.
`KeyboardInterrupt` and `SystemExit` mean that the program ends: the message is given back.

Values only; any thread and process may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fasti.client.durations import Duration, duration_us

# As long as the broker's default limit for reasons, in UTF-8.
REASON_BYTES_MAX = 1024

Op = Literal["ack", "nack", "release", "reject", "reply"]


class Retry(Exception):
    """Raised by a handler: not now, again after `delay`. Counts no attempt.

    raise fasti.Retry(delay="30s")
    """

    def __init__(self, delay: Duration = 0, why: str = "") -> None:
        super().__init__(why or "again later")
        self.delay = delay
        self.delay_us = duration_us(delay, "delay")

    def __reduce__(self) -> tuple[type[Retry], tuple[Duration, str]]:
        return type(self), (self.delay, str(self))


class Reject(Exception):
    """Raised by a handler: this message will never succeed. It is dead at once, with the reason.

    raise fasti.Reject("no such order")
    """


class Undecodable(Reject):
    """A payload that can't be made into what the handler takes: trying again would not help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a message. `stop` asks the app to stop as well."""

    op: Op
    reason: str = ""
    delay_us: int = 0
    stop: bool = False
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
        return Verdict("release", str(error), error.delay_us)
    if isinstance(error, Reject):
        return Verdict("reject", bounded(str(error) or type(error).__name__))
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return Verdict("release", type(error).__name__, stop=True)
    return Verdict("nack", bounded(described(error)))


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
