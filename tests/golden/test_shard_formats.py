"""Bodies of frames, blocks of runs, state blocks and manifests of format 1, byte for byte.

If one of these tests fails because the format was changed on purpose, raise the format version,
leave the old file where it is, and add a new one beside it.  To write new files, run this module
with ``python -m tests.golden.test_shard_formats``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import events as ev
from fasti.core.capsule import Capsule
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.model import TopicSettings
from fasti.storage import event_codec, state_block
from fasti.storage.damaged_rows import salvage
from fasti.storage.manifest import Manifest
from fasti.storage.runs import ROW_SCHEMA, Block, rows_batch, rows_columns
from fasti.storage.seals import seal, unseal
from tests.golden.bodies import (
    AT_US,
    SEED,
    body_of,
    check_read,
    check_written,
    content_of,
    int64s,
    joined,
    same,
)

HERE = Path(__file__).parent
BODY = HERE / "frame-body-1"
PAYLOADS = HERE / "block-1.payloads"
PIECES = HERE / "block-3.payloads"
ROWS = HERE / "block-1.rows"
DELTA = HERE / "block-1.delta"
STATE = HERE / "block-1.state"
MANIFEST = HERE / "manifest-data-1.json"
FILES = [BODY, PAYLOADS, ROWS, DELTA, STATE, MANIFEST]


def frame() -> Frame:
    """One event of every kind, and payloads with every column."""
    rows = Rows.of(
        [b"first", b"", b"\x00\xff"],
        key=["k", None, "schlüssel"],
        headers=[[("a", "1"), ("b", None)], None, []],
        content_type=[None, "text/plain", None],
        created_us=[None, AT_US - 5, None],
    )
    sequence, due = int64s(7, 9, 11), int64s(AT_US, AT_US + 1, AT_US + 5)
    hashes = np.array([1, 2**63, 3], dtype=np.uint64)
    status = np.array([0, 1, 9], dtype=np.uint8)
    alike, counting = int64s(4, 4, 4), int64s(4, 5, 6)
    # As they were when format 1 was written: there are more by now.
    names = (
        *("kind", "partitions", "lease_us", "hold_us", "max_attempts", "retry", "lookahead_us"),
        *("outcome_age_us", "outcome_count", "producer_age_us", "stage_age_us"),
    )
    known = TopicSettings(lookahead_us=0).to_dict()
    settings = {name: known[name] for name in names}
    events = [
        ev.TopicCreated(AT_US, 1, "töpic", settings),
        ev.TopicChanged(AT_US, 1, {"lease_us": 5}),
        ev.TopicDeleted(AT_US, 2),
        ev.Produced(AT_US, 1, 0, 7, "owner", "stage", due, int64s(2, 0, 1)),
        ev.ProducerAdvanced(AT_US, "producer", 3, 1, status, sequence, alike),
        ev.Replaced(AT_US, 1, 0, sequence, counting, due, alike),
        ev.Updated(AT_US, 1, 0, sequence, alike, counting),
        ev.Moved(AT_US, 1, 0, sequence, alike, due),
        ev.Cancelled(AT_US, 1, 3, int64s(8)),
        ev.Leased(AT_US, 1, 0, 42, "consumer", 30_000_000, sequence),
        ev.Resumed(AT_US, 1, 0, 43, sequence),
        ev.Extended(AT_US, 1, 0, 60_000_000, sequence),
        ev.Renewed(AT_US, 1, "consumer"),
        ev.Released(AT_US, 1, 0, sequence, due, alike),
        ev.Nacked(AT_US, 1, 0, "why", sequence, due, alike),
        ev.Expired(AT_US, 1, 0, sequence),
        ev.Acked(AT_US, 1, 0, sequence, alike),
        ev.Died(AT_US, 1, 0, "reason", 1, sequence, alike),
        ev.Redriven(AT_US, 1, 0, sequence, alike, due, hashes, hashes),
        ev.Purged(AT_US, 1, 0, sequence),
        ev.StageOpened(AT_US, "stage", 1),
        ev.Published(AT_US, "stage", int64s()),
        ev.Landed(AT_US, "stage", 5),
        ev.StageDropped(AT_US, "stage", 6),
    ]
    return Frame(5, events, rows)


def payloads() -> pa.RecordBatch:
    rows = frame().rows
    assert rows is not None
    return rows.batch


def columns() -> dict[str, Any]:
    return {
        field.name: np.array([1, 2, 3 + place], dtype=field.type.to_pandas_dtype())
        for place, field in enumerate(ROW_SCHEMA)
    }


def capsule() -> Capsule:
    return Capsule(
        {"next_topic": 3, "topics": [{"name": "töpic"}]},
        {
            "marks.bits": np.array([1, 255, 3], dtype=np.uint8),
            "lease.token": int64s(5, 9, 7),
            "alike": int64s(4, 4),
            "counting": np.array([2**63, 2**63 + 1], dtype=np.uint64),
            "none": int64s(),
        },
    )


def manifest() -> Manifest:
    blocks = [
        Block(3, 1, 100, 4096, (1, 0, AT_US), (2, 3, AT_US + 9)),
        Block(4, 2, 7, 512, (1, 0, 0), (1, 0, 0), delta=True),
    ]
    return Manifest(2**62 + 1, SEED, 77, 2, 6, "000000000005.state", blocks)


def written() -> dict[Path, bytes]:
    return {
        BODY: body_of(frame()),
        PAYLOADS: joined(seal(payloads())),
        ROWS: joined(seal(rows_batch(columns()))),
        DELTA: joined(seal(rows_batch(columns()).slice(1))),
        STATE: joined(state_block.encode_state(capsule())),
        MANIFEST: manifest().encode(),
    }


def test_state_is_written_as_ever() -> None:
    assert content_of(written()[STATE]) == content_of(STATE.read_bytes())


def test_the_head_and_columns_of_a_body_are_written_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_codec, "BODY_FORMAT_VERSION", 1)
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    was = frame()
    events = check_read(BODY, was, but=("hashes", "new_keys"))
    assert was.rows is not None
    produced = next(event for event in events if isinstance(event, ev.Produced))
    keys = was.rows.keys(SEED)
    assert keys is not None
    assert produced.hashes is not None
    assert produced.hashes.tolist() == keys.hashes[[2, 0, 1]].tolist()


def test_the_rows_of_a_body_are_found_without_its_events() -> None:
    rows, at_us = event_codec.decode_rows(memoryview(BODY.read_bytes()))
    was = frame().rows
    assert rows is not None
    assert was is not None
    assert (rows.batch, at_us) == (was.batch, AT_US)


def test_blocks_are_read_as_ever() -> None:
    assert unseal(memoryview(PAYLOADS.read_bytes()), "p") == payloads()
    read = rows_columns(unseal(memoryview(ROWS.read_bytes()), "r"))
    assert all(same(values, read[name]) for name, values in columns().items())
    read = rows_columns(unseal(memoryview(DELTA.read_bytes()), "d"))
    assert all(same(values[1:], read[name]) for name, values in columns().items())


def test_blocks_with_pieces_are_read_as_ever() -> None:
    data = PIECES.read_bytes()
    assert unseal(memoryview(data), "p") == payloads()
    assert content_of(joined(seal(payloads()))) == content_of(PAYLOADS.read_bytes())
    # What stands before the content is there for a day of damage, and must be found then.
    damaged = bytearray(data)
    damaged[9] ^= 1
    left = salvage(memoryview(damaged))
    assert left.batch.to_pylist() == payloads().to_pylist()
    assert left.rows == 0


def test_a_state_block_is_read_as_ever() -> None:
    read = state_block.decode_state(memoryview(STATE.read_bytes()), "s")
    assert read.head == capsule().head
    assert read.columns.keys() == capsule().columns.keys()
    assert all(same(values, read.columns[name]) for name, values in capsule().columns.items())


def test_a_manifest_is_read_as_ever() -> None:
    assert Manifest.decode(MANIFEST.read_bytes()) == manifest()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_golden_files_are_small(path: Path) -> None:
    assert path.stat().st_size < 8192


if __name__ == "__main__":
    for path, data in written().items():
        path.write_bytes(data)
