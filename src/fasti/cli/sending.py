"""Sending many messages from a command: several batches under way, and what became of each row."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from fasti.cli.outcomes import MessageOutcome
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.client.outcomes import Outcomes
    from fasti.client.producer import OnConflict, Producer
    from fasti.client.receipts import PendingBatch

# Batches whose receipts are still to come; the broker is busy while the next one is read.
UNDER_WAY = 4
_HEADERS = pa.map_(pa.string(), pa.string())
_EXPIRES = {"expires", "expires_us", "expires_after_us"}
# Of how many rows the outcomes are kept for people to see.
SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class Common:
    """What the command line says of every message."""

    due_us: int | None = None
    delay_us: int | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None
    priority: int | None = None
    subject: str | None = None
    # The column that says by when messages must be begun, and its value.
    expires: tuple[str, int] | None = None

    def added_to(self, table: pa.Table) -> pa.Table:
        """The table with it. What a row says of itself goes before what is said of all."""
        if self.key is not None:
            if table.num_rows > 1:
                raise InvalidArgument("--key names one message, and there are more", field="key")
            table = _with(table, "key", self.key, pa.string())
        for name in ("due_us", "delay_us"):
            value = getattr(self, name)
            if value is not None:
                table = _timed(table, name, value)
        columns = {
            "headers": (list(self.headers.items()) or None, _HEADERS),
            "content_type": (self.content_type, pa.string()),
            "priority": (self.priority, pa.int32()),
            "subject": (self.subject, pa.string()),
        }
        for name, (content, kind) in columns.items():
            if content is not None and name not in table.column_names:
                table = _with(table, name, content, kind)
        if self.expires is not None and not _EXPIRES & set(table.column_names):
            table = _with(table, *self.expires, pa.int64())
        return table


def _timed(table: pa.Table, name: str, value: int) -> pa.Table:
    """The rows that have neither due nor delay get one."""
    columns = [column for column in ("due_us", "delay_us") if column in table.column_names]
    if not columns:
        return _with(table, name, value, pa.int64())
    missing = functools.reduce(pc.and_, (table.column(column).is_null() for column in columns))
    old = table.column(name) if name in columns else pa.nulls(table.num_rows, pa.int64())
    filled = pc.if_else(missing, value, old)
    if name in columns:
        return table.set_column(table.column_names.index(name), name, filled)
    return table.append_column(name, filled)


def _with(table: pa.Table, name: str, value: object, kind: pa.DataType) -> pa.Table:
    return table.append_column(name, pa.repeat(pa.scalar(value, kind), table.num_rows))


@dataclass(slots=True)
class Sent:
    """What became of the rows. Of a great many only numbers are kept, and the first that failed."""

    keep_all: bool = False
    rows: int = 0
    failed: int = 0
    outcomes: list[tuple[int, MessageOutcome]] = field(default_factory=list)
    failures: list[tuple[int, MessageOutcome]] = field(default_factory=list)

    def take(self, outcomes: Outcomes, keys: list[str | None] | None) -> None:
        """The outcomes of the next rows."""
        if self.keep_all or self.rows + len(outcomes) <= SHOWN_ROWS:
            self.outcomes += self._numbered(outcomes, keys, range(len(outcomes)))
        if len(self.failures) < SHOWN_ROWS:
            self.failures += self._numbered(outcomes, keys, outcomes.failed.tolist()[:SHOWN_ROWS])
        self.rows += len(outcomes)
        self.failed += len(outcomes.failed)

    def _numbered(
        self, outcomes: Outcomes, keys: list[str | None] | None, rows: Iterable[int]
    ) -> Iterator[tuple[int, MessageOutcome]]:
        for row in rows:
            key = None if keys is None else keys[row]
            yield self.rows + row + 1, MessageOutcome.of(outcomes[row], key)


def send_all(
    producer: Producer,
    tables: Iterable[pa.Table],
    on_conflict: OnConflict,
    on_outcomes: Callable[[Outcomes, list[str | None] | None], None],
    partition: int | None = None,
) -> None:
    """Sends tables in their order, reports what became of each, and returns when all is durable."""
    under_way: deque[tuple[PendingBatch, list[str | None] | None]] = deque()

    def settle(most: int) -> None:
        while len(under_way) > most or (under_way and under_way[0][0].done):
            batch, keys = under_way.popleft()
            on_outcomes(batch.result(), keys)

    for table in tables:
        keys = table.column("key").to_pylist() if "key" in table.column_names else None
        sent = producer.send_batch(table, on_conflict=on_conflict, partition=partition, wait=False)
        under_way.append((sent, keys))
        settle(UNDER_WAY)
    settle(0)
