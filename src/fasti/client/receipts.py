"""Receipts: what a producer's `send` gives back at once, and the answer that comes to it later.

A `Shipment` is a batch on its way: rows in columns, one answer for all of them. A `Receipt` is one row
of it and holds nothing else, because there are hundreds of thousands of them a second.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fasti.client.durations import Duration, seconds
from fasti.client.failures import FailureReports, Failures, described
from fasti.client.machines.producer import Parcel
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.transport import TIMEOUT_S
from fasti.errors import FastiError, IllegalTransition, TimedOut
from fasti.model import Outcome as Code

T = TypeVar("T")


def no_receipt(timeout_s: float | None) -> TimedOut:
    """For who has waited so long."""
    return TimedOut(
        f"no receipt within {timeout_s:g} s; the send is still under way, and result(timeout=...) "
        "or connect(timeout=...) waits longer"
    )


class Shipment(Parcel):
    """A batch on its way, and what becomes of it."""

    __slots__ = (
        "_keys",
        "answered",
        "dropped",
        "error",
        "failures",
        "listeners",
        "moves",
        "outcomes",
        "timeout_s",
    )

    def __init__(
        self,
        on_conflict: str,
        failures: Failures,
        partition: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(on_conflict, partition)
        self.failures = failures
        # How long one waits for a single receipt who doesn't say how long.
        self.timeout_s = timeout_s
        self.answered = threading.Event()
        # How often it was sent to another shard instead.
        self.moves = 0
        self.outcomes: Outcomes | None = None
        self.error: FastiError | None = None
        # To be called when the answer is here.
        self.listeners: deque[Callable[[], None]] = deque()
        # Rows whose receipt was thrown away before the answer came; None once it is here.
        self.dropped: deque[int] | None = deque()
        # Of an answer with failures: the rows' keys, to name them.
        self._keys: Sequence[str | None] | None = None

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """The answer is here. Called once, by the producer's threads."""
        self.outcomes, self.error = outcomes, error
        failed = 0
        if error is not None:
            failed = self.rows
        elif outcomes is not None and not outcomes.all_ok:
            failed = int(np.count_nonzero(self._failed(outcomes.codes)))
        if failed:
            self.failures.counted(failed)
            self._keys = self._key_column()
        self.batch = None
        dropped, self.dropped = self.dropped, None
        self.answered.set()
        self._tell()
        if dropped:
            self.report_all(dropped)

    def _key_column(self) -> Sequence[str | None] | None:
        batch = self.batch
        if batch is None:
            return self.columns.get("key")
        return batch.column("key").to_pylist() if "key" in batch.schema.names else None

    def _failed(self, codes: Any) -> Any:
        """Which codes are failures. That `keep` left a message as it was is what was asked for."""
        if self.on_conflict == "keep":
            return (codes != Code.OK) & (codes != Code.DUPLICATE)
        return codes != Code.OK

    def when_answered(self, call: Callable[[], None]) -> None:
        """Calls it once the answer is here, in the thread that brings it or, if it is, in this one."""
        self.listeners.append(call)
        if self.answered.is_set():
            self._tell()

    def _tell(self) -> None:
        # Two threads may be at it: each listener is called once.
        for call in _taken(self.listeners):
            call()

    def failure(self, row: int) -> dict[str, Any] | None:
        """What went wrong with a row, for an error's list; None if nothing did."""
        found: dict[str, Any] = {"row": row}
        keys = self._keys
        if keys is not None and row < len(keys) and keys[row] is not None:
            found["key"] = keys[row]
        if self.error is not None:
            return {**found, **described(self.error)}
        if self.outcomes is None or not self._failed(self.outcomes.codes[row]):
            return None
        return {**found, **self.outcomes[row].to_dict()}

    def drop(self, rows: Sequence[int]) -> None:
        """Receipts were thrown away: if they failed that is reported, now or when it is known."""
        dropped = self.dropped
        if dropped is None:
            self.report_all(deque(rows))
            return
        dropped.extend(rows)
        if self.dropped is None:
            # The answer came in between, and who brought it may not have seen these.
            self.report_all(dropped)

    def report_all(self, dropped: deque[int]) -> None:
        """Tells of rows whose receipts were thrown away. Two threads may be at it: each row once."""
        if self.error is None and (self.outcomes is None or self.outcomes.all_ok):
            return
        self.failures.add("send", (f for row in _taken(dropped) if (f := self.failure(row))))

    def abandon(self) -> None:
        """No row will be looked at."""
        self.drop(range(self.rows))

    def leave_to_parent(self) -> None:
        """In a child process: the answer comes to its parent alone."""
        if not self.answered.is_set():
            self.rows = max(self.rows, len(self.payloads))
            # Nothing failed that has to be told here, and the event may be another thread's.
            self.failures = Failures("", None, FailureReports(logging.DEBUG))
            self.answered = threading.Event()
            self.settle(
                None,
                IllegalTransition(
                    "it was sent before the fork: the parent process has its receipt"
                ),
            )

    def wait(self, timeout_s: float | None, looked: Callable[[], None]) -> Outcomes:
        """The answer for all rows. Raises the error that refused them, or `timed_out`."""
        if not self.answered.wait(timeout_s):
            raise no_receipt(timeout_s)
        looked()
        if self.error is not None:
            raise self.error
        assert self.outcomes is not None
        return self.outcomes


