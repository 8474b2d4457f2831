"""What may be done to the rows of a group: the definite outcome of each, before anything changes.

A row that is not leased under the token that is shown answers `stale_lease` if it is to be handed
out (again), `done` if it is finished for the group, `dead`, `gone` if retention has taken it, or
`not_found` if the log has no such row yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns import codes
from fasti.core.columns.reductions import every
from fasti.core.delivery.silence import UNOPENED
from fasti.core.lifecycle import Verb
from fasti.core.log import group_events as ge
from fasti.core.log.group import Group, GroupPartition, Groups
from fasti.core.log.window import DEAD, LEASED, NOWHERE, WAITING
from fasti.core.replies import Reply
from fasti.core.state import Topic
from fasti.core.work import Work, repeated, split_ids
from fasti.errors import InvalidArgument, NotFound
from fasti.model import SEQUENCE_BITS, Outcome

if TYPE_CHECKING:
    from fasti.core.log.partition import LogPartition

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]


@dataclass(slots=True)
class GroupPiece:
    """The rows of a command that fall into one partition (a `LeasedRows`, where they are leased)."""

    group: Group
    place: GroupPartition
    log: LogPartition
    topic: int
    rows: NDArray[np.intp] | slice
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def only(self, good: NDArray[np.intp] | NDArray[np.bool_], count: int) -> GroupPiece:
        """Of these rows some. `count` is how many the command has."""
        rows = np.arange(count)[self.rows][good]
        return GroupPiece(self.group, self.place, self.log, self.topic, rows, self.offsets[good])

    def in_order(self, count: int) -> GroupPiece:
        """What many consumers got one after another is a range again."""
        return self.only(np.argsort(self.offsets, kind="stable"), count)

    def ids(self) -> Int64s:
        """The id of each."""
        return self.offsets + 1 | self.log.number << SEQUENCE_BITS

    def attempts(self) -> NDArray[np.uint16]:
        """How often each was handed out."""
        return self.place.attempts[self.place.slots(self.offsets)].copy()

    def due_again(self, work: Work) -> Int64s:
        """At once."""
        return np.full(len(self.offsets), work.now_us, dtype=np.int64)

    # Judging

    def judge(self, work: Work, tokens: Int64s) -> UInt8s:
        """Which rows are leased under the token that is shown."""
        leases = work.state.memory.leases
        status = np.zeros(len(self.offsets), dtype=np.uint8)
        slots = self.place.slots(self.offsets)
        leased = self.place.state[slots] == LEASED
        held = self.place.lease[slots]
        status[leases.token.take(held) != tokens] = codes.STALE_LEASE
        if not every(leased):
            others = np.flatnonzero(~leased)
            reasons = why_not(self, others)
            reasons[reasons == Outcome.OK] = Outcome.STALE_LEASE
            status[others] = reasons
        elif isinstance(slots, slice) or not leases.repeats(held):
            return status
        mark_repeated(self, status)
        return status

    def judge_held(self, work: Work) -> UInt8s:
        """Which rows are leased."""
        status = why_not(self, np.arange(len(self.offsets)))
        leased = status == Outcome.LEASED
        status[status == Outcome.OK] = Outcome.CONFLICT  # nobody has it
        status[leased] = Outcome.OK
        mark_repeated(self, status)
        return status

    def explain(self, work: Work, reply: Reply) -> None:
        """Adds who has the leased ones until when, and when the dead died. Rows have version 1."""
        status = reply.status[self.rows]
        reply.versions[self.rows] = status != Outcome.NOT_FOUND
        told = np.flatnonzero((status == Outcome.LEASED) | (status == Outcome.DEAD))
        if not len(told):
            return
        if reply.at_us is None:
            reply.at_us = np.zeros(len(reply.status), dtype=np.int64)
            reply.by = {}
        assert reply.by is not None
        places = np.arange(len(reply.status))[self.rows][told]
        dead = self.place.dead
        positions = dead.find(self.offsets[told])
        reply.at_us[places[positions >= 0]] = dead.take("at_us", positions[positions >= 0])
        leases, consumers = work.state.memory.leases, work.state.memory.consumers
        leased = status[told] == Outcome.LEASED
        for row, offset in zip(places[leased].tolist(), self.offsets[told][leased], strict=True):
            held = int(self.place.lease[self.place.slots(np.array([offset]))][0])
            reply.by[row] = consumers.name(int(leases.consumer[held]))
            reply.at_us[row] = work.now_us + int(leases.until[held]) - work.tick

    def note_versions(self, reply: Reply) -> None:
        """Rows of a log stay as they are."""

    # Deciding

    def without_lapsed(self, work: Work, count: int) -> GroupPiece:
        """Rows of a log don't expire."""
        return self

    def ack(self, work: Work, started: Int64s) -> None:
        """Done, for the group."""
        work.emit(ge.GroupAcked(*self._where(work), self.offsets, started))

    def extend(self, work: Work, length_us: int) -> None:
        """Longer leases."""
        work.emit(ge.GroupExtended(*self._where(work), length_us, self.offsets))

    def release(self, work: Work, due: Int64s, started: Int64s) -> None:
        """Handed out again, the attempt not counted."""
        self._give_back(work, Verb.RELEASE, "", due, started)

    def nack(self, work: Work, reason: str, due: Int64s, started: Int64s) -> None:
        """Handed out again after a failure."""
        self._give_back(work, Verb.NACK, reason, due, started)

    def die(self, work: Work, reason: str, started: Int64s, exhausted: bool) -> None:
        """Dead for the group; the log keeps the rows."""
        event = ge.GroupDied(*self._where(work), reason, int(exhausted), self.offsets, started)
        work.emit(event)

    def expire(self, work: Work) -> None:
        """Handed out again at once."""
        self._return_now(work, Verb.EXPIRE, "")

    def give_back_unopened(self, work: Work, reasons: NDArray[np.int32]) -> None:
        """Handed out again at once, the attempt not counted."""
        self._return_now(work, Verb.RELEASE, UNOPENED)

    def _return_now(self, work: Work, verb: Verb, reason: str) -> None:
        never = np.zeros(len(self.offsets), dtype=np.int64)
        self._give_back(work, verb, reason, self.due_again(work), never)

    def _give_back(self, work: Work, verb: Verb, reason: str, due: Int64s, started: Int64s) -> None:
        where = self._where(work)
        work.emit(ge.GroupReturned(*where, int(verb), reason, self.offsets, due, started))

    def _where(self, work: Work) -> tuple[int, int, int, int]:
        return work.now_us, self.topic, self.log.number, self.group.number


