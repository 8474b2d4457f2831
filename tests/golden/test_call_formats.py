"""What calls with numbers added to the formats: their events, and their part of the state block."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fasti.core.capsule import Capsule, capture, restore
from fasti.core.engine import Engine
from fasti.core.events import Event
from fasti.core.numbered.commands import CallNumber
from fasti.core.numbered.events import DONE, EVEN, REPLY, TRANSACTION, CallAnswered, RowsAnswered
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
)

BODY = Path(__file__).parent / "frame-body-calls"
STATE = Path(__file__).parent / "block-calls.state"
EVENTS: list[Event] = [
    CallAnswered(AT_US, "klient-ö", 7, 0, 5, EVEN, [3, 0, 2]),
    CallAnswered(AT_US, "klient-ö", 6, 2, 5, DONE, [[0, 1], [1, 4]]),
    RowsAnswered(
        *(AT_US, "other", 1, 0, 1, REPLY, [{"1": AT_US}, {"1": "worker-1"}, True, True, False]),
        *(np.array([0, 2, 0], dtype=np.uint8), int64s(), int64s(2, 1, 5)),
    ),
    RowsAnswered(
        *(AT_US, "other", 2, 0, 1, TRANSACTION, [1, [[1, None], [2, None]]]),
        *(np.array([0, 0, 0], dtype=np.uint8), int64s(9, 1, 2), int64s(2, 1, 1)),
    ),
]
FORGOTTEN_US = AT_US - 5


def frame() -> Frame:
    return Frame(5, EVENTS, None)


def engine() -> Engine:
    made = Engine(1 << 20, 16)
    made.replay(1, EVENTS)
    made.state.calls.forgotten_us = FORGOTTEN_US
    return made


def state() -> Capsule:
    """The part of it."""
    capsule = capture(engine().state)
    columns = {name: each for name, each in capsule.columns.items() if name.startswith("answer.")}
    return Capsule({"calls": capsule.head["calls"]}, columns)


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), STATE: joined(encode_state(state()))}


def test_events_are_written_as_ever() -> None:
    check_written(frame(), BODY)


def test_events_are_read_as_ever() -> None:
    check_read(BODY, frame())


def test_the_state_is_written_as_ever() -> None:
    assert content_of(joined(encode_state(state()))) == content_of(STATE.read_bytes())


def test_the_state_is_read_as_ever() -> None:
    stored = decode_state(memoryview(STATE.read_bytes()), "block")
    was, again = engine(), Engine(1 << 20, 16)
    capsule = capture(was.state)
    capsule.head["calls"] = stored.head["calls"]
    capsule.columns.update(stored.columns)
    restore(again.state, capsule)
    calls = again.state.calls
    assert (len(calls), calls.forgotten_us) == (2, FORGOTTEN_US)
    assert calls.size_bytes == was.state.calls.size_bytes
    for client, number, part in (
        ("klient-ö", 7, 0),
        ("klient-ö", 6, 2),
        ("other", 1, 0),
        ("other", 2, 0),
    ):
        call = CallNumber(client, number, number)
        assert calls.find(call, part, AT_US) == was.state.calls.find(call, part, AT_US) is not None


def test_a_state_from_before_there_were_calls_is_read() -> None:
    again = Engine(1 << 20, 16)
    capsule = capture(Engine(1 << 20, 16).state)
    assert "calls" not in capsule.head
    restore(again.state, capsule)
    assert len(again.state.calls) == 0
