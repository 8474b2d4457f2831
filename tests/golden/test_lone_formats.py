"""The bytes of a message that came alone: what is on disk once is read for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fasti.core import events as ev
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.storage.event_codec import decode_rows
from tests.golden.bodies import AT_US, body_of

BODY = Path(__file__).parent / "frame-body-alone"


def frame() -> Frame:
    rows = Rows.single(b"\x00hello", key="größe", content_type="text/plain", subject="a.b")
    produced = ev.Produced(
        AT_US, 3, 0, 17, "billing", "", np.array([AT_US + 5]), np.zeros(1, dtype=np.int64)
    )
    return Frame(6, [produced], rows)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame())}


def test_a_body_is_written_as_ever() -> None:
    assert BODY.read_bytes() == body_of(frame())


def test_the_values_are_read_as_ever() -> None:
    rows, at_us = decode_rows(memoryview(BODY.read_bytes()))
    expected = frame().rows
    assert rows is not None
    assert expected is not None
    assert (rows.values, at_us) == (expected.values, AT_US)
