"""What last reasons, the beginning of leases and times of death added to the formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fasti.core.capsule import Capsule
from fasti.storage.runs import ROW_SCHEMA, Columns, rows_batch, rows_columns
from fasti.storage.seals import seal, unseal
from fasti.storage.state_block import decode_state, encode_state
from tests.golden.bodies import AT_US, content_of, int64s, joined, same
from tests.golden.test_shard_formats import columns

ROWS = Path(__file__).parent / "block-moments.rows"
STATE = Path(__file__).parent / "block-leases.state"


def moments() -> Columns:
    found = columns()
    count = len(found["sequence"])
    return {**found, "moment": np.arange(count, dtype=np.int64) * 7 + AT_US}


def leases() -> Capsule:
    names = ("token", "sequence", "length", "topic", "partition", "consumer")
    each = {f"lease.{name}": int64s(3, 9) for name in names}
    each |= {"lease.reason": int64s(0, 1), "lease.since": int64s(AT_US, AT_US + 5)}
    return Capsule({"consumers": ["a", "b"], "reasons": ["", "why"]}, each)


def written() -> dict[Path, bytes]:
    return {ROWS: joined(seal(rows_batch(moments()))), STATE: joined(encode_state(leases()))}


def test_rows_with_moments_are_read_as_ever() -> None:
    read = rows_columns(unseal(memoryview(ROWS.read_bytes()), "r"))
    assert list(read) == [*ROW_SCHEMA.names, "moment"]
    for name, values in moments().items():
        assert same(values, read[name]), name


def test_rows_without_moments_leave_the_column_out() -> None:
    plain = {**moments(), "moment": np.zeros(len(columns()["sequence"]), dtype=np.int64)}
    assert rows_batch(plain).schema.names == ROW_SCHEMA.names


def test_leases_with_their_beginning_and_reason_are_written_and_read_as_ever() -> None:
    assert content_of(joined(encode_state(leases()))) == content_of(STATE.read_bytes())
    read = decode_state(memoryview(STATE.read_bytes()), "s")
    for name, values in leases().columns.items():
        assert same(values, read.columns[name]), name
