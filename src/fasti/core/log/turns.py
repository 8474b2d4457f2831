"""Whose turn it is in the groups of logs, and what they get.

Sessions wait in one line per group (delivery/turns.py), first come first served. A partition that has
something to give stands among the group's *ready* ones, and goes to the end of them when it gave;
it comes there by a hint: rows were appended or given back, or the window has room again. What may
go out only later is planned.

Rows that go out again and fresh ones are served side by side: when there are both, each gets half
of a turn, so that neither holds the other up, however slow or broken a row is. Fresh rows stop at
the window's end (window.py).

A group that lost rows to retention gives nothing: those who wait are ended with `gone`, and so is
everybody who comes, until the group is set anew.

All of this is session state: never journaled, gone with the process. The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import Agenda
from fasti.core.commands import Lease
from fasti.core.delivery import turns
from fasti.core.delivery.turns import TURN_ROWS, TURN_ROWS_MIN, Key, Line, Turns, Waiting
from fasti.core.log import group_events as ge
from fasti.core.log.commands import KeysLoaded
from fasti.core.log.group import Group, GroupPartition, Groups
from fasti.core.log.group_commands import check_name, earliest_offsets, make_group
from fasti.core.log.leasing import held_in_group
from fasti.core.log.serving import deliver, has_more, lease_from
from fasti.core.replies import ConsumerReplaced, Done
from fasti.core.state import ShardState, Topic
from fasti.core.work import Work
from fasti.errors import FastiError, Gone
from fasti.model import PARTITIONS_MAX, SECOND_US

Int64s = NDArray[np.int64]


class _Waiters:
    """Which partitions of a group that somebody waits for may have rows."""

    __slots__ = ("planned", "ready")

    def __init__(self, partitions: list[int]) -> None:
        self.ready: dict[int, None] = dict.fromkeys(partitions)
        # By partition: when it will be ready by itself.
        self.planned: Agenda[int] = Agenda()


class LogTurns(Turns):
    """The lines of all groups of a shard."""

    turn_cost = 50

    def __init__(self, state: ShardState) -> None:
        super().__init__(state)
        self._waiters: dict[Key, _Waiters] = {}
        self._groups_of: dict[int, set[int]] = {}
        # By session, the groups (topic's number, name) that it lost because they were deleted: what
        # it asked for before it knew must not make them again.
        self._deleted: dict[int, set[tuple[int, str]]] = {}

    # Sessions

    def _find(self, topic: Topic, group: str) -> Key | None:
        known = topic.body.groups.by_name.get(group)
        return None if known is None else (topic.number, known.number)

    def _admit(self, work: Work, topic: Topic, command: Lease) -> Key:
        check_name(work, command.group)
        if (topic.number, command.group) in self._deleted.get(command.session, ()):
            raise deleted(command.group)
        groups: Groups = topic.body.groups
        group = groups.by_name.get(command.group)
        if group is not None and group.is_behind:
            raise _behind(topic, group)
        return topic.number, group.number if group is not None else groups.free_number()

    def _open(self, work: Work, topic: Topic, command: Lease, key: Key) -> None:
        """The group is made if there is none; all its partitions may have something to give."""
        if command.group not in topic.body.groups.by_name:
            make_group(work, topic, command.group, earliest_offsets(topic))
        if key not in self._waiters:
            self._waiters[key] = _Waiters(topic.body.partitions.numbers())
            self._groups_of.setdefault(key[0], set()).add(key[1])

    def _resume(self, work: Work, topic: Topic, command: Lease) -> None:
        group = topic.body.groups.by_name[command.group]
        leases = work.state.memory.leases
        held = held_in_group(work.state.memory, topic.number, group, command.consumer)
        numbers = leases.partition[held] & (PARTITIONS_MAX - 1)
        for number in np.unique(numbers).tolist():
            offsets = np.sort(leases.sequence[held[numbers == number]]) - 1
            token = leases.next_token
            where = topic.number, number, group.number
            work.emit(ge.GroupResumed(work.now_us, *where, token, offsets))
            deliver(work, topic, group, number, command.session, token, offsets)

    def detach(self, session: int) -> set[Key]:
        """The session is gone from all lines."""
        self._deleted.pop(session, None)
        return super().detach(session)

    def end(self, work: Work, topic: Topic, group: Group, error: FastiError) -> None:
        """All who wait are told that they wait for nothing."""
        line = self._lines.get((topic.number, group.number), Line())
        for waiting in line.everyone():
            line.leave(waiting.session)
            ended = ConsumerReplaced(waiting.session, topic.name, waiting.consumer, error)
            work.effects.append(ended)

    def delete(self, work: Work, topic: Topic, group: Group) -> None:
        """The group is being deleted: whoever waits, or has waited, is told."""
        key = topic.number, group.number
        for session, keys in self._lines_of.items():
            if key in keys:
                keys.discard(key)
                self._deleted.setdefault(session, set()).add((topic.number, group.name))
        self.end(work, topic, group, deleted(group.name))

    def lines(self, topic: Topic) -> Iterator[tuple[int, Line]]:
        """Who waits for the rows of each group."""
        for number in self._groups_of.get(topic.number, ()):
            yield number, self._lines[topic.number, number]

    def resume(self, topic: Topic) -> None:
        """The topic was paused: groups go on where they were."""
        for number in self._groups_of.get(topic.number, ()):
            if self._lines[topic.number, number]:
                self._due[topic.number, number] = None

    def forget(self, topic: Topic, group: Group) -> None:
        """The group is gone."""
        key = topic.number, group.number
        self._drop(key)
        self._groups_of.get(topic.number, set()).discard(group.number)

    def forget_topic(self, topic: Topic) -> None:
        """The topic is deleted: nobody waits for its groups."""
        for number in self._groups_of.pop(topic.number, ()):
            self._drop((topic.number, number))

    def _drop(self, key: Key) -> None:
        super()._drop(key)
        self._waiters.pop(key, None)

    # Hints, from apply

    def grown(self, topic: Topic, partition: int) -> None:
        """There are more rows for every group."""
        for number in self._groups_of.get(topic.number, ()):
            self._ready((topic.number, number), partition)

    def look(self, topic: Topic, group: Group, partition: int) -> None:
        """Something about the group's place there is new."""
        self._ready((topic.number, group.number), partition)

    def finished(self, topic: Topic, group: Group, partition: int) -> None:
        """The window may have room again, or a key be free."""
        key = topic.number, group.number
        if key in self._waiters and partition not in self._waiters[key].ready:
            self._ready(key, partition)

    def returned(self, topic: Topic, group: Group, partition: int, due_us: int) -> None:
        """Rows may go out again from a moment on."""
        key = topic.number, group.number
        if key in self._waiters:
            self._plan(key, partition, due_us)

    def keys_loaded(self, work: Work, command: KeysLoaded) -> Done:
        """Storage has read keys of a partition, for every ordered group."""
        topic = work.state.topics.get(command.topic)
        if topic is None:
            return Done()
        for group in topic.body.groups.by_number.values():
            place = group.partitions.get(command.partition)
            if place is not None and place.order is not None:
                place.order.load(command.first_offset, command.hashes, place.committed)
                if len(command.hashes):
                    self.look(topic, group, command.partition)
                else:
                    # It could not be read: again a little later.
                    again_us = work.now_us + SECOND_US
                    self._plan((topic.number, group.number), command.partition, again_us)
        return Done()

    def _ready(self, key: Key, partition: int) -> None:
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.ready[partition] = None
            if self._lines[key]:
                self._due[key] = None

    def _plan(self, key: Key, partition: int, due_us: int) -> None:
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.planned.plan_by(partition, due_us)
            self._agenda.plan_by(key, due_us)

    # Serving

    def serve(self, work: Work) -> bool:
        """Hands out what is to go now; True if there is more to do at once."""
        while (planned := self._agenda.pop(work.now_us)) is not None:
            partitions = self._waiters[planned].planned
            while (partition := partitions.pop(work.now_us)) is not None:
                self._ready(planned, partition)
            self._agenda.plan(planned, partitions.next_us())
        for key in [key for key in self._due if self._group(key).is_behind]:
            group = self._group(key)
            topic = self._state.topics[key[0]]
            self.end(work, topic, group, _behind(topic, group))
            del self._due[key]
        if not self._due or not work.state.memory.leases.free:
            return False
        return self._serve_due(work)[0]

    def _group(self, key: Key) -> Group:
        group: Group = self._state.topics[key[0]].body.groups.by_number[key[1]]
        return group

    def _turn(self, work: Work, key: Key, budget: int) -> tuple[int, bool]:
        topic, waiters = self._state.topics[key[0]], self._waiters[key]
        if topic.paused:
            del self._due[key]
            return 0, False
        line, group = self._lines[key], self._group(key)
        work.serving = topic.name
        handed = _serve(self, work, topic, group, line, waiters, budget)
        work.serving = ""
        del self._due[key]
        if line and waiters.ready:
            # Whoever got something comes last next time, so that no group starves another.
            self._due[key] = None
            return handed, work.state.memory.leases.free > 0
        return handed, False

    def _serve_at_once(self, work: Work, topic: Topic, key: Key, session: int) -> None:
        line, waiters, group, more = self._lines[key], self._waiters[key], self._group(key), 1
        while more and line.find(session):
            more = _serve(self, work, topic, group, line, waiters, turns.SERVED_PER_STEP)

    def rest(self, key: Key, partition: int, waiters: _Waiters, place: GroupPartition) -> None:
        """A partition has no more to give for now."""
        del waiters.ready[partition]
        due_us = place.again.first_due()
        if due_us is not None:
            self._plan(key, partition, due_us)


