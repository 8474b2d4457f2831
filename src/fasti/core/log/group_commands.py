"""Deciding groups: making, deleting and setting them, what they tell, and their dead rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Purge, Redrive
from fasti.core.log import group_events as ge
from fasti.core.log.body import own_numbers
from fasti.core.log.commands import CreateGroup, DeleteGroup, DescribeGroups, ListDead, ResetGroup
from fasti.core.log.group import GROUP_BYTES, Group, GroupPartition, Groups
from fasti.core.log.judging import find_group, judge_dead, locate
from fasti.core.replies import Done, Messages, Reply, blank
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.errors import AlreadyExists, InvalidArgument, Overloaded
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK, Outcome, State

Int64s = NDArray[np.int64]

EARLIEST, LATEST = -1, -2
# A page looks at so many dead rows, however few of them have the reason.
_LOOKED_AT = 65_536


def create_group(work: Work, command: CreateGroup) -> Done:
    """Makes a group. Raises `already_exists`."""
    topic = work.topic(command.topic)
    check_name(work, command.group)
    if command.group in _groups(topic).by_name:
        details = {"topic": topic.name, "group": command.group}
        raise AlreadyExists(f"{topic.name!r} has a group {command.group!r}", details=details)
    offsets = _offsets(topic, command.offsets)
    return Done(make_group(work, topic, command.group, offsets, command.ordered).number)


def make_group(
    work: Work, topic: Topic, name: str, offsets: Int64s, ordered: bool = False
) -> Group:
    """A group that is not there, with a checked name. Raises `overloaded`."""
    groups = _groups(topic)
    if len(groups) >= work.limits.groups_max:
        raise Overloaded(f"{topic.name!r} has {work.limits.groups_max} groups already")
    needed = GROUP_BYTES + len(name) + offsets.nbytes
    work.state.memory.require(needed, "one more consumer group")
    number = groups.free_number()
    work.emit(ge.GroupMade(work.now_us, topic.number, name, number, int(ordered), offsets))
    return groups.by_number[number]


def earliest_offsets(topic: Topic) -> Int64s:
    """Where a group begins that nobody told where."""
    return _ends(topic)[0]


def _ends(topic: Topic) -> tuple[Int64s, Int64s]:
    """Where each partition of the log begins, and where it ends."""
    partitions = topic.body.partitions
    earliest, end = np.zeros((2, len(partitions)), dtype=np.int64)
    for log in partitions.made():
        earliest[log.number], end[log.number] = log.earliest, log.next_offset
    return earliest, end


def check_name(work: Work, name: str) -> None:
    """Raises `invalid_argument` on a name that no group may have."""
    limit = work.limits.name_bytes_max
    if not name:
        raise InvalidArgument("a log is consumed by a group: name one", field="group")
    if len(name.encode()) > limit or not name.isprintable():
        message = f"a group's name is 1 to {limit} printable bytes"
        raise InvalidArgument(message, field="group", limit=limit)


def delete_group(work: Work, command: DeleteGroup) -> Done:
    """Forgets a group. Its leases end, and whoever waits is told."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    work.emit(ge.GroupDropped(work.now_us, topic.number, group.number))
    log_turns = topic.kind.turns  # type: ignore[attr-defined]
    log_turns.delete(work, topic, group)
    log_turns.forget(topic, group)
    return Done(group.number)


