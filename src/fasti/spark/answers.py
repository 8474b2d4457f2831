"""Asking the broker what becomes of rows, batch by batch: in earnest, or only what would.

Used by tasks; one `RowAnswers` for each. Nothing here knows of Spark.

While a broker is away it is asked again. A change whose answer was lost on the way may have happened
then, and the row says how it is now: `cancelled`, or `conflict` where a version was named.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fasti.client.client import Client
from fasti.client.columns import pieces
from fasti.client.durations import Duration, duration_us
from fasti.client.kv_columns import names_batch
from fasti.client.outcomes import Outcomes
from fasti.client.producer import OnConflict, Producer
from fasti.model import DUE_MAX_US, Outcome
from fasti.spark.connection import client_of
from fasti.spark.patience import patiently

_PIECE_ROWS, _PIECE_BYTES = 50_000, 16 << 20
# How often a shift reads due times again that were changed in between.
_SHIFT_TRIES = 5
_OK, _CONFLICT = int(Outcome.OK), int(Outcome.CONFLICT)


@dataclass(frozen=True)
class ApplyOptions:
    """What is done, and in whose name. Values only: goes to the tasks."""

    operation: str
    address: str
    token: str | None
    owner: str
    on_conflict: OnConflict
    dry_run: bool
    # By how much messages are moved on, or back, from when they are due now.
    shift_us: int | None
    timeout_s: float


class RowAnswers:
    """The broker's answers to the rows of one task, which closes it."""

    def __init__(self, options: ApplyOptions) -> None:
        self._options = options
        self._producers: dict[str, Producer] = {}

    @property
    def _client(self) -> Client:
        return client_of(self._options.address, self._options.token)

    def kind(self, topic: str) -> str:
        """A topic's kind. Raises `not_found`."""
        return patiently(lambda: self._client.topic(topic), self._options.timeout_s).settings.kind

    def of(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        """What became of each row; with `dry_run`, what would."""
        if self._options.operation == "put":
            return self._put(topic, batch)
        if self._options.operation == "produce":
            return (
                self._conflicts(topic, batch) if self._options.dry_run else self._send(topic, batch)
            )
        if self._options.shift_us is None or "due_us" in batch.schema.names:
            return self._call(self._options.operation, topic, batch)
        if self._options.dry_run:
            # Whether a message may be moved or cancelled is one question.
            return self._call("cancel", topic, batch)
        return self._shifted(topic, batch)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()

    # New messages

    def _send(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        producer = self._producers.get(topic)
        if producer is None:
            producer = self._client.producer(topic, owner=self._options.owner)
            self._producers[topic] = producer
        if "partition" not in batch.schema.names:
            return producer.send_batch(batch, on_conflict=self._options.on_conflict)
        numbers, rest = batch.column("partition"), batch.drop_columns(["partition"])
        none = np.zeros(batch.num_rows, dtype=np.int64)
        outcomes = Outcomes(none.astype(np.uint8), none, none)
        for number in numbers.unique().to_pylist():
            mine = (
                numbers.is_null() if number is None else pc.equal(numbers, number).fill_null(False)
            )
            rows = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            sent = producer.send_batch(rest.take(pa.array(rows)), partition=number)
            outcomes = _replaced(outcomes, rows, sent)
        return outcomes

    def _conflicts(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        """Which rows have a key that a live message has, or a row before them."""
        count = batch.num_rows
        codes, ids = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.int64)
        versions = np.ones(count, dtype=np.int64)
        if "key" not in batch.schema.names or batch.column("key").null_count == count:
            return Outcomes(codes, ids, versions)
        keyed = np.flatnonzero(batch.column("key").is_valid().to_numpy(zero_copy_only=False))
        keys = batch.column("key").take(pa.array(keyed))
        rows = self._get(topic, "key", keys)
        live = pc.and_(pc.equal(rows.column("status"), "ok"), rows.column("state").is_valid())
        live = pc.and_(live, pc.not_equal(rows.column("state"), "dead")).fill_null(False)
        is_taken = live.to_numpy(zero_copy_only=False)
        ids[keyed] = np.where(is_taken, _numbers(rows.column("id")), 0)
        versions[keyed] = np.where(is_taken, _numbers(rows.column("version")), 1)
        is_taken |= ~_first(keys)
        codes[keyed[is_taken]] = {"reject": _CONFLICT, "keep": int(Outcome.DUPLICATE)}.get(
            self._options.on_conflict, _OK
        )
        return Outcomes(codes, ids, versions)

    # Changes

    def _call(self, action: str, topic: str, batch: pa.RecordBatch) -> Outcomes:
        header: dict[str, Any] = {"topic": topic}
        if action in ("update", "move", "cancel"):
            header |= {"owner": self._options.owner, "dry_run": self._options.dry_run}
        outcomes = []
        for piece in pieces(batch, _PIECE_ROWS, _PIECE_BYTES):
            ask = partial(self._client.transport.call, action, header, [piece])
            outcomes.append(Outcomes.of_reply(patiently(ask, self._options.timeout_s)[0]))
        return Outcomes.joined(outcomes)

    def _shifted(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        """Moves from when each is due now, with the version that goes with it."""
        column = "id" if "id" in batch.schema.names else "key"
        expected = batch.column("version") if "version" in batch.schema.names else None
        outcomes = self._shift_once(topic, column, batch.column(column), expected)
        for _ in range(_SHIFT_TRIES):
            again = np.flatnonzero(outcomes.codes == _CONFLICT)
            if not len(again) or expected is not None:
                return outcomes
            rows = pa.array(again)
            after = self._shift_once(topic, column, batch.column(column).take(rows), None)
            outcomes = _replaced(outcomes, again, after)
        return outcomes

    def _shift_once(
        self, topic: str, column: str, targets: pa.Array, expected: pa.Array | None
    ) -> Outcomes:
        assert self._options.shift_us is not None
        rows = self._get(topic, column, targets)
        # One that is not there, or not any more, says so itself, wherever it is moved to.
        due_us = np.clip(_numbers(rows.column("due_us")) + self._options.shift_us, 0, DUE_MAX_US)
        versions = rows.column("version") if expected is None else expected
        columns = {column: targets, "version": _one(versions), "due_us": pa.array(due_us)}
        return self._call("move", topic, pa.RecordBatch.from_pydict(columns))

    def _get(self, topic: str, column: str, targets: pa.Array) -> pa.Table:
        messages = self._client.messages(topic, owner=self._options.owner)
        ask = partial(messages.get, payload=False, **{column: targets})
        table: pa.Table = patiently(ask, self._options.timeout_s)
        return table

    # Entries

    def _put(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        if self._options.dry_run:
            return self._compared(topic, batch)
        # A row without a value deletes; those of one name happen in their order.
        outcomes = [self._put_run(topic, run) for run in _runs(batch)]
        return Outcomes.joined(outcomes)

    def _put_run(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        if batch.column("payload").null_count:
            names = [name for name in batch.schema.names if name in _ENTRY]
            return self._call("kv_delete", topic, batch.select(names))
        names = ["value" if name == "payload" else name for name in batch.schema.names]
        return self._call("kv_put", topic, batch.rename_columns(names))

    def _compared(self, topic: str, batch: pa.RecordBatch) -> Outcomes:
        clustering = batch.column("clustering") if "clustering" in batch.schema.names else None
        names = names_batch(batch.column("key"), clustering, None)
        header = {"topic": topic, "value": False}
        ask = partial(self._client.transport.call, "kv_get", header, [names])
        present = _numbers(patiently(ask, self._options.timeout_s)[1][0].column("version"))
        codes = np.zeros(batch.num_rows, dtype=np.uint8)
        if "version" in batch.schema.names:
            expected = batch.column("version")
            has_version = expected.is_valid().to_numpy(zero_copy_only=False)
            codes[has_version & (_numbers(expected) != present)] = _CONFLICT
        deleted = batch.column("payload").is_null().to_numpy(zero_copy_only=False)
        codes[deleted & (present == 0)] = int(Outcome.NOT_FOUND)
        return Outcomes(codes, np.zeros(batch.num_rows, dtype=np.int64), present)


_ENTRY = ("key", "clustering", "version")


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(column: Any) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(_one(column).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _first(keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have a key that none before them has."""
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    first = np.zeros(len(keys), dtype=np.bool_)
    first[np.unique(codes, return_index=True)[1]] = True
    return first


def _runs(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Neighbouring rows that all have a value, or all none."""
    empty = batch.column("payload").is_null().to_numpy(zero_copy_only=False)
    cuts = [0, *(np.flatnonzero(empty[1:] != empty[:-1]) + 1).tolist(), batch.num_rows]
    return [batch.slice(a, b - a) for a, b in pairwise(cuts)]


def _replaced(outcomes: Outcomes, rows: Any, after: Outcomes) -> Outcomes:
    """With other answers for some rows."""
    codes, ids, versions = outcomes.codes.copy(), outcomes.ids.copy(), outcomes.versions.copy()
    codes[rows], ids[rows], versions[rows] = after.codes, after.ids, after.versions
    at_us = outcomes.at_us | {int(rows[row]): value for row, value in after.at_us.items()}
    by = outcomes.by | {int(rows[row]): value for row, value in after.by.items()}
    return Outcomes(codes, ids, versions, at_us, by)


def shift_us(shift: Duration) -> int:
    """A length of time as microseconds; `"-1h"` and negative ones go back."""
    if isinstance(shift, str):
        text = shift.strip()
        return -duration_us(text[1:], "shift") if text[:1] == "-" else duration_us(text, "shift")
    if isinstance(shift, timedelta):
        shift = shift.total_seconds()
    return -duration_us(-shift, "shift") if shift < 0 else duration_us(shift, "shift")
