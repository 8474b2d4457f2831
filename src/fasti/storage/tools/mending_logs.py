"""Logs and their groups behind a gap: see mending.py.

Offsets have no holes, also after a repair: a row that is lost has an empty one in its place, with the
header `fasti-lost`. Groups get it like any other row, so that nothing skips over it in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.lifecycle import Verb
from fasti.core.log import events as lo
from fasti.core.log import group_events as ge
from fasti.core.log.body import log_of
from fasti.core.log.group import Group, GroupPartition
from fasti.core.log.window import LEASED, WAITING, WINDOW_ROWS
from fasti.core.rows.location import ROWS_MAX
from fasti.storage.tools.partial_events import HOLD_US, NOBODY, only

if TYPE_CHECKING:
    from fasti.core.state import Topic
    from fasti.storage.tools.mending import Mend, Mender

Int64s = NDArray[np.int64]

_ON_LEASED = (ge.GroupResumed, ge.GroupExtended, ge.GroupAcked, ge.GroupReturned, ge.GroupDied)
_ON_DEAD = (ge.GroupRevived, ge.GroupPurged)


class LogMender:
    """The part of a `Mender` for logs. `filler` is a frame of empty rows."""

    def __init__(self, mender: Mender, filler: int) -> None:
        self._mender, self._filler = mender, filler

    def mends(self) -> dict[type[ev.Event], Mend]:
        return {
            lo.LogAppended: self._appended,
            lo.LogTrimmed: self._trimmed,
            ge.GroupMade: self._made,
            ge.GroupDropped: self._dropped,
            ge.GroupRenewed: self._if_known,
            ge.GroupSet: self._set,
            ge.GroupLeased: self._leased,
            **dict.fromkeys(_ON_LEASED, self._judged),
            **dict.fromkeys(_ON_DEAD, self._unburied),
        }

    # Rows

    def _fill(self, topic: Topic, number: int, end: int, at_us: int) -> None:
        """Rows up to an offset were appended in the gap."""
        partition = log_of(topic).partitions[number]
        if end <= partition.next_offset:
            return
        self._mender.lost[topic.number, number].add(partition.next_offset, end - 1)
        while partition.next_offset < end:
            count = min(end - partition.next_offset, ROWS_MAX)
            rows = np.arange(count, dtype=np.int64)
            place = (topic.number, number, partition.next_offset)
            self._mender.make_so(lo.LogAppended(at_us, *place, 0, rows), self._filler)

    def _appended(self, event: lo.LogAppended, frame: int) -> None:
        topic = self._mender.topic_of(event)
        self._fill(topic, event.partition, event.first_offset, event.at_us)
        self._mender.make_so(event, frame)

    def _trimmed(self, event: lo.LogTrimmed, frame: int) -> None:
        topic = self._mender.topic_of(event)
        self._fill(topic, event.partition, event.first_offset, event.at_us)
        if event.first_offset > log_of(topic).partitions[event.partition].earliest:
            self._mender.make_so(event, frame)

    # Groups

    def _made(self, event: ge.GroupMade, frame: int) -> None:
        topic = self._mender.topic_of(event)
        groups = log_of(topic).groups
        same = {groups.by_name.get(event.group), groups.by_number.get(event.number)} - {None}
        for group in same:
            assert group is not None
            self._mender.make_so(ge.GroupDropped(event.at_us, event.topic, group.number), frame)
        for number, offset in enumerate(event.offsets.tolist()):
            self._fill(topic, number, offset, event.at_us)
        self._mender.make_so(event, frame)

    def _dropped(self, event: ge.GroupDropped, frame: int) -> None:
        if event.number in log_of(self._mender.topic_of(event)).groups.by_number:
            self._mender.make_so(event, frame)

    def _group(self, event: Any) -> Group | None:
        topic = self._mender.topic_of(event)
        group = log_of(topic).groups.by_number.get(event.group)
        if group is None:
            self._mender.losses.note(
                f"group {event.group} of log {topic.name!r} was made in the gap and is forgotten: "
                "under its name it begins anew"
            )
        return group

    def _if_known(self, event: Any, frame: int) -> None:
        if self._group(event) is not None:
            self._mender.make_so(event, frame)

    def _set(self, event: ge.GroupSet, frame: int) -> None:
        topic = self._mender.topic_of(event)
        self._fill(topic, event.partition, event.offset, event.at_us)
        self._if_known(event, frame)

    def _place(self, event: Any) -> GroupPartition | None:
        """Where the event's group stands; rows that it names are there afterwards."""
        topic = self._mender.topic_of(event)
        self._fill(topic, event.partition, int(event.offset.max()) + 1, event.at_us)
        group = self._group(event)
        return None if group is None else group.partitions[event.partition]

    def _leased(self, event: ge.GroupLeased, frame: int) -> None:
        place = self._place(event)
        if place is None:
            return
        self._hand_out_before(place, event)
        event = self._unfinished(place, event)
        leased = event.offset[_states(place, event.offset) == LEASED]
        if len(leased):
            self._give_back(event, leased)
        self._mender.make_so(event, frame)

    def _judged(self, event: Any, frame: int) -> None:
        place = self._place(event)
        if place is None:
            return
        self._hand_out_before(place, event)
        event = self._unfinished(place, event)
        self._lease(event, event.offset[_states(place, event.offset) != LEASED])
        self._mender.make_so(event, frame)

    def _unburied(self, event: Any, frame: int) -> None:
        place = self._place(event)
        if place is None:
            return
        event = only(event, place.dead.find(event.offset) >= 0)
        if len(event.offset):
            self._mender.make_so(event, frame)

    def _hand_out_before(self, place: GroupPartition, event: Any) -> None:
        """Rows before the first new one were handed out in the gap; they go out again."""
        end = int(event.offset.max()) + 1
        if end - place.committed > WINDOW_ROWS:
            # No window is wider: what lies below was finished.
            self._set_to(event, end - WINDOW_ROWS)
        new = event.offset[event.offset >= place.next]
        if len(new) and int(new.min()) > place.next:
            skipped = np.arange(place.next, int(new.min()), dtype=np.int64)
            self._lease(event, skipped)
            self._give_back(event, skipped)

    def _unfinished(self, place: GroupPartition, event: Any) -> Any:
        """What is finished here, and handed out there, was made to live again in the gap."""
        states = _states(place, event.offset)
        finished = event.offset[(states != WAITING) & (states != LEASED)]
        finished = finished[finished < place.next]
        dead = finished[place.dead.find(finished) >= 0] if len(finished) else finished
        if len(dead):
            due_us = np.full(len(dead), event.at_us, dtype=np.int64)
            self._mender.make_so(ge.GroupRevived(*_place_of(event), dead, due_us))
        rest = np.setdiff1d(finished, dead)
        if len(rest):
            # The group was set back.
            self._set_to(event, int(rest.min()))
            self._hand_out_before(place, event)
        return event

    def _set_to(self, event: Any, offset: int) -> None:
        self._mender.make_so(ge.GroupSet(*_place_of(event), offset))

    def _lease(self, event: Any, offsets: Int64s) -> None:
        if len(offsets):
            token = self._mender.engine.memory.leases.next_token
            self._mender.make_so(ge.GroupLeased(*_place_of(event), token, NOBODY, HOLD_US, offsets))

    def _give_back(self, event: Any, offsets: Int64s) -> None:
        times = np.full(len(offsets), event.at_us, dtype=np.int64)
        place, none = _place_of(event), np.zeros_like(times)
        self._mender.make_so(ge.GroupReturned(*place, int(Verb.EXPIRE), "", offsets, times, none))


def _place_of(event: Any) -> tuple[int, int, int, int]:
    """What every event of a group begins with."""
    return event.at_us, event.topic, event.partition, event.group


def _states(place: GroupPartition, offsets: Int64s) -> NDArray[np.uint8]:
    """What became of each row; NOWHERE for those that are finished or not out yet."""
    return place.state[place.slots(offsets)]
