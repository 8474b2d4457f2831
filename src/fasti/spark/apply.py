"""`fasti.spark.apply`: a DataFrame carried out row by row, with what became of each row.

`df.write` says what shall be, all of it once; `apply` asks, and answers. No row waits for another:
what can't be done is reported, the rest is done. It is done while `apply` runs, and the outcomes are
saved: looking at them again doesn't do it again. It is not exactly once: a task that fails half-way is
run again by Spark, and rows that it had done then say so (`cancelled`, `conflict`).

The driver only checks columns; the tasks talk to the broker, see `answers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from fasti.client.address import parse_address
from fasti.client.durations import Duration, duration_us
from fasti.client.outcomes import WORDS, Outcomes
from fasti.client.producer import OnConflict
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US
from fasti.spark.answers import ApplyOptions, RowAnswers, shift_us
from fasti.spark.connection import located
from fasti.spark.errors import as_spark_errors
from fasti.spark.options import OPERATIONS
from fasti.spark.rows import RowShape, TaskRows
from fasti.spark.views import MOMENT

_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("clustering", pa.string()),
        pa.field("id", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("by", pa.string()),
        pa.field("at", MOMENT),
    ]
)
# Of the rows that were read: the outcome says by them which row it is about.
_IDENTIFIERS = ("key", "clustering", "id")


def apply(
    df: DataFrame,
    topic: str | None,
    operation: str = "produce",
    *,
    dry_run: bool = False,
    shift: Duration | None = None,
    on_conflict: OnConflict = "reject",
    owner: str = "",
    address: str | None = None,
    token: str | None = None,
    tls_ca: str | None = None,
    tls_client_cert: str | None = None,
    timeout: Duration = "60s",
) -> DataFrame:
    """Carries out a row each, and gives back what became of it.

        late = spark.read.format("fasti").option("topic", "emails").load().filter("due < '2030-01-02'")
        fasti.spark.apply(late, "emails", "cancel", dry_run=True).groupBy("status").count().show()
        fasti.spark.apply(late, "emails", "move", shift="1h").groupBy("status").count().show()

    `operation` and columns are those of `df.write`; `topic` is None where a column says it. The
    outcomes have a row for each, in order: `topic`, `key`, `clustering`, `id`, `status` (`ok`,
    `conflict`, `leased`, `not_found`, ...), `version`, `by` and `at` (who has it and until when, or
    when it ended).

    With `dry_run` nothing is changed: the outcomes are what would become of the rows, asked anew
    whenever the DataFrame is computed. `shift` moves by a length of time, back with a minus: from the
    column `due` if there is one, else from when each message is due now. `on_conflict` is that of
    `Producer.send`. The address is FASTI_ADDRESS, or else port 7170 of this machine; `timeout` is how
    long a broker that is away is waited for.
    """
    with as_spark_errors():
        options = ApplyOptions(
            _checked(operation, shift, on_conflict),
            _place(address, tls_ca, tls_client_cert),
            token,
            owner,
            on_conflict,
            dry_run,
            None if shift is None else shift_us(shift),
            duration_us(timeout, "timeout") / 1_000_000,
        )
        shape = RowShape.of(df.schema, operation, topic is not None, shift is not None)
    identifiers = tuple(
        name for name in _IDENTIFIERS if name in df.columns and name not in shape.columns
    )
    frame = df.select(*shape.columns, *identifiers)
    outcomes = frame.mapInArrow(ApplyTask(options, shape, topic), from_arrow_schema(_SCHEMA))
    # The rows themselves, not a way to compute them: it must not be done again.
    return outcomes if dry_run else outcomes.localCheckpoint(eager=True)


def _place(address: str | None, tls_ca: str | None, tls_client_cert: str | None) -> str:
    place = parse_address(address)
    if place.directory is not None:
        raise InvalidArgument("tasks can't share an embedded broker", field="address")
    return located(str(place), tls_ca, tls_client_cert)


def _checked(operation: str, shift: Any, on_conflict: str) -> str:
    if operation not in OPERATIONS:
        raise InvalidArgument(
            f"operation must be one of {', '.join(OPERATIONS)}, not {operation!r}",
            field="operation",
        )
    if shift is not None and operation != "move":
        raise InvalidArgument("shift is for operation 'move'", field="shift")
    if on_conflict not in ("reject", "replace", "keep"):
        raise InvalidArgument(
            f"on_conflict must be one of reject, replace, keep, not {on_conflict!r}",
            field="on_conflict",
        )
    return operation


@dataclass(frozen=True)
class ApplyTask:
    """What tasks do. Values only."""

    options: ApplyOptions
    shape: RowShape
    topic: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The outcomes of a task's rows, batch by batch."""
        task = TaskContext.get()
        rows = TaskRows(self.shape, f"Spark partition {task.partitionId() if task else 0}")
        spare: dict[str, tuple[str, ...]] = {}
        answers = RowAnswers(self.options)
        with as_spark_errors():
            try:
                for batch in batches:
                    if batch.num_rows:
                        yield self._apply_batch(batch, rows.made_of(batch), answers, spare)
            finally:
                answers.close()

    def _apply_batch(
        self,
        batch: pa.RecordBatch,
        wire: pa.RecordBatch,
        answers: RowAnswers,
        spare: dict[str, tuple[str, ...]],
    ) -> pa.RecordBatch:
        if self.options.shift_us is not None and "due_us" in wire.schema.names:
            wire = _shifted(wire, self.options.shift_us)
        results, order = [], list[pa.Array]()
        for topic, place, mine in _by_topic(wire, self.topic):
            if topic not in spare:
                spare[topic] = self.shape.check_kind(topic, answers.kind(topic))
            mine = mine.drop_columns(list(spare[topic])) if spare[topic] else mine
            rows = batch if place is None else batch.take(place)
            results.append(_result(topic, rows, answers.of(topic, mine)))
            if place is None:
                return results[0]
            order.append(place)
        back = np.argsort(np.concatenate([indices.to_numpy() for indices in order]))
        return pa.concat_batches(results).take(pa.array(back))


