"""What priority topics added to the formats: their events, and a column of rows and deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fasti.core.events import Event
from fasti.core.keys import Rows
from fasti.core.priority.events import PriorityProduced, PriorityReplaced, Reprioritised
from fasti.core.replies import Frame
from fasti.storage.runs import ROW_SCHEMA, Columns, rows_batch, rows_columns
from fasti.storage.seals import seal, unseal
from tests.golden.bodies import (
    AT_US,
    SEED,
    body_of,
    check_read,
    check_written,
    int64s,
    joined,
    same,
)
from tests.golden.test_shard_formats import columns

BODY = Path(__file__).parent / "frame-body-priority"
ROWS = Path(__file__).parent / "block-priority.rows"


def uint16s(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return np.array(values, dtype=np.uint16)


def frame() -> Frame:
    rows = Rows.of([b"first", b"", b"\x00\xff"], key=["k", None, "schlüssel"])
    due, some = int64s(AT_US, AT_US + 5), int64s(3, 9)
    hashes = rows.keys(SEED)
    assert hashes is not None
    produced = (AT_US, 1, 2, 7, "owner", "", due, int64s(0, 2), hashes.hashes[[0, 2]], False)
    events: list[Event] = [
        PriorityProduced(*produced, uint16s(65_535, 0)),
        PriorityReplaced(AT_US, 1, 2, some, int64s(2, 8), due, int64s(1, 0), uint16s(4, 4)),
        Reprioritised(AT_US, 1, 0, some, int64s(4, 4), uint16s(1, 300)),
    ]
    return Frame(5, events, rows)


def ranked() -> Columns:
    found = columns()
    count = len(found["sequence"])
    return {**found, "priority": (np.arange(count) * 7_919 % 65_536).astype(np.uint16)}


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), ROWS: joined(seal(rows_batch(ranked())))}


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame(), but=("new_keys",))


def test_rows_with_priorities_are_read_as_ever() -> None:
    read = rows_columns(unseal(memoryview(ROWS.read_bytes()), "r"))
    assert list(read) == [*ROW_SCHEMA.names, "priority"]
    for name, values in ranked().items():
        assert same(values, read[name]), name


def test_rows_without_priorities_leave_the_column_out() -> None:
    plain = {**ranked(), "priority": np.zeros(len(columns()["sequence"]), dtype=np.uint16)}
    assert rows_batch(plain).schema.names == ROW_SCHEMA.names
