"""Producers: putting messages at their moments.

A producer may be used by several threads. Sends are gathered: the first goes at once, what comes
while it is under way goes together as the next batch. Order between one producer's sends holds, over
lost connections too, and a send that is repeated because of one is not a second message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client.closing import Closing
from fasti.client.columns import as_bytes, as_headers, message_batch, one_expiry, pieces
from fasti.client.durations import (
    Duration,
    aware_us,
    check_one_moment,
    duration_us,
    moment_us,
    seconds,
)
from fasti.client.failures import FailureReports, Failures, OnFailure
from fasti.client.machines.producer import GATHER_BYTES, GATHER_ROWS
from fasti.client.outbox import Outbox
from fasti.client.outcomes import Outcomes
from fasti.client.receipts import PendingBatch, Receipt
from fasti.client.transport import Transport
from fasti.core.routing.subjects import check_subjects
from fasti.errors import InvalidArgument
from fasti.model import PRIORITY_MAX, Limits

OnConflict = Literal["reject", "replace", "keep"]
_ON_CONFLICT = ("reject", "replace", "keep")
# Larger batches go in pieces of this size, so that the broker can work on one while it gets the next.
_PIECE_ROWS, _PIECE_BYTES = 16_384, 4 << 20
_PARCEL_ROWS, _PARCEL_BYTES = 8_192, 4 << 20


def checked_partition(partition: int | None) -> int | None:
    """A partition's number, or None."""
    whole = isinstance(partition, int) and not isinstance(partition, bool)
    if partition is not None and (not whole or partition < 0):
        raise InvalidArgument(f"a partition must be a number, not {partition!r}", field="partition")
    return partition


def checked_priority(priority: Any) -> int:
    """A whole number from 0 on."""
    whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not whole or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidArgument(
            f"a priority must be a whole number from 0 to {PRIORITY_MAX}, not {priority!r}",
            field="priority",
            limit=PRIORITY_MAX,
        )
    return int(priority)


def check_conflict(on_conflict: object) -> None:
    """Raises `invalid_argument` if it is no rule for keys that are taken."""
    if on_conflict not in _ON_CONFLICT:
        raise InvalidArgument(
            f"on_conflict must be one of {', '.join(_ON_CONFLICT)}, not {on_conflict!r}",
            field="on_conflict",
        )


@lru_cache(4096)
def _checked_subject(subject: str) -> str:
    check_subjects(pa.array([subject], type=pa.string()))
    return subject


@dataclass(slots=True)
class Cut:
    """A batch as the pieces in which it travels, and by which outbox each does."""

    pieces: list[tuple[Outbox, pa.RecordBatch]]
    # Which rows of the batch theirs are, one piece's after the other's; None: the same.
    places: NDArray[np.intp] | None = None


def cut_pieces(batch: pa.RecordBatch, limits: Limits, atomic: bool) -> list[pa.RecordBatch]:
    """A batch in pieces that each travel by themselves; an atomic one is whole."""
    if atomic:
        return [batch] if batch.num_rows else []
    rows_max = min(limits.batch_rows_max, _PIECE_ROWS)
    return pieces(batch, rows_max, min(limits.batch_bytes_max, _PIECE_BYTES))