def _by_topic(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[str, pa.Array | None, pa.RecordBatch]]:
    """For each topic its rows, and where they stood; None: they are all."""
    if topic is not None:
        yield topic, None, batch
        return
    topics = batch.column("topic")
    rest = batch.drop_columns(["topic"])
    names = pc.unique(topics).to_pylist()
    if len(names) == 1:
        yield names[0], None, rest
        return
    for name in names:
        place = pc.indices_nonzero(pc.equal(topics, name))
        yield name, place, rest.take(place)


def _shifted(batch: pa.RecordBatch, by_us: int) -> pa.RecordBatch:
    due_us = batch.column("due_us").to_numpy() + by_us
    place = batch.schema.get_field_index("due_us")
    return batch.set_column(place, "due_us", pa.array(np.clip(due_us, 0, DUE_MAX_US)))


@cache
def _words() -> pa.Array:
    """When it is needed: with the first list that it is given Arrow loads pandas, in every task."""
    return pa.array(WORDS)


def _result(topic: str, rows: pa.RecordBatch, outcomes: Outcomes) -> pa.RecordBatch:
    """Outcomes beside what they are about."""
    count = rows.num_rows
    names = rows.schema.names
    ids = pa.array(outcomes.ids, mask=outcomes.ids == 0)
    columns = {
        "topic": pa.repeat(pa.scalar(topic), count),
        "key": rows.column("key") if "key" in names else pa.nulls(count, pa.string()),
        "clustering": rows.column("clustering")
        if "clustering" in names
        else pa.nulls(count, pa.string()),
        "id": rows.column("id") if "id" in names else ids,
        "status": _words().take(pa.array(outcomes.codes)),
        "version": pa.array(outcomes.versions, mask=outcomes.versions == 0),
        "by": _sparse(outcomes.by, count, pa.string()),
        "at": _sparse(outcomes.at_us, count, pa.int64()),
    }
    arrays = [columns[field.name].cast(field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _sparse(values: dict[int, Any], count: int, kind: pa.DataType) -> pa.Array:
    """A column that has values in some rows."""
    if not values:
        return pa.nulls(count, kind)
    places = np.full(count, -1, dtype=np.int64)
    places[list(values)] = np.arange(len(values))
    present = pa.array(list(values.values()), type=kind)
    return present.take(pa.array(places, mask=places < 0))
