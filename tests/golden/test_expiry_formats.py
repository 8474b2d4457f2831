"""What expiry and pausing added to the formats: their events."""

from __future__ import annotations

from pathlib import Path

from fasti.core import events as ev
from fasti.core.replies import Frame
from tests.golden.bodies import AT_US, body_of, check_read, check_written, int64s

BODY = Path(__file__).parent / "frame-body-expiry"


def frame() -> Frame:
    some = int64s(3, 9)
    events: list[ev.Event] = [
        ev.TopicPaused(AT_US, 7, 1),
        ev.TopicPaused(AT_US, 7, 0),
        ev.ExpirySet(AT_US, 7, 2, some, int64s(AT_US, 0)),
        ev.ExpirySet(AT_US, 7, 0, some, int64s(AT_US, AT_US)),
        ev.Lapsed(AT_US, 7, 2, "expired", some),
    ]
    return Frame(5, events, None)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame())}


def test_the_head_and_columns_of_a_body_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_a_body_is_read_as_ever() -> None:
    check_read(BODY, frame())
