"""The bytes of the events of producers: what is on disk once is read for ever."""

from __future__ import annotations

from pathlib import Path

from fasti.core import events as ev
from fasti.core.replies import Frame
from tests.golden.bodies import AT_US, body_of, check_read, check_written

BODY = Path(__file__).parent / "frame-body-producers"


def frame() -> Frame:
    return Frame(5, [ev.ProducerEnded(AT_US, "4f3a"), ev.ProducerEnded(AT_US, "übrig")], None)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame())}


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame())
