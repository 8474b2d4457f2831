"""Bodies of frames, blocks of runs, state blocks and manifests, byte for byte."""

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
from fasti.storage.log_blocks import LogBlock
from fasti.storage.manifest import Manifest
from fasti.storage.runs import ROW_SCHEMA, Block, object_name, rows_batch, rows_columns
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
BODY = HERE / "frame-body"
PAYLOADS = HERE / "block.payloads"
ROWS = HERE / "block.rows"
DELTA = HERE / "block.delta"
STATE = HERE / "block.state"
MANIFEST = HERE / "manifest-data.json"
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
    # Some settings: that there are more, or fewer, is no change of the format.
    settings = {name: TopicSettings().to_dict()[name] for name in ("kind", "partitions", "retry")}
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
        ev.StageDropped(AT_US, "stage"),
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
        Block(3, 8, 1, 100, 4096, (1, 0, AT_US), (2, 3, AT_US + 9)),
        Block(4, 9, 2, 7, 512, (1, 0, 0), (1, 0, 0), delta=True),
    ]
    logs = [
        LogBlock(5, 8, 5, 0, 0, 65_536, 4 << 20, AT_US, AT_US + 1),
        LogBlock(6, 9, 5, 0, 65_536, 7, 512, AT_US + 1, AT_US + 9),
    ]
    state = object_name(9, 7, "state")
    return Manifest(2**62 + 1, SEED, 77, 2, 8, state, blocks, logs)


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


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
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


def test_damaged_blocks_are_read_as_ever() -> None:
    data = PAYLOADS.read_bytes()
    assert content_of(joined(seal(payloads()))) == content_of(data)
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


def test_a_manifest_is_written_and_read_as_ever() -> None:
    assert manifest().encode() == MANIFEST.read_bytes()
    assert Manifest.decode(MANIFEST.read_bytes()) == manifest()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_golden_files_are_small(path: Path) -> None:
    assert path.stat().st_size < 8192
