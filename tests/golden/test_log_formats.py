"""What logs added to the formats: their events and their blocks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from fasti.core.events import Event
from fasti.core.keys import Rows
from fasti.core.log.events import LogAppended, LogTrimmed
from fasti.core.replies import Frame
from fasti.storage.seals import seal, unseal
from tests.golden.bodies import AT_US, body_of, check_read, check_written, int64s, joined

HERE = Path(__file__).parent
BODY = HERE / "frame-body-log"
BLOCK = HERE / "block-log.payloads"


def frame() -> Frame:
    rows = Rows.of(
        [b"first", b"", b"\x00\xff"],
        key=["k", None, "schlüssel"],
        headers=[[("a", "1")], None, []],
        subject=["orders.eu", None, None],
    )
    events: list[Event] = [
        LogAppended(AT_US, 1, 0, 1 << 40, 120, int64s(0, 1)),
        LogAppended(AT_US, 1, 3, 7, 60, int64s(2)),
        LogAppended(AT_US, 2, 0, 0, 120, int64s(0, 2)),
        LogTrimmed(AT_US, 1, 3, 5, "age"),
    ]
    return Frame(5, events, rows)


def block() -> pa.RecordBatch:
    columns = {
        "payload": pa.array([b"first", b""], pa.binary()),
        "key": pa.array(["k", None], pa.string()),
        "created_us": pa.array([AT_US, AT_US + 9], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), BLOCK: joined(seal(block()))}


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame())


def test_a_block_is_read_as_ever() -> None:
    assert unseal(memoryview(BLOCK.read_bytes()), "b") == block()
