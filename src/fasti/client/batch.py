"""Many messages in the hands of user code at once, in columns, under their leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client.arguments import ArrowTable
from fasti.client.durations import Duration
from fasti.client.machines.returns import DueAt, Return, Segment, due_again, release_argument
from fasti.client.message import Message, check_reason
from fasti.client.outcomes import Outcomes
from fasti.client.settling import Waiter, await_outcomes
from fasti.errors import IllegalTransition, InvalidArgument


class Batch:
    """Many messages at once, in columns: `table` has id, due_us, version, attempts, key, payload, ...

    for batch in client.consumer("emails").batches(10_000):
        good = check(batch.table)              # a boolean for each row
        batch.nack(~good, "no address")
        batch.ack()                            # the rest
    """

    __slots__ = ("_segments", "_table")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._table: pa.Table | None = None

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._segments)

    @property
    def table(self) -> ArrowTable:
        """The rows as an Arrow table."""
        if self._table is None:
            self._table = pa.Table.from_batches(
                [run.batch.slice(int(rows[0]), len(rows)) for run, rows in self._segments]
            )
        return self._table

    @property
    def reason_bytes_max(self) -> int:
        """How long the reason of a nack may be."""
        return self._segments[0][0].session.reason_bytes_max

    @property
    def messages(self) -> list[Message]:
        """The rows one by one."""
        return [Message(run, row) for run, rows in self._segments for row in rows.tolist()]

    @overload
    def ack(
        self, mask: Any = ..., *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Outcomes: ...

    @overload
    def ack(
        self, mask: Any = ..., *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Outcomes | None: ...

    def ack(
        self, mask: Any = None, *, wait: bool = False, timeout: Duration | None = None
    ) -> Outcomes | None:
        """Done: the rows where `mask` is true, or all that are not finished yet."""
        return self._finish("ack", None, mask, wait, timeout)

    @overload
    def nack(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Outcomes: ...

    @overload
    def nack(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Outcomes | None: ...

    def nack(
        self,
        mask: Any = None,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Outcomes | None:
        """Failed: due again after the topic's retry delay, after `delay` or `at` (`due`), or dead."""
        return self._finish("nack", reason, mask, wait, timeout, due_again(delay, at, due))

    @overload
    def reject(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Outcomes: ...

    @overload
    def reject(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Outcomes | None: ...

    def reject(
        self,
        mask: Any = None,
        reason: str = "",
        *,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Outcomes | None:
        """Failed for good."""
        return self._finish("reject", reason, mask, wait, timeout)

    @overload
    def release(
        self,
        mask: Any = ...,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Outcomes: ...

    @overload
    def release(
        self,
        mask: Any = ...,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Outcomes | None: ...

    def release(
        self,
        mask: Any = None,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Outcomes | None:
        """Given back: due again at once, after `delay`, or `at` (`due`)."""
        return self._finish("release", release_argument(delay, at, due), mask, wait, timeout)

    def _finish(
        self,
        op: str,
        argument: Any,
        mask: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Outcomes | None:
        while segments := self._chosen(mask):
            if op in ("nack", "reject"):
                check_reason(argument, self.reason_bytes_max)
            try:
                returned = Return(op, argument, segments, when=when)
                return self._give_back(returned, wait, timeout)
            except IllegalTransition:
                if mask is not None or not any(run.any_finished(rows) for run, rows in segments):
                    raise
                # Another thread has finished some meanwhile: the rest is fewer.
        return self._nothing(wait)

    def _give_back(self, returned: Return, wait: bool, timeout: Duration | None) -> Outcomes | None:
        if returned.of_one_session:
            return returned.segments[0][0].session.give_back(returned, wait, timeout)
        parts, places = split(returned)
        waiters: list[Waiter] = []
        for part in parts:
            if wait:
                part.waiter = waiter = Waiter()
                waiters.append(waiter)
            part.segments[0][0].session.give_back(part, False, None)
        if not wait:
            return None
        session = returned.segments[0][0].session
        limit_s = session.limit_s(timeout)
        outcomes = [
            await_outcomes(part, waiter, limit_s, session.failures)
            for part, waiter in zip(parts, waiters, strict=True)
        ]
        return Outcomes.joined(outcomes).placed(places)

    def _nothing(self, wait: bool) -> Outcomes | None:
        """What is answered where nothing was left to finish."""
        return Outcomes.joined([]) if wait else None

    def _chosen(self, mask: Any) -> list[Segment]:
        chosen = None if mask is None else _as_mask(mask, len(self))
        found: list[Segment] = []
        begin = 0
        for run, rows in self._segments:
            end = begin + len(rows)
            mine = rows if chosen is None else rows[chosen[begin:end]]
            open_rows = mine[np.frombuffer(run.finished, dtype=np.uint8)[mine] == 0]
            if chosen is not None and len(open_rows) < len(mine):
                raise IllegalTransition("a row of the mask was finished already")
            if len(open_rows):
                found.append((run, open_rows))
            begin = end
        return found

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"


def split(returned: Return) -> tuple[list[Return], NDArray[np.intp]]:
    """A return about rows of several shards as one for each session, see `Return.by_session`.

    Raises `illegal_transition` if a row was finished before: then none of them is sent.
    """
    if any(run.any_finished(rows) for run, rows in returned.segments):
        raise IllegalTransition("a row was finished already")
    return returned.by_session()


def _as_mask(mask: Any, rows: int) -> NDArray[np.bool_]:
    if isinstance(mask, (pa.Array, pa.ChunkedArray)):
        mask = (
            mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()
        )
    chosen = np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.shape != (rows,):
        raise InvalidArgument(f"a mask has a boolean for each of the {rows} rows", field="mask")
    return chosen