def _serve(
    turns: LogTurns,
    work: Work,
    topic: Topic,
    group: Group,
    line: Line,
    waiters: _Waiters,
    budget: int,
) -> int:
    """Hands rows to those who wait: how many."""
    handed = 0
    most = _turn_rows(topic, group, line, waiters)
    while line and waiters.ready and handed < budget:
        waiting = line.first()
        count = min(line.can_take(waiting), most, budget, work.state.memory.leases.free)
        if handed + count > budget:
            break  # Not a part of its share: it comes first in the next step.
        taken = _take(turns, work, topic, group, waiters, waiting, count)
        if not taken:
            break
        handed += taken
        line.end_turn(taken)
    return handed


def _turn_rows(topic: Topic, group: Group, line: Line, waiters: _Waiters) -> int:
    """How many rows a session gets at a time: an even share of what is there."""
    if len(line) < 2:
        return TURN_ROWS
    logs = topic.body.partitions
    there = 0
    for number in waiters.ready:
        place = group.partitions[number]
        there += logs[number].next_offset - place.next + place.again.entries
    return min(TURN_ROWS, max(TURN_ROWS_MIN, -(-there // len(line))))


def _take(
    turns: LogTurns,
    work: Work,
    topic: Topic,
    group: Group,
    waiters: _Waiters,
    waiting: Waiting,
    count: int,
) -> int:
    """Leases up to `count`: from one partition after another."""
    key, taken = (topic.number, group.number), 0
    while waiters.ready and taken < count:
        share = max(TURN_ROWS_MIN, -(-count // len(waiters.ready)))
        number = next(iter(waiters.ready))
        wanted = min(share, count - taken)
        got = lease_from(work, topic, group, number, waiting, wanted)
        taken += got
        place, log = group.partitions[number], topic.body.partitions[number]
        if got < wanted and not has_more(place, log, work.now_us):
            turns.rest(key, number, waiters, place)
            continue
        waiters.ready[number] = waiters.ready.pop(number)
        if not got:
            break  # It looked at many rows that are blocked: more of them in the next step.
    return taken


def deleted(name: str) -> Gone:
    """What consumers of a group are told that is no more."""
    return Gone(f"the group {name!r} was deleted", details={"group": name})


def _behind(topic: Topic, group: Group) -> Gone:
    """What consumers of a group are told that lost rows."""
    number = next(n for n in group.partitions.numbers() if group.partitions[n].behind)
    place, earliest = group.partitions[number], topic.body.partitions[number].earliest
    return Gone(
        f"group {group.name!r} is behind: {place.behind} rows of partition {number} of "
        f"{topic.name!r} were dropped before it had finished them; reset it to go on",
        details={
            "topic": topic.name,
            "group": group.name,
            "partition": number,
            "earliest": earliest,
            "lost": place.behind,
        },
    )
