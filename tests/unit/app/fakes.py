"""Messages and consumers without a broker."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fasti.errors import IllegalTransition


@dataclass
class FakeMessage:
    """Remembers what became of it."""

    payload: bytes = b""
    content_type: str | None = None
    id: int = 1
    topic: str = "emails"
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    due_us: int = 0
    started_us: int = 0
    created: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    attempts: int = 1
    attempts_max: int = 5
    last_reason: str | None = None
    version: int = 1
    ended: tuple[Any, ...] | None = None

    @property
    def finished(self) -> bool:
        return self.ended is not None

    def _end(self, *how: Any) -> None:
        if self.ended is not None:
            raise IllegalTransition("finished before")
        self.ended = how

    def ack(self) -> None:
        self._end("ack")

    def nack(self, reason: str = "", **when: Any) -> None:
        self._end("nack", reason, *when.values())

    def reject(self, reason: str = "") -> None:
        self._end("reject", reason)

    def release(self, **when: Any) -> None:
        self._end("release", *when.values())


class FakeSource:
    """A consumer: hands out what is put, raises what is put, and ends when it is stopped."""

    def __init__(self, *given: Any) -> None:
        self._changed = threading.Condition()
        self._given: deque[Any] = deque(given)
        self._stopped = False
        self.asked: list[int] = []

    def put(self, *given: Any) -> None:
        with self._changed:
            self._given.extend(given)
            self._changed.notify_all()

    @property
    def coming(self) -> list[Any]:
        return list(self._given)

    def take_now(self) -> Any | None:
        with self._changed:
            if self._stopped or not self._given or isinstance(self._given[0], Exception):
                return None
            return self._given.popleft()

    def take(self, count: int) -> list[Any]:
        with self._changed:
            self.asked.append(count)
            self._changed.wait_for(lambda: self._given or self._stopped)
            if self._stopped:
                return []
            if isinstance(self._given[0], Exception):
                raise self._given.popleft()
            found = []
            while self._given and len(found) < count:
                found.append(self._given.popleft())
            return found

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
