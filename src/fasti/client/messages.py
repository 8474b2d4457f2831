"""Pending messages: reading, changing, moving and cancelling them, with a definite answer.

Made by `client.messages(topic)`; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa

from fasti.client.bulk import BulkOutcomes, Progress, each_piece, pending_filter, shift_us
from fasti.client.columns import (
    as_bytes,
    as_headers,
    expiry_or_expiries,
    length_or_lengths,
    moment_or_moments,
    priority_column,
)
from fasti.client.dead_letters import DeadLetters
from fasti.client.durations import (
    Duration,
    aware_us,
    check_one_moment,
    duration_us,
    moment_us,
    optional_moment_us,
)
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.target import ROWS_MAX, Columns, Target, change, change_ids
from fasti.client.transport import Header, Transport
from fasti.core.fields import HEADERS
from fasti.errors import Corruption, InvalidArgument
from fasti.model import DAY_US, DUE_MAX_US, MINUTE_US
from fasti.protocol.single_row import SingleRow

if TYPE_CHECKING:
    from fasti.client.arguments import (
        ArrowBatch,
        ArrowTable,
        Durations,
        Headers,
        Integers,
        MessageMetadata,
        MessageState,
        Moment,
        Moments,
        Payloads,
        PendingMessage,
        Texts,
    )
    from fasti.client.stale import StaleMessages

_FORECAST = {
    "from": "start",
    "from_us": "start",
    "to": "end",
    "to_us": "end",
    "bucket_us": "bucket",
}


class Messages(DeadLetters):
    """The messages of one topic.

        emails = client.messages("emails")
        emails.move(key="user-7", delay="10m").status        # "ok", "conflict", "leased", ...
        emails.cancel(key=["user-7", "user-8"]).counts()     # lists give a batch of outcomes

    Messages are named by `id` or by `key`, one or a list. Before a change, everything that this
    client's producers of the topic have taken is sent and answered, so that a cancel can't overtake
    the send that it means.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        owner: str = "",
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.owner = owner
        self._transport = transport
        self._flush = flush

    def stale(self) -> StaleMessages:
        """Reads that may be out of date, and go on while a cluster's servers have no majority."""
        from fasti.client.stale import StaleMessages

        return StaleMessages(self._transport, self.topic)

    # Changing

    @overload
    def move(
        self,
        *,
        id: int,
        at: datetime | None = ...,
        due: Moment | None = ...,
        delay: Duration | None = ...,
        expires: Duration | datetime | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def move(
        self,
        *,
        key: str,
        at: datetime | None = ...,
        due: Moment | None = ...,
        delay: Duration | None = ...,
        expires: Duration | datetime | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def move(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        at: datetime | Moments | None = ...,
        due: Moment | Moments | None = ...,
        delay: Duration | Durations | None = ...,
        expires: Duration | datetime | Durations | Moments | None = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    def move(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        at: datetime | Moments | None = None,
        due: Moment | Moments | None = None,
        delay: Duration | Durations | None = None,
        expires: Duration | datetime | Durations | Moments | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Gives messages another due time: `at` a datetime, `due` in microseconds, or after `delay`.

        A message that expires still does so at the moment it did before, unless `expires` gives
        another: an aware datetime, or a length of time from the new due time. With `version`, only a message that has it; else the answer is `conflict`. Gives an `Outcome`,
        for lists `Outcomes`. With `dry_run` these are what would become of them: nothing changes.
        """
        target = Target(id, key, version)
        check_one_moment(at, delay, due)
        if at is None and delay is None and due is None:
            raise InvalidArgument("a move needs one of at, delay and due", field="due")
        if delay is not None:
            column: Columns = {"delay_us": length_or_lengths(delay, target.rows)}
        else:
            moment = due if at is None else at
            field = "due" if at is None else "at"
            column = {"due_us": moment_or_moments(moment, target.rows, field)}
        if expires is not None:
            name, column[name] = expiry_or_expiries(expires, target.rows)
        return self._change("move", target, column, dry_run)

    @overload
    def cancel(
        self,
        *,
        id: int,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def cancel(
        self,
        *,
        key: str,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def cancel(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    def cancel(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Cancels messages: after `ok` they are never delivered. `Outcome`, for lists `Outcomes`.

        With `dry_run` these are what would become of them: nothing changes.
        """
        return self._change("cancel", Target(id, key, version), {}, dry_run)

    @overload
    def update(
        self,
        *,
        id: int,
        payload: bytes | None = ...,
        headers: Headers | None = ...,
        content_type: str | None = ...,
        priority: int | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def update(
        self,
        *,
        key: str,
        payload: bytes | None = ...,
        headers: Headers | None = ...,
        content_type: str | None = ...,
        priority: int | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    def update(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        payload: bytes | Payloads | None = ...,
        headers: Headers | Sequence[Headers | None] | None = ...,
        content_type: str | Texts | None = ...,
        priority: int | Integers | None = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    def update(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bytes | Payloads | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        content_type: str | Texts | None = None,
        priority: int | Integers | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Gives messages another payload; headers and content type are replaced with it.

        In a priority topic `priority` is the new one; given alone, the payload stays as it is.
        For a list, `payload` and `priority` may be lists too. `Outcome`, for lists `Outcomes`. With
        `dry_run` these are what would become of them: nothing changes.
        """
        target = Target(id, key, version)
        rows = target.rows
        column: Columns = {}
        if payload is not None:
            payloads: Any = [payload] * rows if _is_single(payload) else payload
            column["payload"] = pa.array([as_bytes(value) for value in payloads], type=pa.binary())
        elif priority is None or headers is not None or content_type is not None:
            raise InvalidArgument("an update needs a payload, or a priority alone", field="payload")
        if priority is not None:
            column["priority"] = priority_column(priority, rows)
        if headers is not None:
            many = [headers] * rows if isinstance(headers, Mapping) else headers
            pairs = [None if row is None else as_headers(row) for row in many]
            column["headers"] = pa.array(pairs, type=HEADERS)
        if content_type is not None:
            types = [content_type] * rows if isinstance(content_type, str) else content_type
            column["content_type"] = pa.array(types, type=pa.string())
        return self._change("update", target, column, dry_run)

    def _change(self, action: str, target: Target, columns: Columns, dry_run: bool) -> Any:
        self._flush()
        header: Header = {"topic": self.topic, "owner": self.owner}
        if dry_run:
            header["dry_run"] = True
        return change(self._transport, action, header, target, columns)

    # Changing by filter

    def cancel_where(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        key_prefix: str | None = None,
        owner: str | None = None,
        state: MessageState | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkOutcomes:
        """Cancels all pending messages that fit every filter; the answer has `counts()`.

            emails.cancel_where(key_prefix="cart-", due_to=tonight).counts()    # {"ok": 8112}
            emails.cancel_where(owner="billing", dry_run=True).ok               # how many it would be

        `owner`: those of this owner, in its name; without it, those of another owner than the
        client's answer `not_owner`. `state` is scheduled, ready or leased; what a consumer has answers
        `leased`. One that another client changes in the same moment answers `conflict` and is left
        alone. The broker goes through them piece by piece; no ids travel. If the call is broken off
        (an error, Ctrl-C), what was cancelled until then is cancelled. To mean all messages, say
        `everything=True`. `progress` is called with how many are done, and how many fitted when it
        began; for that they are counted first.
        """
        chosen = pending_filter(
            due_from=due_from,
            due_to=due_to,
            key_prefix=key_prefix,
            owner=owner,
            state=state,
            everything=everything,
        )
        return self._change_where("cancel_where", chosen, dry_run, progress)

    def move_where(
        self,
        *,
        at: datetime | None = None,
        due: Moment | None = None,
        delay: Duration | None = None,
        by: Duration | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        key_prefix: str | None = None,
        owner: str | None = None,
        state: MessageState | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkOutcomes:
        """Gives all pending messages that fit every filter another due time.

            emails.move_where(by="1h", due_to=tonight)         # each an hour later than it was
            emails.move_where(delay="5m", state="ready")       # all of them five minutes from now

        To the moment `at` (or `due`), `delay` from now, or `by` so much from where each was: `"1h"`,
        `"-30m"`. The filters and the rest are those of `cancel_where`. A message is moved once, also
        if it still fits the filter where it came to.
        """
        chosen = pending_filter(
            due_from=due_from,
            due_to=due_to,
            key_prefix=key_prefix,
            owner=owner,
            state=state,
            everything=everything,
        )
        check_one_moment(at, delay, due)
        if sum(given is not None for given in (at, due, delay, by)) != 1:
            raise InvalidArgument("a move needs one of at, due, delay and by", field="due")
        if by is not None:
            chosen["by_us"] = shift_us(by)
        elif delay is not None:
            chosen["delay_us"] = duration_us(delay, "delay")
        else:
            chosen["due_us"] = moment_us(due, "due") if at is None else aware_us(at)
        return self._change_where("move_where", chosen, dry_run, progress)

    def _change_where(
        self, action: str, chosen: Header, dry_run: bool, progress: Progress | None
    ) -> BulkOutcomes:
        self._flush()
        header = {"topic": self.topic, "owner": chosen.get("of_owner", self.owner), **chosen}
        rehearsal = {**header, "dry_run": True}

        def total() -> int:
            return len(each_piece(self._transport, action, rehearsal))

        return each_piece(
            self._transport, action, rehearsal if dry_run else header, progress, total
        )

    # Reading

    @overload
    def get(self, *, id: int, payload: Literal[True] = ...) -> PendingMessage | None: ...

    @overload
    def get(self, *, key: str, payload: Literal[True] = ...) -> PendingMessage | None: ...

    @overload
    def get(self, *, id: int, payload: bool) -> MessageMetadata | None: ...

    @overload
    def get(self, *, key: str, payload: bool) -> MessageMetadata | None: ...

    @overload
    def get(self, *, id: Integers = ..., key: Texts = ..., payload: bool = ...) -> ArrowTable: ...

    def get(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bool = True,
    ) -> Any:
        """Messages as they are now: a dict or None for one, an Arrow table for a list.

        A table has a row for each that was asked for, with `status`; where a payload can't be read
        because it is damaged on the broker's disk it is null. For one message that is `corruption`;
        `payload=False` tells the rest.
        """
        target = Target(id, key, None)
        header = {"topic": self.topic, "payload": payload}
        tables = []
        part = target.part({})
        for begin in range(0, max(1, part.num_rows), ROWS_MAX):
            piece = part if isinstance(part, SingleRow) else part.slice(begin, ROWS_MAX)
            _, parts = self._transport.call("get", header, [piece])
            tables.append(parts[0])
        table = pa.concat_tables(tables)
        if not target.single:
            return table
        row: dict[str, Any] = table.to_pylist()[0]
        status = row.pop("status")
        if row.get("headers") is not None:
            row["headers"] = dict(row["headers"])
        if status == "ok" and payload and row["payload"] is None:
            raise Corruption(
                f"the payload of message {row['id']} of {self.topic!r} is damaged on the broker's disk "
                "and can't be read; payload=False tells the rest",
                file="",
                offset=0,
                details={"topic": self.topic, "id": row["id"]},
            )
        return row if status == "ok" else None

    def list(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> ArrowTable:
        """The messages that fit every filter, by id, as an Arrow table; at most `limit`.

        The next page begins behind the last id of this one: `after=table["id"][-1].as_py()`.
        `key_prefix` is how the key begins: the broker reads keys for it, so it looks at every
        message that fits the other filters. `reason` is a text that the reason of a dead message
        has, `died_from` and `died_to` say when it died, `consumer` who has a leased one. `columns` are those that are wanted (`["id", "key", "due_us"]`), and no others travel.
        """
        batches = list(
            self.scan(
                due_from=due_from,
                due_to=due_to,
                state=state,
                owner=owner,
                key_prefix=key_prefix,
                reason=reason,
                died_from=died_from,
                died_to=died_to,
                consumer=consumer,
                after=after,
                limit=limit,
                payload=payload,
                columns=columns,
            )
        )
        return pa.Table.from_batches(batches)

    def scan(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = None,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[ArrowBatch]:
        """The same in batches, for any number of messages; a batch may be empty."""
        wanted: Header = {
            "due_from_us": optional_moment_us(due_from, "due_from"),
            "due_to_us": optional_moment_us(due_to, "due_to"),
            "state": state,
            "owner": owner,
            "key_prefix": key_prefix,
            "reason": reason,
            "died_from_us": optional_moment_us(died_from, "died_from"),
            "died_to_us": optional_moment_us(died_to, "died_to"),
            "consumer": consumer,
            "after_id": after,
            "limit": limit,
            "columns": None if columns is None else [*columns],
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._transport.read(
            {"call": "list", "topic": self.topic, "payload": payload, **given}
        )

    def count(self) -> dict[str, int]:
        """How many messages are scheduled, ready, leased, dead, and ever were done or cancelled."""
        header, _ = self._transport.call("count", {"topic": self.topic})
        return dict(header["counts"])

    def forecast(
        self, bucket: Duration = "1h", *, start: Moment | None = None, end: Moment | None = None
    ) -> ArrowTable:
        """How many messages fall due in each bucket of time: `start_us` and `count`, those above 0.

        From `start` (this minute on the broker's clock) to `end` (a thousand buckets later). The start
        and the bucket are whole minutes.
        """
        bucket_us = duration_us(bucket, "bucket")
        from_us = optional_moment_us(start, "start")
        if from_us is None:
            # Forecasts are kept by the minute.
            from_us = self._transport.clock.now_us() // MINUTE_US * MINUTE_US
        to_us = optional_moment_us(end, "end")
        if to_us is None:
            to_us = min(from_us + max(1000 * bucket_us, DAY_US), DUE_MAX_US)
        header = {"topic": self.topic, "from_us": from_us, "to_us": to_us, "bucket_us": bucket_us}
        try:
            _, parts = self._transport.call("forecast", header)
        except InvalidArgument as error:
            # The protocol has other names for them than this call.
            field = _FORECAST.get(error.details.get("field", ""))
            if field is None:
                raise
            limit = error.details.get("limit")
            raise InvalidArgument(f"{field}: {error.message}", field=field, limit=limit) from error
        return parts[0]

    @overload
    def release(self, id: int, *, group: str = ...) -> Outcome: ...

    @overload
    def release(self, id: Integers, *, group: str = ...) -> Outcomes: ...

    def release(self, id: int | Integers, *, group: str = "") -> Outcome | Outcomes:
        """Takes leased messages back without their token, for others: `Outcome`, `Outcomes` for a list.

        For operators, when a worker hangs: end it first, or it may get them again. The attempt doesn't
        count, and what the worker still does with them answers `stale_lease`. A message that no
        consumer has answers `conflict`. `group` names the group of a log.
        """
        header = {"topic": self.topic, "group": group}
        return change_ids(self._transport, "release_leases", header, id)


def _is_single(payload: Any) -> bool:
    return isinstance(payload, (bytes, bytearray, memoryview)) or not isinstance(
        payload, (Sequence, pa.Array, pa.ChunkedArray, np.ndarray)
    )
