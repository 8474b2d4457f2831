"""Consumers that fall silent: what the end of their leases means, and what they may still get.

The broker hears frames, the engine decides. When nothing has come from a session since some lease
was written to it, the broker says so (`Unheard`): the leases behind that one are *silent*. A silent
lease that ends counts as no attempt, because it is not known that the message was opened; it goes back
as `Unopened`, with a reason that tells how often in a row that happened. Any sign of the holder ends
the silence for good: a frame (`Heard`), a renewal, a return under its name. So what was opened once, as
far as the broker can know, is counted.

A connection that ends is no silence: a process that dies of a message closes its connection, so the
attempt counts.

Who lets leases run out is in doubt (`Line.doubt`), whether silent or not. All but the events is session
state: never journaled, gone with the process. After a restart what ends is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Heard, Unheard
from fasti.core.replies import Done, SessionDoubted
from fasti.core.state import Topic
from fasti.core.work import Work

if TYPE_CHECKING:
    from fasti.core.delivery.turns import Line

Int64s = NDArray[np.int64]

UNOPENED = "not opened: its consumer fell silent"
_AGAIN = re.compile(re.escape(UNOPENED) + r" \((\d+) times in a row\)")
_TIMES_MAX = 1_000_000


@dataclass(slots=True)
class Holder:
    """Whose leases ran out, and how many."""

    topic: Topic
    group: int
    consumer: str
    ended: int


def unheard(work: Work, command: Unheard, line: Line | None, held: Int64s) -> Done:
    """The session's peer is silent. `held`: the leases of its consumer. How many are silent now."""
    if line is None or line.session_of(command.consumer) != command.session:
        return Done(0)
    work.touched = True
    if command.hold_back:
        line.hold_back(command.session)
    return Done(work.state.memory.leases.note_silent(held, command.after_token))


def heard(work: Work, command: Heard, line: Line | None, held: Int64s) -> bool:
    """The session's peer is there. True if it may get messages now that it could not get before."""
    if line is None or line.session_of(command.consumer) != command.session:
        return False
    work.touched = True
    work.state.memory.leases.note_alive(held)
    line.heard(command.session, command.finished)
    return bool(line)


def holders_of(work: Work, held: Int64s) -> list[Holder]:
    """Who has these leases, which are about to end."""
    leases, names, topics = work.state.memory.leases, work.state.memory.consumers, work.state.topics
    numbers = leases.topic[held]
    groups = np.zeros(len(held), dtype=np.int64)
    for number in np.unique(numbers).tolist():
        if not topics[number].partitions:
            mine = numbers == number
            groups[mine] = topics[number].kind.groups_of(leases.partition[held[mine]])
    places, counts = np.unique(
        np.stack([numbers, groups, leases.consumer[held]]), axis=1, return_counts=True
    )
    holders = [
        Holder(topics[topic], group, names.name(consumer), count)
        for (topic, group, consumer), count in zip(places.T.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(holders, key=lambda holder: (holder.topic.number, holder.group, holder.consumer))


def doubt(work: Work, holder: Holder) -> None:
    """Leases of a consumer have run out: its session, if it has one, gets less."""
    line = dict(holder.topic.kind.lines(holder.topic)).get(holder.group)
    session = line.session_of(holder.consumer) if line is not None else None
    if line is None or session is None:
        return
    work.touched = True
    held = count_held(work, holder.topic, holder.consumer, holder.group)
    line.doubt(session, holder.ended, held)
    work.effects.append(SessionDoubted(session))
    # It may be that it can take a message now, and that messages lie there for it.
    holder.topic.kind.resumed(holder.topic)


def held_on(work: Work, topic: Topic, consumer: str) -> Int64s:
    """Slots of the leases that a consumer has on a topic."""
    number = work.state.memory.consumers.find(consumer)
    if number is None:
        return np.zeros(0, dtype=np.int64)
    return work.state.memory.leases.held_by(number, topic.number)


def count_held(work: Work, topic: Topic, consumer: str, group: int) -> int:
    """How many leases a consumer has on a topic, or in that group of a log."""
    held = held_on(work, topic, consumer)
    if topic.partitions:
        return len(held)
    groups = topic.kind.groups_of(work.state.memory.leases.partition[held])
    return int((groups == group).sum())


def again(reason: str) -> str:
    """The reason of a message that was not opened, by the one that it had before."""
    if reason == UNOPENED:
        times = 1
    elif (found := _AGAIN.fullmatch(reason)) is not None:
        times = int(found[1])
    else:
        return UNOPENED
    return f"{UNOPENED} ({min(times + 1, _TIMES_MAX)} times in a row)"
