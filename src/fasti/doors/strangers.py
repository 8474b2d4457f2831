"""Which connections bring more than they may, decided without any I/O.

A connection is a stranger's until a call of it was let in. gRPC reads a call's body as a whole before
a token is asked for, so what a stranger may bring is bounded by bytes on the wire; and strangers are bounded
in number and in time. A connection that is known may bring as much as a few requests have, each time
until a handler has received something from it.

`line` is for any thread, `judge` for the one that looks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fasti.config import GuardSettings
from fasti.doors.sockets import Accepted


class Why(StrEnum):
    """Why a connection is ended: also the label in the metrics."""

    BYTES = "bytes_before_call"
    TIME = "no_call_in_time"
    NUMBER = "too_many_waiting"
    REQUEST = "request_too_large"


class Line:
    """What the handlers of one connection's calls tell: they count up, in any thread."""

    __slots__ = ("_absent", "_seen", "heard")

    def __init__(self) -> None:
        # Calls that were let in, and messages of them that were received or sent.
        self.heard = 0
        self._seen = 0
        self._absent = 0

    def has_news(self) -> bool:
        """Whether it counted since it was last asked."""
        news, self._seen = self.heard != self._seen, self.heard
        return news

    def is_over(self, present: bool) -> bool:
        """Whether its connection was missing at two looks: one alone may have come too early."""
        self._absent = 0 if present else self._absent + 1
        return self._absent > 1


@dataclass(slots=True)
class _Connection:
    since: float
    known: bool = False
    # What it had brought when a handler last received something.
    base_bytes: int = 0


class Connections:
    """Those of one port. `guarded`: calls need a token, so strangers can be told by it."""

    def __init__(self, settings: GuardSettings, guarded: bool) -> None:
        self._settings = settings
        self._first_bytes = settings.first_bytes_max if guarded else settings.request_bytes_max
        self._lines: dict[str, Line] = {}
        # Around every change of them: handlers add some while others are looked through.
        self._lines_lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self.strangers: dict[int, Accepted] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def line(self, peer: str) -> Line:
        """For the handlers of a call that was let in."""
        line = self._lines.get(peer)
        if line is not None:
            return line
        with self._lines_lock:
            return self._lines.setdefault(peer, Line())

    def judge(self, now: float, looked: Iterable[Accepted]) -> list[tuple[Accepted, Why]]:
        """Which of these to end, and why. `now` is monotonic."""
        ended: list[tuple[Accepted, Why]] = []
        for accepted in looked:
            why = self._judge(now, accepted)
            if why is not None:
                self.strangers.pop(accepted.inode, None)
                ended.append((accepted, why))
        # The oldest first: those who mean it make their call within milliseconds.
        for inode in list(self.strangers)[
            : max(0, len(self.strangers) - self._settings.waiting_max)
        ]:
            ended.append((self.strangers.pop(inode), Why.NUMBER))
        return ended

    def _judge(self, now: float, accepted: Accepted) -> Why | None:
        connection = self._connections.get(accepted.inode)
        if connection is None:
            connection = self._connections[accepted.inode] = _Connection(now)
        line = self._lines.get(accepted.peer)
        if line is not None and line.has_news():
            connection.known, connection.base_bytes = True, accepted.received_bytes
            self.strangers.pop(accepted.inode, None)
        if connection.known:
            beyond = (
                accepted.received_bytes - connection.base_bytes > self._settings.request_bytes_max
            )
            return Why.REQUEST if beyond else None
        if accepted.received_bytes > self._first_bytes:
            return Why.BYTES
        if now - connection.since > self._settings.first_call_us / 1e6:
            return Why.TIME
        self.strangers[accepted.inode] = accepted
        return None

    def forget_closed(self, present: Iterable[Accepted]) -> None:
        """These are all open connections: what is known of others goes."""
        inodes = {accepted.inode for accepted in present}
        peers = {accepted.peer for accepted in present}
        for inode in self._connections.keys() - inodes:
            del self._connections[inode]
            self.strangers.pop(inode, None)
        with self._lines_lock:
            over = [peer for peer, line in self._lines.items() if line.is_over(peer in peers)]
            for peer in over:
                del self._lines[peer]