class Producer(Closing):
    """Made by `client.producer(topic)`; a context manager that flushes at its end.

        producer = client.producer("emails")
        receipt = producer.send(b"hello", delay="5m", key="user-7")
        receipt.result(timeout=5).id

    `failed` counts the messages that came out otherwise than asked, `unread_failures` those of them
    whose receipts were thrown away.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str = "",
        *,
        limits: Limits | None = None,
        max_block: Duration = "30s",
        deadline: Duration = "2m",
        buffer_rows: int = 200_000,
        buffer_bytes: int = 64 << 20,
        on_failure: OnFailure | None = None,
        reports: FailureReports | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.topic = topic
        self.owner = owner
        self._limits = limits or Limits()
        self._payload_max = self._limits.payload_bytes_max
        self._box: Any = Outbox(
            transport,
            topic,
            owner,
            max_block_s=duration_us(max_block, "max_block") / 1_000_000,
            deadline_s=duration_us(deadline, "deadline") / 1_000_000,
            rows_max=buffer_rows,
            bytes_max=buffer_bytes,
            failures=failures or Failures(topic, on_failure, reports),
        )
        self._machine = self._box.machine

    @property
    def failed(self) -> int:
        """How many messages were refused, or came out as something else than `ok`."""
        return self._box.failures.count

    @property
    def unread_failures(self) -> int:
        """How many of those had a receipt that was thrown away unread."""
        return self._box.failures.unread

    def send(
        self,
        payload: bytes,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        priority: int | None = None,
        subject: str | None = None,
        partition: int | None = None,
        expires: Duration | datetime | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Receipt:
        """Puts one message: after `delay`, `at` an aware datetime, or now. One of them, or `due`: the
        same moment as UTC microseconds, as `send_batch` takes a column of them.

        Returns at once; `receipt.result()` waits until the message is durable. `key` is your own
        name for it, by which it can be changed until it is delivered; when a live message has the
        key, `on_conflict` says what happens: `reject` answers `conflict`, `replace` makes that
        message new, `keep` leaves it and answers `duplicate`.

        `expires` is by when it must be begun: an aware datetime, or a length of time from when it is
        due. What no consumer began by then is never delivered, but dead with the reason `expired`.
        For timelines and priority topics.

        `priority`, 0 first, is for priority topics. `subject` says what it is about, for topics that
        are bound to this one. `partition` names the partition, for messages without keys; in logs
        also for those with one, where a key only chooses the partition.

        Raises `invalid_argument` on bad input, `overloaded` when the buffer stays full for
        `max_block`, `closed`. That other sends failed stops nothing here.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        size_bytes = len(payload)
        if size_bytes > self._payload_max:
            self._refuse("payload", size_bytes, self._payload_max)
        extras: list[tuple[str, Any]] | None = None
        if (
            delay is not None
            or key is not None
            or at is not None
            or due is not None
            or headers is not None
            or content_type is not None
            or priority is not None
            or subject is not None
            or expires is not None
        ):
            extras = self._extras(delay, at, due, key, headers, content_type, priority, subject)
            if expires is not None:
                extras.append(one_expiry(expires))
            # About: it only has to keep a batch far below its limit.
            size_bytes += 64
            if headers is not None or content_type is not None or subject is not None:
                size_bytes += len(str(extras))
        box, machine = self._box, self._machine
        step = None
        try:
            with box.lock:
                parcel = machine.open
                if (
                    parcel is None
                    or parcel.on_conflict != on_conflict
                    or parcel.partition != partition
                ):
                    check_conflict(on_conflict)
                    parcel = box.begin(on_conflict, checked_partition(partition))
                payloads = parcel.payloads
                row = len(payloads)
                payloads.append(payload)
                total_bytes = parcel.size_bytes = parcel.size_bytes + size_bytes
                if extras is not None:
                    for name, value in extras:
                        parcel.put(name, row, value)
                if row >= _PARCEL_ROWS or total_bytes >= _PARCEL_BYTES:
                    box.seal()
                elif machine.idle:
                    step = box.begin_to_lead()
                elif row == GATHER_ROWS or total_bytes >= GATHER_BYTES:
                    box.wake()
            if step is not None:
                box.lead(step)
        except BaseException:
            if step is not None and box.led is step:
                # This first, in one go: the handler of another signal may raise in what follows.
                box.led = None
                box.interrupted()
            raise
        return Receipt(parcel, row)

    def _extras(
        self,
        delay: Any,
        at: Any,
        due: Any,
        key: Any,
        headers: Any,
        content_type: Any,
        priority: Any,
        subject: Any,
    ) -> list[tuple[str, Any]]:
        """The columns that this message uses, checked: one bad row would spoil its batch."""
        found: list[tuple[str, Any]] = []
        if at is not None or due is not None:
            check_one_moment(at, delay, due)
            found.append(("due_us", aware_us(at) if due is None else moment_us(due, "due")))
        elif delay is not None:
            found.append(("delay_us", duration_us(delay, "delay")))
        if key is not None:
            found.append(("key", self._text("key", key, self._limits.key_bytes_max)))
        if headers is not None:
            pairs = as_headers(headers)
            text = "".join(part for pair in pairs for part in pair)
            self._text("headers", text, self._limits.headers_bytes_max, empty=True)
            found.append(("headers", pairs))
        if content_type is not None:
            limit = self._limits.headers_bytes_max
            found.append(("content_type", self._text("content_type", content_type, limit)))
        if priority is not None:
            found.append(("priority", checked_priority(priority)))
        if subject is not None:
            found.append(("subject", _checked_subject(self._text("subject", subject, 1 << 20))))
        return found

    def _text(self, field: str, text: Any, limit: int, empty: bool = False) -> str:
        if not isinstance(text, str) or (not text and not empty):
            raise InvalidArgument(
                f"{field} must be text that is not empty, not {text!r}", field=field
            )
        try:
            # Nothing has more bytes than this; most need no closer look.
            size_bytes = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{field} contains an invalid character: {error}", field=field
            ) from error
        if size_bytes > limit:
            self._refuse(field, size_bytes, limit)
        return text

    def _refuse(self, field: str, size_bytes: int, limit: int) -> None:
        raise InvalidArgument(
            f"{field} has {size_bytes} bytes, the limit is {limit}", field=field, limit=limit
        )

    @overload
    def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = ...,
        due: Any = ...,
        delay: Any = ...,
        key: Any = ...,
        headers: Any = ...,
        content_type: Any = ...,
        atomic: bool = ...,
        on_conflict: OnConflict = ...,
        stage: str = ...,
        priority: Any = ...,
        subject: Any = ...,
        partition: int | None = ...,
        expires: Any = ...,
        wait: Literal[True] = ...,
        timeout: Duration | None = ...,
    ) -> Outcomes: ...

    @overload
    def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = ...,
        due: Any = ...,
        delay: Any = ...,
        key: Any = ...,
        headers: Any = ...,
        content_type: Any = ...,
        atomic: bool = ...,
        on_conflict: OnConflict = ...,
        stage: str = ...,
        priority: Any = ...,
        subject: Any = ...,
        partition: int | None = ...,
        expires: Any = ...,
        wait: Literal[False],
        timeout: Duration | None = ...,
    ) -> PendingBatch: ...

    def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = None,
        due: Any = None,
        delay: Any = None,
        key: Any = None,
        headers: Any = None,
        content_type: Any = None,
        atomic: bool = False,
        on_conflict: OnConflict = "reject",
        stage: str = "",
        priority: Any = None,
        subject: Any = None,
        partition: int | None = None,
        expires: Any = None,
        wait: bool = True,
        timeout: Duration | None = None,
    ) -> Outcomes | PendingBatch:
        """Puts many messages: an outcome for each row, in order.

        `payloads` is a sequence of bytes, an Arrow array, or a whole Arrow table or record batch
        with the columns `payload`, and any of `due` (timestamp with a time zone) or `due_us`, `delay`
        (duration) or `delay_us`, `key`, `headers` (map), `content_type`, `priority`, `subject`,
        `expires` (timestamp with a time zone, or duration). Other columns may be given
        beside it: `at` as aware datetimes, `due` as whole microseconds or aware datetimes, `delay`
        as lengths of time, one of the three; each a column or one value for all.

            producer.send_batch([b"a", b"b"], delay="1h").all_ok
            pending = producer.send_batch(table, wait=False)      # more while it is under way
            pending.result(timeout=5).ids

        With `atomic`, all rows or none; otherwise large batches travel in pieces, one behind
        the other. Raises what `send` raises, and with `wait` the error that refused the batch or
        `timed_out`.
        """
        batch = message_batch(
            payloads, due, delay, key, headers, content_type, priority, subject, at, expires
        )
        cut = self.cut(batch, on_conflict, atomic, checked_partition(partition))
        parcels = []
        for box, piece in cut.pieces:
            with box.lock:
                parcels.append(box.add(piece, on_conflict, atomic, stage, partition))
        pending = PendingBatch(parcels, cut.places)
        return pending.result(timeout) if wait else pending

    def cut(
        self, batch: pa.RecordBatch, on_conflict: str, atomic: bool, partition: int | None = None
    ) -> Cut:
        """A batch as the pieces in which it travels."""
        check_conflict(on_conflict)
        return Cut([(self._box, piece) for piece in cut_pieces(batch, self._limits, atomic)])

    # Whether `send` and `cut` need not wait for a broker.
    _ready = True

    def _get_ready(self) -> None:
        """Waits for what they need, if it is not there."""

    @property
    def outbox(self) -> Any:
        """What is on its way: for the asyncio producer, which waits in another manner."""
        return self._box

    def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything sent so far is durable or has failed.

        Raises `timed_out`, and `rows_failed` for failures whose receipts were thrown away unread,
        after everything was sent; each is raised once.
        """
        self._box.flush(seconds(timeout))
        self._box.failures.throw()

    def close(self, timeout: Duration | None = None) -> None:
        """Flushes, then takes nothing more. Raises what `flush` raises; again: nothing happens."""
        try:
            self._box.flush(seconds(timeout))
        finally:
            self._box.close()
        self._box.failures.throw()

    def __repr__(self) -> str:
        return f"<Producer of {self.topic!r}>"
