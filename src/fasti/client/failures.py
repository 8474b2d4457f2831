"""Rows of gathered sends and acks that failed, and whose outcome the caller never read.

Such a failure belongs to its own receipt: it never stops or fails another caller's send or ack. It is
counted, logged, given to `on_failure`, and raised by `flush` or `close`, once, after everything was
sent. `Failures` are those of one producer or consumer; `FailureReports` tells of them, for all that a
client made.

Receipts report themselves when they are thrown away, which the collector of garbage may do in the
middle of anything. So nothing of the user's runs there, and no log handler: a thread does that, which
is started when there is something to tell and ends when there was nothing for a while.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from fasti.client import forking
from fasti.errors import FastiError, InvalidArgument, RowsFailed

logger = logging.getLogger("fasti.client")

# Of rows that failed, this many are named in an error; all are counted.
NAMED_MAX = 100
# What waits to be told, at most; more is counted and no more than that.
_WAITING_MAX = 10_000
# Failures that are alike (topic, operation, status) are logged once in this time, with their number.
_LOG_EVERY_S = 10.0
_ALIKE_MAX = 1_000
# `flush` and `close` wait so long for callbacks.
_DELIVER_S = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that failed, as `on_failure` gets it.

    `operation` is `send`, `ack`, `nack`, `release`, `reject`, `extend` or `reply`; `status` an outcome
    such as `conflict` or `stale_lease`, or the code of the error that refused it, then with a
    `message`. `id` is None for a send that got none.
    """

    topic: str
    operation: str
    status: str
    key: str | None = None
    id: int | None = None
    message: str | None = None

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Failure:
        """From an entry of `RowsFailed.failures`."""
        return cls(
            fields["topic"],
            fields["operation"],
            fields["status"],
            fields.get("key"),
            fields.get("id") or None,
            fields.get("message"),
        )


OnFailure = Callable[[Failure], object]


def checked_callback(on_failure: OnFailure | None) -> OnFailure | None:
    """A function that can be called, or None."""
    if on_failure is not None and not callable(on_failure):
        raise InvalidArgument(
            f"on_failure must be a function that takes one failure, not {on_failure!r}",
            field="on_failure",
        )
    return on_failure


def call_safely(on_failure: OnFailure, failure: Failure) -> None:
    """Calls it; what it raises is logged and harms nothing."""
    try:
        on_failure(failure)
    except Exception:
        logger.exception("on_failure raised; the failure was %s", failure)


_Item: TypeAlias = "tuple[OnFailure | None, Failure] | threading.Event | None"


class FailureReports:
    """Logs failures and gives them to their callbacks, one at a time, in a thread of its own.

    `count` is how many there were. Any thread may call, also inside a `__del__`.
    """

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._waiting: SimpleQueue[_Item] = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._alike: dict[tuple[str, str, str], _Alike] = {}
        self._skipped = 0
        self.count = 0
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """None: a child begins with new ones."""
        return []

    def _forked(self) -> None:
        """In a child process: what waits to be told is told by the parent."""
        self._waiting, self._lock, self._thread = SimpleQueue(), threading.RLock(), None
        self._alike, self._skipped = {}, 0

    def add(self, on_failure: OnFailure | None, failure: Failure) -> None:
        """A failure to tell of."""
        if sys.is_finalizing():
            # The interpreter throws away what is left, and a thread that is started now never runs.
            return
        with self._lock:
            self.count += 1
            if self._waiting.qsize() >= _WAITING_MAX:
                self._skipped += 1
                return
        self._put((on_failure, failure))

    def deliver(self, timeout: float = _DELIVER_S) -> bool:
        """Waits until all so far were told, unless a callback asks."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        done = threading.Event()
        self._put(done)
        return done.wait(timeout)

    def close(self) -> None:
        """Tells what is left and ends the thread. What comes later starts another."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._put(None)
            thread.join(_DELIVER_S)

    def _put(self, item: _Item) -> None:
        self._waiting.put(item)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fasti-failures", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                item = self._waiting.get(timeout=_LOG_EVERY_S)
            except Empty:
                item = None
            if isinstance(item, tuple):
                self._tell(*item)
                continue
            self._log_rest()
            if item is not None:
                item.set()
            elif self._ends():
                return

    def _ends(self) -> bool:
        with self._lock:
            self._thread = None
            # The collector of garbage may add one at any moment: then it found a thread, or starts one.
            if self._waiting.empty():
                return True
            self._thread = threading.current_thread()
            return False

    def _tell(self, on_failure: OnFailure | None, failure: Failure) -> None:
        self._log(failure)
        if on_failure is not None:
            call_safely(on_failure, failure)

    def _log(self, failure: Failure) -> None:
        name = (failure.topic, failure.operation, failure.status)
        now = time.monotonic()
        alike = self._alike.get(name)
        if alike is None:
            if len(self._alike) >= _ALIKE_MAX:
                self._log_rest()
                self._alike.clear()
            alike = self._alike[name] = _Alike()
        if now < alike.silent_until:
            alike.unlogged += 1
            return
        more, alike.unlogged = alike.unlogged, 0
        alike.silent_until = now + _LOG_EVERY_S
        logger.log(
            self._level,
            "%s on topic %r failed and its outcome was not read: %s (key %r, id %s)%s%s",
            failure.operation,
            failure.topic,
            failure.status,
            failure.key,
            failure.id,
            f": {failure.message}" if failure.message else "",
            f"; {more} more before it" if more else "",
        )

    def _log_rest(self) -> None:
        """How many were like those that were logged."""
        for (topic, operation, status), alike in self._alike.items():
            if alike.unlogged:
                rows, alike.unlogged = alike.unlogged, 0
                logger.log(
                    self._level,
                    "%s on topic %r failed and its outcome was not read: %s, %d more",
                    operation,
                    topic,
                    status,
                    rows,
                )
        with self._lock:
            skipped, self._skipped = self._skipped, 0
        if skipped:
            logger.log(
                self._level, "%d more failures were counted, and given to no callback", skipped
            )


