"""Leased messages as rows for Spark, and what a function said about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from fasti.client.batch import Batch
from fasti.core.fields import HEADERS
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK
from fasti.spark.views import MOMENT

# Reasons, and which rows failed for each.
Verdicts = Iterator[tuple[str, NDArray[np.bool_]]]

_COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "due": ("due_us", MOMENT),
    "version": ("version", pa.int64()),
    "attempts": ("attempts", pa.int32()),
    "priority": ("priority", pa.int32()),
    "created": ("created_us", MOMENT),
    "key": ("key", pa.string()),
    "headers": ("headers", HEADERS),
    "content_type": ("content_type", pa.string()),
    "subject": ("subject", pa.string()),
    "payload": ("payload", pa.binary()),
}


def rows_of(batch: Batch, group: str = "") -> pa.Table:
    """What the function gets: moments as timestamps, the place beside the id."""
    table = batch.table
    ids = table.column("id").to_numpy()
    columns: dict[str, Any] = {
        "id": table.column("id"),
        "partition": pa.array((ids >> SEQUENCE_BITS).astype(np.int32)),
    }
    if group:
        columns["offset"] = pa.array((ids & SEQUENCE_MASK) - 1)
    for name, (source, kind) in _COLUMNS.items():
        if source in table.column_names:
            columns[name] = table.column(source).cast(kind)
        else:
            columns[name] = pa.nulls(len(table), kind)
    return pa.table(columns)


def verdicts_of(returned: Any, batch: Batch) -> Verdicts:
    """What failed, by what a function returned: a DataFrame of ids and reasons, or nothing.

    Anything that is no table is nothing, as with `foreachBatch`. Raises `invalid_argument` if it makes
    no sense; then nothing is taken as done.
    """
    if hasattr(returned, "toArrow"):
        return _masks(_collected(returned), batch)
    if hasattr(returned, "columns"):
        raise InvalidArgument(
            f"what failed is returned as a DataFrame of Spark, not as {type(returned).__name__}",
            field="handle_batch",
        )
    return iter(())


def _collected(returned: DataFrame) -> pa.Table:
    names = returned.columns
    if "id" not in names:
        raise InvalidArgument(
            f"the DataFrame of what failed has a column id, not only {', '.join(names)}",
            field="handle_batch",
        )
    columns = ["id", "reason"] if "reason" in names else ["id"]
    return returned.select(*columns).toArrow()


def _masks(failed: pa.Table, batch: Batch) -> Verdicts:
    ids = batch.table.column("id").combine_chunks()
    places = pc.index_in(failed.column("id").combine_chunks().cast(pa.int64()), value_set=ids)
    if places.null_count:
        missing = failed.column("id").combine_chunks().filter(places.is_null())[0].as_py()
        raise InvalidArgument(f"no message of this batch has the id {missing}", field="id")
    # One verdict for each message: the first that was given.
    rows, firsts = np.unique(places.to_numpy(), return_index=True)
    reasons = pa.array(["failed"] * len(firsts))
    if "reason" in failed.column_names:
        reasons_given = (
            failed.column("reason").combine_chunks().cast(pa.string()).take(pa.array(firsts))
        )
        reasons = reasons_given.fill_null("failed")
    coded = reasons.dictionary_encode()
    codes = coded.indices.to_numpy()
    return (
        (bounded(reason, batch), _mask(len(ids), rows[codes == code]))
        for code, reason in enumerate(coded.dictionary.to_pylist())
    )


def _mask(count: int, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask


def bounded(reason: str, batch: Batch) -> str:
    """A reason that the broker takes: cut where it is too long."""
    return reason.encode(errors="replace")[: batch.reason_bytes_max].decode(errors="ignore")