def _taken(rows: deque[T]) -> Iterator[T]:
    with suppress(IndexError):
        while True:
            yield rows.popleft()


class Receipt:
    """What became of one `send`, as soon as it is durable.

    If it is thrown away unread and the send failed, that is counted (`producer.unread_failures`),
    logged, given to `on_failure`, and raised by the producer's next `flush` or `close`; other sends
    go on.
    """

    # The row is kept as its complement once the outcome was read.
    __slots__ = ("_parcel", "_row")

    def __init__(self, parcel: Shipment, row: int) -> None:
        self._parcel = parcel
        self._row = row

    @property
    def done(self) -> bool:
        """Whether the answer is here."""
        return self._parcel.answered.is_set()

    def result(self, timeout: Duration | None = None) -> Outcome:
        """Waits until the send is durable: its `.id`, `.version` and `.status`.

        Raises `timed_out` when there is no answer in time (by default the `timeout` of `connect`, 30
        s), and the error that refused the batch.
        A status other than `ok`, such as `conflict`, is no error here: read it.
        """
        row = self._row if self._row >= 0 else ~self._row
        parcel = self._parcel
        limit_s = parcel.timeout_s if timeout is None else seconds(timeout)
        outcomes = parcel.wait(limit_s, self._looked)
        return outcomes[row]

    def __await__(self) -> Generator[Any, None, Outcome]:
        """In asynchronous code: `outcome = await receipt`. The task waits, and the loop goes on."""
        if not self.done:
            import asyncio

            loop = asyncio.get_running_loop()
            waiting = loop.create_future()

            def answered() -> None:
                if not waiting.done():
                    waiting.set_result(None)

            def wake() -> None:
                # After the loop's end no task is left to wake.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(answered)

            self._parcel.when_answered(wake)
            yield from waiting
        return self.result(0)

    def disown(self) -> None:
        """The caller takes care of a failure: it is raised nowhere else."""
        self._looked()

    def _looked(self) -> None:
        if self._row >= 0:
            self._row = ~self._row

    def __del__(self) -> None:
        row = self._row
        if row >= 0:
            # As `Shipment.drop`, for one: there are as many of these as sends.
            parcel = self._parcel
            dropped = parcel.dropped
            if dropped is None:
                parcel.report_all(deque((row,)))
                return
            dropped.append(row)
            if parcel.dropped is None:
                parcel.report_all(dropped)

    def __repr__(self) -> str:
        if not self.done:
            return "<Receipt: under way>"
        failure = self._parcel.failure(self._row if self._row >= 0 else ~self._row)
        return f"<Receipt: {failure['status'] if failure else 'ok'}>"


class PendingBatch:
    """What `send_batch(..., wait=False)` gives: the outcomes, when they are there."""

    __slots__ = ("_looked", "_parcels", "_places")

    def __init__(self, parcels: list[Shipment], places: NDArray[np.intp] | None = None) -> None:
        self._parcels = parcels
        # Which rows of the batch theirs are, one parcel's after the other's; None: the same.
        self._places = places
        self._looked = False

    @property
    def done(self) -> bool:
        """Whether all answers are here."""
        return all(parcel.answered.is_set() for parcel in self._parcels)

    def result(self, timeout: Duration | None = None) -> Outcomes:
        """Waits until all is durable: by default as long as it is tried, the producer's `deadline`.

        Raises `timed_out`, or the error that refused a batch.
        """
        found = [parcel.wait(seconds(timeout), self._look) for parcel in self._parcels]
        outcomes = Outcomes.joined(found)
        return outcomes if self._places is None else outcomes.placed(self._places)

    def _look(self) -> None:
        self._looked = True

    def __del__(self) -> None:
        if not self._looked:
            for parcel in self._parcels:
                parcel.abandon()
