"""Deciding changes to pending messages: update, move, cancel, redrive and purge.

Each locates its rows, judges them, emits one event per partition for those that may be changed,
and tells the others why not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns import codes
from fasti.core.columns.reductions import rows_where, some
from fasti.core.commands import Cancel, Move, Purge, Redrive, Reprioritise, Target, Update
from fasti.core.priority.events import Reprioritised
from fasti.core.replies import Reply, blank
from fasti.core.rows.location import ROWS_MAX
from fasti.core.state import Topic
from fasti.core.timeline.judging import (
    Piece,
    explain,
    judge_change,
    locate,
    mark_repeated,
    unname_strangers,
    why_not,
)
from fasti.core.timeline.produce import check_priorities
from fasti.core.work import Work, column, repeated
from fasti.errors import InvalidArgument
from fasti.model import Outcome, State

Int64s = NDArray[np.int64]
Rows = NDArray[np.intp]
# Of a piece: those of its rows that change, where these stand among all, and their new versions.
MakeEvents = Callable[[Piece, "Rows | slice", Rows, Int64s], list[ev.Event]]


def update(work: Work, command: Update) -> Reply:
    """New payloads for messages that are not out."""
    if len(command.rows) != len(command.target):
        raise InvalidArgument("payloads and targets differ in number", field="payload")
    if len(command.rows) > ROWS_MAX:
        raise InvalidArgument(f"at most {ROWS_MAX} updates in a batch", field="payload")
    topic = work.topic(command.topic)
    priorities = command.priorities
    check_priorities(topic, priorities, len(command.target))
    work.bring(command.rows)

    def events(piece: Piece, good: Rows | slice, places: Rows, versions: Int64s) -> list[ev.Event]:
        place = (work.now_us, topic.number, piece.partition.number, piece.sequences[good])
        updated = ev.Updated(*place, versions, places.astype(np.int64))
        if priorities is None:
            return [updated]
        return [updated, Reprioritised(*place, versions, priorities[places])]

    return _change(work, topic, command, events)


def reprioritise(work: Work, command: Reprioritise) -> Reply:
    """New priorities for messages that are not out."""
    topic = work.topic(command.topic)
    check_priorities(topic, command.priorities, len(command.target))

    def events(piece: Piece, good: Rows | slice, places: Rows, versions: Int64s) -> list[ev.Event]:
        place = (work.now_us, topic.number, piece.partition.number, piece.sequences[good])
        return [Reprioritised(*place, versions, command.priorities[places])]

    return _change(work, topic, command, events)


def move(work: Work, command: Move) -> Reply:
    """New due times for messages that are not out."""
    topic = work.topic(command.topic)
    due = work.moments(command.when, len(command.target))
    expires = None if command.expires is None else work.expiry(command.expires, due)

    def events(piece: Piece, good: Rows | slice, places: Rows, versions: Int64s) -> list[ev.Event]:
        place = (work.now_us, topic.number, piece.partition.number, piece.sequences[good])
        moved = ev.Moved(*place, versions, due[places])
        return [moved] if expires is None else [moved, ev.ExpirySet(*place, expires[places])]

    return _change(work, topic, command, events)


def cancel(work: Work, command: Cancel) -> Reply:
    """Messages that are not out are never delivered again."""
    topic = work.topic(command.topic)

    def events(piece: Piece, good: Rows | slice, places: Rows, versions: Int64s) -> list[ev.Event]:
        place = (work.now_us, topic.number, piece.partition.number)
        return [ev.Cancelled(*place, piece.sequences[good])]

    return _change(work, topic, command, events)


def _change(
    work: Work,
    topic: Topic,
    command: Update | Reprioritise | Move | Cancel,
    make_events: MakeEvents,
) -> Reply:
    target = command.target
    count = len(target)
    versions = column(command.versions, count, "version")
    reply = blank(count)
    for piece in locate(topic, target, reply):
        status = judge_change(
            work, piece, versions[piece.rows], command.owner, target.keys is not None
        )
        reply.status[piece.rows] = status
        current = piece.versions()
        places = np.arange(count)[piece.rows]
        slots = piece.slots
        good: Rows | slice = slice(None)
        if some(status):
            reply.versions[piece.rows] = current
            explain(work, piece, reply)
            good = rows_where(status == codes.OK)
            places, slots, current = places[good], slots[good], current[good]
        if len(places):
            changed = current + 1
            reply.versions[places] = changed
            if not command.dry_run:
                for event in make_events(piece, good, places, changed):
                    work.emit(event, slots)
    unname_strangers(reply, target.keys is not None)
    return reply


def redrive(work: Work, command: Redrive) -> Reply:
    """Dead messages live again, unless another message has their key by now."""
    topic = work.topic(command.topic)
    count = len(command.ids)
    due = work.moments(command.when, count)
    hashes = np.zeros((count, 2), dtype=np.uint64)
    if command.keys is not None:
        if len(command.keys) != count:
            raise InvalidArgument("keys and ids differ in number", field="key")
        hashes = command.keys.hashes
    reply = blank(count)
    for piece in locate(topic, Target(ids=command.ids), reply):
        status = _judge_dead(work, topic, piece)
        mine = hashes[piece.rows]
        keyed = np.flatnonzero((mine[:, 0] != 0) & (status == Outcome.OK))
        if len(keyed):
            holders = piece.partition.find_keys(mine[keyed])
            taken = (holders > 0) & piece.partition.is_live(holders)
            status[keyed[taken]] = Outcome.CONFLICT
        mark_repeated(piece, status)
        keyed = keyed[status[keyed] == Outcome.OK]
        status[keyed[_again(mine[keyed, 0])]] = Outcome.CONFLICT
        reply.status[piece.rows] = status
        current = piece.versions()
        reply.versions[piece.rows] = current
        explain(work, piece, reply)
        good = np.flatnonzero(status == Outcome.OK)
        if len(good):
            places = np.arange(count)[piece.rows][good]
            reply.versions[places] += 1
            work.emit(
                ev.Redriven(
                    work.now_us,
                    topic.number,
                    piece.partition.number,
                    piece.sequences[good],
                    current[good] + 1,
                    due[places],
                    np.ascontiguousarray(mine[good, 0]),
                    np.ascontiguousarray(mine[good, 1]),
                )
            )
    return reply


def purge(work: Work, command: Purge) -> Reply:
    """Dead messages are removed for good."""
    topic = work.topic(command.topic)
    reply = blank(len(command.ids))
    for piece in locate(topic, Target(ids=command.ids), reply):
        status = _judge_dead(work, topic, piece)
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        reply.versions[piece.rows] = piece.versions()
        explain(work, piece, reply)
        good = status == Outcome.OK
        if good.any():
            number = piece.partition.number
            work.emit(ev.Purged(work.now_us, topic.number, number, piece.sequences[good]))
    return reply


def _judge_dead(work: Work, topic: Topic, piece: Piece) -> NDArray[np.uint8]:
    status = np.zeros(len(piece.sequences), dtype=np.uint8)
    others = np.flatnonzero(piece.states != State.DEAD)
    if len(others):
        reasons = why_not(work, piece, others, by_key=False)
        reasons[reasons == Outcome.OK] = Outcome.CONFLICT  # alive: nothing to bring back
        status[others] = reasons
    return status


def _again(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    again = repeated(hashes)
    return np.zeros(len(hashes), dtype=np.bool_) if again is None else again
