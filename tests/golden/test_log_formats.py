"""What logs added to the formats: their events, their blocks, and manifests of format 2.

If one of these tests fails because the format was changed on purpose, raise the format version,
leave the old file where it is, and add a new one beside it.  To write new files, run this module
with ``python -m tests.golden.test_log_formats``.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from fasti.core.events import Event
from fasti.core.keys import Rows
from fasti.core.log.events import LogAppended, LogTrimmed
from fasti.core.replies import Frame
from fasti.storage.log_blocks import LogBlock
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block
from fasti.storage.seals import seal, unseal
from tests.golden.bodies import AT_US, SEED, body_of, check_read, check_written, int64s, joined

HERE = Path(__file__).parent
BODY = HERE / "frame-body-2-log"
BLOCK = HERE / "block-2-log.payloads"
MANIFEST = HERE / "manifest-data-2.json"


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


def manifest() -> Manifest:
    blocks = [Block(3, 1, 100, 4096, (1, 0, AT_US), (2, 3, AT_US + 9))]
    logs = [
        LogBlock(4, 5, 0, 0, 65_536, 4 << 20, AT_US, AT_US + 1),
        LogBlock(5, 5, 0, 65_536, 7, 512, AT_US + 1, AT_US + 9),
    ]
    return Manifest(2**62 + 1, SEED, 77, 2, 6, "000000000006.state", blocks, logs)


def written() -> dict[Path, bytes]:
    return {
        BODY: body_of(frame()),
        BLOCK: joined(seal(block())),
        MANIFEST: manifest().encode(),
    }


def test_a_manifest_is_written_and_read_as_ever() -> None:
    assert manifest().encode() == MANIFEST.read_bytes()
    assert Manifest.decode(MANIFEST.read_bytes()) == manifest()


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame())


def test_a_block_is_read_as_ever() -> None:
    assert unseal(memoryview(BLOCK.read_bytes()), "b") == block()


if __name__ == "__main__":
    for path, content in written().items():
        if not path.exists():
            path.write_bytes(content)