def reset_group(work: Work, command: ResetGroup) -> Done:
    """The group goes on elsewhere, in one partition or in all."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    count = len(group.partitions)
    if not -1 <= command.partition < count:
        raise InvalidArgument(f"partitions are 0 to {count - 1}", field="partition")
    if command.partition < 0:
        numbers, offsets = own_numbers(topic), _offsets(topic, command.offsets)
    else:
        numbers = [command.partition]
        wanted = np.asarray(command.offsets, dtype=np.int64).reshape(-1)
        if len(wanted) != 1:
            raise InvalidArgument("one offset for one partition", field="offset")
        offsets = _offsets(topic, np.full(count, wanted[0]), command.partition)
    for number in numbers:
        where = topic.number, number, group.number
        work.emit(ge.GroupSet(work.now_us, *where, int(offsets[number])))
    return Done(group.number)


def _offsets(topic: Topic, wanted: Int64s | int, only: int = -1) -> Int64s:
    """An offset for each partition, checked: where the log has rows, or its end."""
    earliest, end = _ends(topic)
    given = np.asarray(wanted, dtype=np.int64)
    if given.ndim == 0:
        given = np.full(len(end), int(given), dtype=np.int64)
    if len(given) != len(end):
        raise InvalidArgument(f"{len(given)} offsets for {len(end)} partitions", field="offset")
    if topic.own is not None:
        # No place is named where a group begins at an end, or at none at all.
        topic.own.check_numbers(topic.name, np.flatnonzero(given > 0))
    offsets = np.where(given == EARLIEST, earliest, np.where(given == LATEST, end, given))
    outside = (offsets < earliest) | (offsets > end)
    if only >= 0:
        outside &= np.arange(len(end)) == only
    if outside.any():
        number = int(outside.argmax())
        raise InvalidArgument(
            f"partition {number} has offsets {earliest[number]} to {end[number]}, not "
            f"{given[number]}",
            field="offset",
            limit=int(end[number]),
        )
    return offsets


def describe_groups(work: Work, command: DescribeGroups) -> Done:
    """One group, or all by name: where it is in each partition."""
    topic = work.topic(command.topic)
    if command.group:
        groups = [find_group(topic, command.group)]
    else:
        groups = [group for _, group in sorted(_groups(topic).by_name.items())]
    logs = topic.body.partitions
    return Done(
        [
            {
                "group": group.name,
                "ordered": group.ordered,
                "partitions": [
                    _describe(number, group.partitions.look(number), logs.look(number))
                    for number in own_numbers(topic)
                ],
            }
            for group in groups
        ]
    )


def _describe(number: int, place: GroupPartition, log: Any) -> dict[str, Any]:
    unseen = log.next_offset - place.next
    return {
        "partition": number,
        "committed": place.committed,
        "consumed": place.next - 1,
        "earliest": log.earliest,
        "end": log.next_offset,
        "lag": unseen + place.open + len(place.strays),
        "leased": place.leased,
        "again": place.waiting,
        "dead": place.dead.count,
        "dead_forgotten": place.dead.forgotten,
        "window_full": place.room <= 0 < unseen,
        "behind": place.behind,
    }


# The dead


def list_dead(work: Work, command: ListDead) -> Messages:
    """Dead rows of a group in id order; a page may be short, `next_after_id` tells of the next."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    if command.after_id < 0:
        raise InvalidArgument("after_id must be an id, or 0", field="after_id")
    limit = min(max(1, command.limit), work.limits.page_rows_max)
    number, offset = command.after_id >> SEQUENCE_BITS, (command.after_id & SEQUENCE_MASK) - 1
    if topic.own is not None:
        here = topic.own.next_from(number)
        number, offset = here, offset if here == number else -1
    if number >= len(group.partitions):
        return _page(work, topic, group, 0, np.zeros(0, dtype=np.int64))
    dead = group.partitions.look(number).dead
    positions = dead.after(offset, limit + 1 if command.reason is None else _LOOKED_AT)
    looked_at_all = len(positions) < (limit + 1 if command.reason is None else _LOOKED_AT)
    last = int(dead.take("offset", positions[-1:])[0]) if len(positions) else offset
    if command.reason is not None:
        positions = positions[_has_reason(work, dead.take("reason", positions), command.reason)]
    found = _page(work, topic, group, number, positions[:limit])
    if len(positions) > limit:
        found.next_after_id = int(found.ids[-1])
    elif not looked_at_all:
        found.next_after_id = last + 1 | number << SEQUENCE_BITS
    elif topic.own is not None:
        following = topic.own.next_from(number + 1)
        if following < len(group.partitions):
            found.next_after_id = following << SEQUENCE_BITS
    elif number + 1 < len(group.partitions):
        found.next_after_id = (number + 1) << SEQUENCE_BITS
    return found


def _has_reason(work: Work, reasons: NDArray[Any], text: str) -> NDArray[np.bool_]:
    names = work.state.memory.reasons
    wanted = [number for number in np.unique(reasons).tolist() if text in names.name(number)]
    return np.isin(reasons, wanted)


def _page(work: Work, topic: Topic, group: Group, number: int, positions: Int64s) -> Messages:
    dead, log = group.partitions.look(number).dead, topic.body.partitions.look(number)
    count = len(positions)
    none = np.zeros(count, dtype=np.int64)
    offsets = dead.take("offset", positions)
    columns = {
        "due_us": log.times_of(offsets) if count else none,
        "version": none + 1,
        "state": np.full(count, State.DEAD, dtype=np.uint8),
        "attempts": dead.take("attempts", positions),
        "location": log.locations_of(offsets) if count else none,
        "owner": none,
        "consumer": none,
        "reason": dead.take("reason", positions),
        "died_us": dead.take("at_us", positions),
    }
    status = np.zeros(count, dtype=np.uint8)
    ids = offsets + 1 | number << SEQUENCE_BITS
    return Messages(status, ids, columns, work.state.memory.names())


def redrive(work: Work, command: Redrive) -> Reply:
    """Dead rows are handed out again, with no attempts counted."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    due = work.moments(command.when, len(command.ids))
    reply = blank(len(command.ids))
    for piece in locate(topic, group, command.ids, reply):
        reply.status[piece.rows] = status = judge_dead(piece)
        piece.explain(work, reply)
        good = np.flatnonzero(status == Outcome.OK)
        if len(good):
            chosen = piece.only(good, len(command.ids))
            where = topic.number, piece.log.number, group.number
            work.emit(ge.GroupRevived(work.now_us, *where, chosen.offsets, due[chosen.rows]))
    return reply


def purge(work: Work, command: Purge) -> Reply:
    """Dead rows are forgotten by the group; the log keeps them."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    reply = blank(len(command.ids))
    for piece in locate(topic, group, command.ids, reply):
        reply.status[piece.rows] = status = judge_dead(piece)
        piece.explain(work, reply)
        good = status == Outcome.OK
        if good.any():
            where = topic.number, piece.log.number, group.number
            work.emit(ge.GroupPurged(work.now_us, *where, piece.offsets[good]))
    return reply


def _groups(topic: Topic) -> Groups:
    groups: Groups = topic.body.groups
    return groups
