"""What key-value topics added to the format of frames: their events."""

from __future__ import annotations

from pathlib import Path

from fasti.core.events import Event, Replaced
from fasti.core.keys import Rows
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.replies import Frame
from fasti.model import DUE_MAX_US
from fasti.storage import event_codec
from tests.golden.bodies import AT_US, SEED, body_of, check_read, check_written, int64s

BODY = Path(__file__).parent / "frame-body-kv"


def frame() -> Frame:
    rows = Rows.of(
        [b"first", b"", b"\x00\xff", b""],
        key=["k", "k\0clustering", "schlüssel", "gone"],
        content_type=["text/plain", None, None, None],
    )
    due, some = int64s(DUE_MAX_US, AT_US + 5), int64s(3, 9)
    hashes = rows.keys(SEED)
    assert hashes is not None
    events: list[Event] = [
        Removed(AT_US, 1, 2, 1, int64s(4), int64s(2)),
        KvProduced(AT_US, 1, 2, 7, "", "", due, int64s(0, 2), hashes.hashes[[0, 2]], version=5),
        Replaced(AT_US, 1, 2, some, int64s(2, 8), due, int64s(1, 0)),
        Removed(AT_US, 1, 0, 0, int64s(9), int64s(3)),
    ]
    return Frame(5, events, rows)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame())}


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame())


def test_a_body_is_read_by_who_follows_its_topic_alone() -> None:
    stored = memoryview(BODY.read_bytes())
    events, rows = event_codec.decode_about(stored, 1)
    assert [type(event) for event in events] == [type(event) for event in frame().events]
    assert rows is not None
    assert event_codec.decode_about(stored, 2) == ([], None)
