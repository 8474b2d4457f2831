"""What schedules added to the formats: their events, and their part of the state block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fasti.core.capsule import Capsule
from fasti.core.cron.book import Ahead, CronBook
from fasti.core.cron.events import (
    Fired,
    Passed,
    ScheduleDeleted,
    SchedulePaused,
    SchedulePut,
    Unfired,
)
from fasti.core.cron.schedule import Schedule
from fasti.core.events import Event
from fasti.core.replies import Frame
from fasti.storage.state_block import decode_state, encode_state
from tests.golden.bodies import (
    AT_US,
    body_of,
    check_read,
    check_written,
    content_of,
    int64s,
    joined,
    same,
)

BODY = Path(__file__).parent / "frame-body-cron"
STATE = Path(__file__).parent / "block-cron.state"
DAILY = Schedule(
    "t", cron="0 9 * * *", timezone="Europe/Paris", payload=b"\xff", headers={"größe": "1"}
)


def frame() -> Frame:
    events: list[Event] = [
        SchedulePut(AT_US, 1, 7, 2, AT_US, "täglich", DAILY.to_json()),
        ScheduleDeleted(AT_US, 1, 3),
        SchedulePaused(AT_US, 1, 7, 1, AT_US - 5),
        Fired(AT_US, 1, 2, int64s(7, 9, 4), int64s(AT_US, AT_US, AT_US), int64s(12, 0, 13)),
        Unfired(AT_US, 1, int64s(7, 7), int64s(AT_US - 1, AT_US - 1)),
        Passed(AT_US, 1),
    ]
    return Frame(5, events, None)


def book() -> CronBook:
    made = CronBook()
    made.put(0, "a", 1, AT_US, DAILY.to_json())
    made.put(1, "gone", 4, AT_US, DAILY.to_json())
    made.put(2, "täglich", 2, AT_US, Schedule("u", every_us=1_000_000, overlap="skip").to_json())
    made.delete(1)
    made.pause(2, True, AT_US + 1)
    numbers, moments = int64s(0, 2), int64s(AT_US, AT_US + 9)
    made.fire(Ahead(int64s(5, 5), numbers, moments, int64s(12, 13)), AT_US)
    return made


def state() -> Capsule:
    columns: dict[str, Any] = {}
    described = book().capture("cron.1.", columns)
    return Capsule({"kind": described}, columns)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), STATE: joined(encode_state(state()))}


def test_events_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_events_are_read_as_ever() -> None:
    check_read(BODY, frame())


def test_the_state_is_written_as_ever() -> None:
    assert content_of(joined(encode_state(state()))) == content_of(STATE.read_bytes())


def test_the_state_is_read_as_ever() -> None:
    capsule = decode_state(memoryview(STATE.read_bytes()), "block")
    was, now = book(), CronBook()
    now.restore("cron.1.", capsule.head["kind"], capsule.columns)
    assert now.by_name == was.by_name
    assert now.definitions == was.definitions
    assert now.free == was.free
    for name in ("version", "last_us", "last_id", "fired", "paused", "exists", "overlap"):
        assert np.array_equal(getattr(now, name)[:3], getattr(was, name)[:3]), name
    assert same(now.all_ahead().id, was.all_ahead().id)
    assert now.first_ahead_us == was.first_ahead_us == AT_US + 9