def find_group(topic: Topic, name: str) -> Group:
    """A group by its name. Raises `invalid_argument` without a name, and `not_found`."""
    if not name:
        raise InvalidArgument("a log is consumed by groups: name one", field="group")
    groups: Groups = topic.body.groups
    group = groups.by_name.get(name)
    if group is None:
        details = {"topic": topic.name, "group": name}
        raise NotFound(f"{topic.name!r} has no group {name!r}", details=details)
    return group


def locate(topic: Topic, group: Group, ids: Int64s, reply: Reply) -> Iterator[GroupPiece]:
    """The rows that ids name, by partition. Fills in ids; strangers are NOT_FOUND."""
    reply.ids[:], reply.versions[:] = ids, 1
    for number, rows, sequences in split_ids(ids, len(group.partitions)):
        if not 0 <= number < len(group.partitions):
            reply.status[rows] = Outcome.NOT_FOUND
            reply.versions[rows] = 0
        elif len(sequences):
            place, log = group.partitions.look(number), topic.body.partitions.look(number)
            yield GroupPiece(group, place, log, topic.number, rows, sequences - 1)


def judge_dead(piece: GroupPiece) -> UInt8s:
    """Which rows are dead; why not, for the others."""
    status = np.zeros(len(piece.offsets), dtype=np.uint8)
    others = np.flatnonzero(piece.place.dead.find(piece.offsets) < 0)
    if len(others):
        reasons = why_not(piece, others)
        reasons[reasons == Outcome.OK] = Outcome.CONFLICT  # alive: nothing to bring back
        status[others] = reasons
    mark_repeated(piece, status)
    return status


def why_not(piece: GroupPiece, rows: NDArray[np.intp]) -> UInt8s:
    """What became of rows; OK for those that are there, to be handed out."""
    place, log, offsets = piece.place, piece.log, piece.offsets[rows]
    slots = place.slots(offsets)
    states = place.state[slots]
    status = np.full(len(rows), Outcome.DONE, dtype=np.uint8)
    status[(states == WAITING) | ((states == NOWHERE) & (offsets >= place.next))] = Outcome.OK
    status[states == LEASED] = Outcome.LEASED
    ended = np.flatnonzero((states == DEAD) | (states == NOWHERE))
    if len(ended):
        dead = place.dead.find(offsets[ended]) >= 0
        status[ended[dead]] = Outcome.DEAD
    status[offsets < log.earliest] = Outcome.GONE
    status[(offsets < 0) | (offsets >= log.next_offset)] = Outcome.NOT_FOUND
    return status


def mark_repeated(piece: GroupPiece, status: UInt8s) -> None:
    """A row changes once a batch: of those that could change it, the first one does."""
    good = np.flatnonzero(status == Outcome.OK)
    again = repeated(piece.offsets[good])
    if again is not None:
        status[good[again]] = Outcome.DUPLICATE