@dataclass(slots=True)
class _Alike:
    silent_until: float = 0.0
    unlogged: int = 0


class Failures:
    """Of one producer or consumer. `count`: rows that failed; `unread`: those nothing looked at.

    Filled by the threads that read answers and by receipts that are thrown away.
    """

    def __init__(
        self,
        topic: str,
        on_failure: OnFailure | None = None,
        reports: FailureReports | None = None,
    ) -> None:
        self._topic = topic
        self._on_failure = checked_callback(on_failure)
        self._reports = reports or FailureReports()
        # The collector of garbage may come by in the middle of this class.
        self._lock = threading.RLock()
        self._named: list[dict[str, Any]] = []
        self._waiting = 0
        self.count = 0
        self.unread = 0
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """None: a child begins with new ones."""
        return []

    def _forked(self) -> None:
        """In a child process: what is to be raised is raised in the parent."""
        self._lock, self._named, self._waiting = threading.RLock(), [], 0

    @property
    def pending(self) -> bool:
        """Whether `throw` would raise."""
        return self._waiting > 0

    def counted(self, rows: int = 1) -> None:
        """Rows failed, whether their outcome is read or not."""
        with self._lock:
            self.count += rows

    def add(self, operation: str, failures: Iterable[dict[str, Any]]) -> None:
        """Rows that failed and whose outcome will not be read."""
        for fields in failures:
            named = {"operation": operation, "topic": self._topic, **fields}
            with self._lock:
                self._waiting += 1
                self.unread += 1
                if len(self._named) < NAMED_MAX:
                    self._named.append(named)
            self._reports.add(self._on_failure, Failure.of(named))

    def throw(self) -> None:
        """Raises `rows_failed` with what was not read, once; callbacks are told before."""
        with self._lock:
            named, rows = self._named, self._waiting
            self._named, self._waiting = [], 0
        if rows:
            self._reports.deliver()
            raise RowsFailed(
                f"{rows} message{'s' * (rows != 1)} of {self._topic!r} failed, and the outcome was "
                f"not read; the first: {_shown(named[0])}",
                failures=named,
                details={"rows": rows, "topic": self._topic},
            )


def _shown(fields: dict[str, Any]) -> str:
    """A failure as people read it, such as `send: conflict (key 'cart-7', id 1)`."""
    names = [f"{name} {fields[name]!r}" for name in ("key", "id") if fields.get(name)]
    text = f"{fields['operation']}: {fields.get('message') or fields.get('status')}"
    return f"{text} ({', '.join(names)})" if names else text


def described(error: FastiError) -> dict[str, Any]:
    """An error as a failure's fields."""
    return {"status": error.code, "message": error.message}
