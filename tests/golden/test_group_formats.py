"""The events of consumer groups, and groups in a state block, as they are written for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fasti.core.capsule import Capsule
from fasti.core.events import Event
from fasti.core.lifecycle import Verb
from fasti.core.log import group_events as ge
from fasti.core.log.group import Group, Groups
from fasti.core.log.group_capsule import capture, restore
from fasti.core.log.window import ACKED
from fasti.core.replies import Frame
from fasti.core.rows.memory import Names, Undo
from fasti.storage import state_block
from tests.golden.bodies import (
    AT_US,
    body_of,
    check_read,
    check_written,
    content_of,
    int64s,
    joined,
)

HERE = Path(__file__).parent
BODY = HERE / "frame-body-groups"
STATE = HERE / "block-groups.state"


def frame() -> Frame:
    where = (1, 3, 2)
    events: list[Event] = [
        ge.GroupMade(AT_US, 1, "billing", 2, 1, int64s(0, 1 << 40)),
        ge.GroupLeased(AT_US, *where, 9, "worker", 30_000_000, np.arange(5_000)),
        ge.GroupResumed(AT_US, *where, 10, int64s(0, 2)),
        ge.GroupExtended(AT_US, *where, 60_000_000, int64s(0)),
        ge.GroupRenewed(AT_US, 1, 2, "worker"),
        ge.GroupAcked(AT_US, *where, int64s(4, 2), int64s(AT_US, 0)),
        ge.GroupReturned(
            AT_US, *where, int(Verb.NACK), "why", int64s(5, 7), int64s(AT_US, 8), int64s(3, 9)
        ),
        ge.GroupDied(AT_US, *where, "schlecht", 1, int64s(6), int64s(AT_US)),
        ge.GroupRevived(AT_US, *where, int64s(6), int64s(AT_US)),
        ge.GroupPurged(AT_US, *where, int64s(8)),
        ge.GroupSet(AT_US, *where, 1 << 40),
        ge.GroupDropped(AT_US, 1, 2),
    ]
    return Frame(5, events, None)


def groups() -> Groups:
    """Two groups: one with a bit of everything, one that is new and ordered."""
    made, reasons, undo = Groups(), Names(), Undo()
    made.add(Group("billing", 2, False, [5, 0]))
    made.add(Group("new", 1, True, [0, 7]))
    place = made.by_name["billing"].partitions[0]
    place.hand_out(np.arange(5, 15), np.arange(1, 11))
    place.finish(np.arange(5, 8), ACKED, undo)
    place.give_back(int64s(9, 10), int64s(AT_US + 5, AT_US), True, undo)
    place.bury(int64s(8, 12), reasons.number("bad"), AT_US, reasons, undo)
    place.unbury(int64s(12), reasons, undo)
    place.revive(int64s(12), int64s(AT_US + 9))
    made.by_name["new"].partitions[1].trim(9, reasons)
    return made


def state() -> bytes:
    columns: dict[str, Any] = {}
    described = capture(4, groups(), columns)
    return joined(state_block.encode_state(Capsule({"groups": described}, columns)))


def written() -> dict[Path, bytes]:
    return {BODY: body_of(frame()), STATE: state()}


def test_events_are_written_and_read_as_ever() -> None:
    check_written(frame(), BODY)
    check_read(BODY, frame())


def test_groups_are_kept_and_read_back_as_ever() -> None:
    assert content_of(state()) == content_of(STATE.read_bytes())
    capsule = state_block.decode_state(memoryview(STATE.read_bytes()), STATE.name)
    found = restore(4, capsule.head["groups"], capsule.columns)
    for was, group in zip(groups().by_number.values(), found, strict=True):
        assert (group.name, group.number, group.ordered) == (was.name, was.number, was.ordered)
        assert group.is_behind == any(place.behind for place in was.partitions)
        for before, place in zip(was.partitions, group.partitions, strict=True):
            columns, back = before.columns(), place.columns()
            assert place.numbers() == before.numbers()
            for name, values in columns.items():
                if name not in ("again", "due"):
                    assert back[name].tolist() == values.tolist(), name
            assert place.leased == before.leased
            assert place.open == before.open
