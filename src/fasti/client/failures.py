"""Failures of gathered sends and acks that nobody looked at: kept until they can be raised."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from fasti.client.outcomes import NAMED_MAX
from fasti.errors import FastiError, RowsFailed


class Failures:
    """Filled by the threads that read answers, emptied by the one that calls. `count` never falls."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        # Receipts report themselves when they are thrown away, which the collector of garbage may do
        # in the middle of anything, this class included.
        self._lock = threading.RLock()
        self._named: list[dict[str, Any]] = []
        self._waiting = 0
        self.count = 0
        # Read without a lock before every send: whether `throw` would raise.
        self.pending = False

    def counted(self, rows: int = 1) -> None:
        """Rows failed, whoever looks at them."""
        with self._lock:
            self.count += rows

    def add(self, operation: str, failures: Iterable[dict[str, Any]]) -> None:
        """Rows that failed and that nobody will look at."""
        with self._lock:
            for failure in failures:
                self._waiting += 1
                if len(self._named) < NAMED_MAX:
                    self._named.append({"operation": operation, "topic": self._topic, **failure})
            self.pending = self._waiting > 0

    def throw(self) -> None:
        """Raises `rows_failed` with what was not looked at, once."""
        with self._lock:
            named, rows = self._named, self._waiting
            self._named, self._waiting, self.pending = [], 0, False
        if rows:
            first = {name: value for name, value in named[0].items() if name != "topic"}
            raise RowsFailed(
                f"{rows} rows of {self._topic!r} came out otherwise than asked, the first: {first}",
                failures=named,
                details={"rows": rows, "topic": self._topic},
            )


def described(error: FastiError) -> dict[str, Any]:
    """An error as a failure's fields."""
    return {"status": error.code, "message": error.message}
