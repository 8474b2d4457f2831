"""What the tests of formats share: bodies of frames beside those that were written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fasti.core.events import Event
from fasti.core.replies import Frame
from fasti.storage import event_codec
from fasti.storage.seals import open_seal

AT_US = 1_700_000_000_000_000
SEED = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


def int64s(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def joined(buffers: list[Any]) -> bytes:
    return b"".join(memoryview(buffer).cast("B") for buffer in buffers)


def body_of(frame: Frame) -> bytes:
    return joined(event_codec.encode(frame))


def check_written(frame: Frame, stored: Path) -> None:
    """Head and columns are as they were. How Arrow lays rows out is Arrow's to change."""
    body = stored.read_bytes()
    end = len(body) - (0 if frame.rows is None else len(frame.rows.encoded))
    assert body_of(frame)[:end] == body[:end]


def check_read(stored: Path, was: Frame, but: tuple[str, ...] = ()) -> list[Event]:
    """What is read is what was written, but for the fields named; returns the events."""
    events, rows = event_codec.decode(memoryview(stored.read_bytes()), SEED)
    assert (rows is None) == (was.rows is None)
    if rows is not None and was.rows is not None:
        assert rows.batch == was.rows.batch
    for before, now in zip(was.events, events, strict=True):
        assert type(before) is type(now)
        for name in before.__dataclass_fields__:
            if name not in but:
                assert same(getattr(before, name), getattr(now, name)), (before, name)
    return events


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    return bool(one == other)


def content_of(data: bytes) -> bytes:
    """What a block seals: the same bytes in every format."""
    return bytes(open_seal(memoryview(data), "block"))
