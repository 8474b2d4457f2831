"""A naive model of a log's consumer groups: a dictionary of rows per group, every rule in words.

Property tests give the same commands to the engine and to this model. What the engine may choose,
which rows go out in which turn, the model is told (`delivered`), and it checks that each of them
was allowed to; `held_up` names what should have gone out and did not. All else it works out by
itself and is compared. A refused command raises the same `FastiError` and changes nothing.

One log, one thread. Jitter of retries is left out: whoever tests sets it to 0.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fasti.errors import AlreadyExists, FastiError, Fenced, Gone, InvalidArgument, NotFound
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK, TopicSettings

EARLIEST, LATEST = -1, -2


@dataclass
class Log:
    """One partition: the key of each row, and which of them are there."""

    keys: list[str | None] = field(default_factory=list)
    earliest: int = 0

    @property
    def end(self) -> int:
        return len(self.keys)


@dataclass
class Lease:
    """Who has a row."""

    consumer: str
    token: int
    until: int
    hold_until: int
    length_us: int
    # What is known of the holder since it got the row: nothing, "alive" or "silent".
    sign: str = ""


@dataclass
class Row:
    """A row that was handed out and is not finished. `revived`: it was dead before."""

    attempts: int = 0
    due_us: int = 0
    lease: Lease | None = None
    revived: bool = False


@dataclass
class Death:
    """A dead row."""

    reason: str
    attempts: int
    at_us: int


@dataclass
class Place:
    """A group's place in a partition. `over` are the finished rows at or above the beginning."""

    begin: int
    next: int
    rows: dict[int, Row] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    dead: dict[int, Death] = field(default_factory=dict)
    behind: int = 0

    @property
    def committed(self) -> int:
        offset = self.begin
        while offset in self.over:
            offset += 1
        return offset

    def unfinished(self, end: int) -> int:
        revived = sum(row.revived for row in self.rows.values())
        above = {offset for offset in self.over if offset >= self.begin}
        return end - self.begin - len(above) + revived


@dataclass
class Line:
    """Who waits: session to consumer and credit, and whose session each name is."""

    waiting: dict[int, list[Any]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    held_back: set[int] = field(default_factory=set)
    # How many rows a session may hold that let leases run out, and how many more it may take.
    doubts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def can_take(self, session: int) -> int:
        if session in self.held_back or session not in self.waiting:
            return 0
        credit: int = self.waiting[session][1]
        return min(credit, self.doubts[session][1]) if session in self.doubts else credit

    def leave(self, session: int) -> None:
        self.waiting.pop(session, None)
        self.held_back.discard(session)
        self.doubts.pop(session, None)
        self.names = {name: its for name, its in self.names.items() if its != session}


@dataclass
class Group:
    """A group."""

    ordered: bool
    places: list[Place]
    line: Line = field(default_factory=Line)
    # Everybody who has waited and not gone since.
    sessions: set[int] = field(default_factory=set)

    @property
    def is_behind(self) -> bool:
        return any(place.behind for place in self.places)


class GroupsModel:
    """The groups of one log."""

    def __init__(self, settings: TopicSettings, window_rows: int, dead_max: int) -> None:
        self.settings, self.window_rows, self.dead_max = settings, window_rows, dead_max
        self.now_us = self.tick = 0
        self.logs = [Log() for _ in range(settings.partitions)]
        self.groups: dict[str, Group] = {}
        self._in_transaction = False
        # Groups that sessions had when they were deleted: these don't make them again.
        self.deleted: dict[int, set[str]] = {}
        # Sessions that are to be told something in this step: (session, replaced or gone).
        self.ended: set[tuple[int, str]] = set()

    # Rows

    def produce(self, partition: int, keys: list[str | None]) -> list[int]:
        log = self.logs[partition]
        ids = [make_id(partition, log.end + place) for place in range(len(keys))]
        log.keys += keys
        return ids

    def trim(self, partition: int, first: int) -> None:
        """Retention, or somebody, drops rows."""
        log = self.logs[partition]
        if not 0 <= first <= log.end:
            raise InvalidArgument("beyond the end", field="before")
        if first <= log.earliest:
            return
        log.earliest = first
        for group in self.groups.values():
            place = group.places[partition]
            lost = [offset for offset in range(place.begin, first) if offset not in place.over]
            strays = [o for o, row in place.rows.items() if row.revived and o < first]
            place.behind += len(lost) + len(strays)
            place.rows = {o: row for o, row in place.rows.items() if o >= first}
            place.dead = {o: death for o, death in place.dead.items() if o >= first}
            place.begin, place.next = max(place.begin, first), max(place.next, first)
            if place.behind:
                self.ended |= {(session, "gone") for session in group.line.waiting}
                for session in list(group.line.waiting):
                    group.line.leave(session)

    # Groups

    def group(self, name: str) -> Group:
        if not name:
            raise InvalidArgument("no name", field="group")
        if name not in self.groups:
            raise NotFound(f"no group {name!r}")
        return self.groups[name]

    def create_group(self, group: str, offsets: list[int], ordered: bool) -> None:
        if group in self.groups:
            raise AlreadyExists(f"there is a group {group!r}")
        places = [Place(o, o) for o in self._offsets(offsets)]
        self.groups[group] = Group(ordered, places)

    def delete_group(self, group: str) -> None:
        found = self.group(group)
        self.ended |= {(session, "gone") for session in found.line.waiting}
        for session in found.sessions:
            self.deleted.setdefault(session, set()).add(group)
        del self.groups[group]

    def reset_group(self, group: str, offsets: list[int], partition: int) -> None:
        found = self.group(group)
        wanted = offsets if partition < 0 else [offsets[0]] * len(self.logs)
        for number, offset in enumerate(self._offsets(wanted, partition)):
            if partition in (-1, number):
                place = found.places[number]
                kept = {o: death for o, death in place.dead.items() if o < offset}
                found.places[number] = Place(offset, offset, dead=kept)

    def _offsets(self, offsets: list[int], only: int = -1) -> list[int]:
        found = []
        for number, (log, offset) in enumerate(zip(self.logs, offsets, strict=True)):
            if offset in (EARLIEST, LATEST):
                found.append(log.earliest if offset == EARLIEST else log.end)
            elif only in (-1, number) and not log.earliest <= offset <= log.end:
                raise InvalidArgument("no such offset", field="offset")
            else:
                found.append(offset)
        return found

    def describe(self, group: str) -> list[dict[str, Any]]:
        found = []
        for place, log in zip(self.group(group).places, self.logs, strict=True):
            leased = sum(row.lease is not None for row in place.rows.values())
            # Rows of busy keys that later ones went past wait too, though nobody had them.
            open_rows = [o for o in range(place.begin, place.next) if o not in place.over]
            strays = sum(row.revived for row in place.rows.values())
            full = place.next - place.committed >= self.window_rows and log.end > place.next
            found.append(
                {
                    "committed": place.committed,
                    "consumed": place.next - 1,
                    "earliest": log.earliest,
                    "end": log.end,
                    "lag": place.unfinished(log.end),
                    "leased": leased,
                    "again": len(open_rows) + strays - leased,
                    "dead": len(place.dead),
                    "window_full": full,
                    "behind": place.behind,
                }
            )
        return found

    # Sessions

    def lease(
        self, group: str, session: int, consumer: str, count: int
    ) -> dict[tuple[int, int], int]:
        """A session waits. Returns the rows that it has already, which go to it once more."""
        if group in self.deleted.get(session, ()):
            raise Gone("the group was deleted")
        if group not in self.groups:
            self.create_group(group, [EARLIEST] * len(self.logs), False)
        found = self.groups[group]
        if found.is_behind:
            raise Gone("rows were lost")
        line = found.line
        waiting = line.waiting.get(session)
        if waiting is not None and waiting[0] != consumer:
            raise InvalidArgument("waits under another name", field="consumer")
        before = line.names.get(consumer)
        resumed: dict[tuple[int, int], int] = {}
        if before is not None and before > session:
            raise Fenced("a newer session has the name")
        if before != session:
            if before is not None:
                line.leave(before)
                self.ended.add((before, "fenced"))
            line.names[consumer] = session
            for number, place in enumerate(found.places):
                for offset, row in place.rows.items():
                    if row.lease is not None and row.lease.consumer == consumer:
                        resumed[number, offset] = row.attempts
        if count or waiting is not None:
            line.waiting.setdefault(session, [consumer, 0])[1] += count
        if session in line.doubts:
            limit = line.doubts[session][0]
            line.doubts[session] = limit, max(0, limit - len(self._held(found, consumer)))
        found.sessions.add(session)
        return resumed

    def limit(self, group: str, session: int, credit: int) -> None:
        """The session waits for no more than so many."""
        line = self.groups[group].line
        if session in line.waiting:
            line.waiting[session][1] = min(line.waiting[session][1], credit)
            if not credit:
                del line.waiting[session]

    def detach(self, session: int) -> None:
        self.deleted.pop(session, None)
        for group in self.groups.values():
            group.line.leave(session)
            group.sessions.discard(session)

    def resumed(self, group: str, partition: int, offsets: list[int], token: int) -> None:
        """The engine gave rows again to a consumer that came back."""
        for offset in offsets:
            lease = self.groups[group].places[partition].rows[offset].lease
            assert lease is not None
            lease.token = token
            self._renew(lease)

    def delivered(
        self, group: str, session: int, partition: int, rows: dict[int, int], token: int
    ) -> None:
        """The engine handed rows out, with these attempts. AssertionError if it should not have."""
        found = self.groups[group]
        assert not found.is_behind, "a group that lost rows gives nothing"
        waiting = found.line.waiting[session]
        line = found.line
        assert line.can_take(session) >= len(rows), "a session gets no more than it asked for"
        if session in line.doubts:
            others = [its for its in line.waiting if its not in line.doubts]
            assert not any(line.can_take(its) for its in others), "others come first"
            limit, left = line.doubts[session]
            line.doubts[session] = limit, left - len(rows)
        waiting[1] -= len(rows)
        if not waiting[1]:
            del found.line.waiting[session]
        for offset, attempts in rows.items():
            self._hand_out(found, partition, offset)
            row = found.places[partition].rows[offset]
            assert row.attempts == attempts, "attempts are counted"
            until = self.tick + self.settings.lease_us
            hold_until = self.tick + self.settings.hold_us
            length_us = self.settings.lease_us
            row.lease = Lease(waiting[0], token, until, hold_until, length_us)

    def _hand_out(self, group: Group, partition: int, offset: int) -> None:
        place, log = group.places[partition], self.logs[partition]
        row = place.rows.get(offset)
        if row is None:
            assert max(log.earliest, place.begin) <= offset < log.end, "the log has the row"
            assert offset not in place.over, "what is finished is not handed out"
            assert offset - place.committed < self.window_rows, "the window bounds what is out"
            if not group.ordered:
                assert offset == place.next, "fresh rows leave in the order of their offsets"
            row = place.rows[offset] = Row()
        assert row.lease is None, "at most one has a row"
        assert row.due_us <= self.now_us, "a row waits for its time"
        assert self._may_go(group, partition, offset), "one row of a key at a time, in order"
        row.attempts += 1
        place.next = max(place.next, offset + 1)

    def _may_go(self, group: Group, partition: int, offset: int) -> bool:
        place, keys = group.places[partition], self.logs[partition].keys
        row = place.rows.get(offset)
        if not group.ordered or keys[offset] is None or (row is not None and row.revived):
            return True
        earlier = range(place.begin, offset)
        return not any(o not in place.over and keys[o] == keys[offset] for o in earlier)

    def held_up(self, group: str) -> set[tuple[int, int]]:
        """Rows that could go out now. None may be left while somebody waits."""
        found = self.groups[group]
        if found.is_behind:
            return set()
        could: set[tuple[int, int]] = set()
        for number, (place, log) in enumerate(zip(found.places, self.logs, strict=True)):
            first = place.begin if found.ordered else place.next
            end = min(log.end, place.committed + self.window_rows)
            fresh = {o for o in range(first, end) if o not in place.over and o not in place.rows}
            back = {
                offset
                for offset, row in place.rows.items()
                if row.lease is None and row.due_us <= self.now_us
            }
            could |= {(number, o) for o in fresh | back if self._may_go(found, number, o)}
        return could

    def live(self, group: str) -> list[tuple[int, int]]:
        """(id, token) of the rows that somebody has."""
        return [
            (make_id(number, offset), row.lease.token)
            for number, place in enumerate(self.groups[group].places)
            for offset, row in place.rows.items()
            if row.lease is not None
        ]

    # Under a lease

    def use(self, verb: str, group: str, rows: list[tuple[int, int]], **more: Any) -> list[str]:
        """Ack, release, nack, reject or extend: (id, token) each. What became of each row."""
        found, seen, answers = self.group(group), set[int](), []
        good: list[tuple[Place, int, int]] = []
        for row, (message_id, token) in enumerate(rows):
            answer = self._judge(found, message_id, token)
            if answer == "ok" and message_id in seen:
                answer = "duplicate"
            elif answer == "ok":
                seen.add(message_id)
                good.append((*self._place(found, message_id), row))
            answers.append(answer)
        for place, offset, row in good:
            self._do(verb, place, offset, row, **more)
        self._forget(found)
        return answers

    def _place(self, group: Group, message_id: int) -> tuple[Place, int]:
        return group.places[message_id >> SEQUENCE_BITS], (message_id & SEQUENCE_MASK) - 1

    def _judge(self, group: Group, message_id: int, token: int) -> str:
        answer = self._look(group, message_id)
        if answer in ("leased", "there"):
            place, offset = self._place(group, message_id)
            row = place.rows.get(offset)
            held = row is not None and row.lease is not None and row.lease.token == token
            return "ok" if held else "stale_lease"
        return answer

    def _look(self, group: Group, message_id: int) -> str:
        number, offset = message_id >> SEQUENCE_BITS, (message_id & SEQUENCE_MASK) - 1
        if not 0 <= number < len(self.logs) or not 0 <= offset < self.logs[number].end:
            return "not_found"
        place = group.places[number]
        if offset < self.logs[number].earliest:
            return "gone"
        row = place.rows.get(offset)
        if row is not None:
            return "leased" if row.lease is not None else "there"
        if offset in place.dead:
            return "dead"
        return "done" if offset < place.begin or offset in place.over else "there"

    def _do(
        self,
        verb: str,
        place: Place,
        offset: int,
        row: int,
        *,
        due_us: list[int] | None = None,
        reason: str = "",
        length_us: int = 0,
    ) -> None:
        its = place.rows[offset]
        assert its.lease is not None
        if verb == "extend":
            its.lease.length_us, its.lease.until = length_us, self.tick + length_us
            its.lease.sign = "alive"
            return
        its.lease = None
        if verb == "ack":
            place.over.add(offset)
            del place.rows[offset]
        elif verb == "release":
            its.attempts -= 1
            its.due_us = due_us[row] if due_us is not None else self.now_us
        elif verb == "reject" or self._is_spent(its):
            self._die(place, offset, reason)
        elif verb == "expire":
            its.due_us = self.now_us
        else:
            retry = self.settings.retry
            grown = retry.base_us * retry.factor ** (its.attempts - 1)
            its.due_us = self.now_us + int(min(grown, retry.limit_us))

    def _is_spent(self, row: Row) -> bool:
        return bool(self.settings.max_attempts) and row.attempts >= self.settings.max_attempts

    def _die(self, place: Place, offset: int, reason: str) -> None:
        row = place.rows.pop(offset)
        place.over.add(offset)
        place.dead[offset] = Death(reason, row.attempts, self.now_us)

    def _forget(self, group: Group) -> None:
        for place in group.places if not self._in_transaction else ():
            while len(place.dead) > self.dead_max:
                del place.dead[next(iter(place.dead))]

    def heartbeat(self, group: str, consumer: str) -> int:
        held = self._held(self.group(group), consumer)
        for lease in held:
            self._renew(lease)
        return len(held)

    def _held(self, group: Group, consumer: str) -> list[Lease]:
        return [
            row.lease
            for place in group.places
            for row in place.rows.values()
            if row.lease is not None and row.lease.consumer == consumer
        ]

    def unheard(self, group: str, session: int, consumer: str, after: int, hold_back: bool) -> int:
        """A session's peer is silent since the lease of that token."""
        found = self.groups.get(group)
        if found is None or found.line.names.get(consumer) != session:
            return 0
        if hold_back:
            found.line.held_back.add(session)
        silent = [x for x in self._held(found, consumer) if x.token > after and not x.sign]
        for lease in silent:
            lease.sign = "silent"
        return len(silent)

    def heard(self, group: str, session: int, consumer: str, finished: bool) -> None:
        """A session's peer is there."""
        found = self.groups.get(group)
        if found is None or found.line.names.get(consumer) != session:
            return
        found.line.held_back.discard(session)
        if finished:
            found.line.doubts.pop(session, None)
        for lease in self._held(found, consumer):
            lease.sign = "alive"

    def _renew(self, lease: Lease) -> None:
        renewed = min(self.tick + lease.length_us, lease.hold_until)
        lease.until = max(lease.until, renewed)
        lease.sign = "alive"

    # The dead

    def redrive(self, group: str, ids: list[int], due_us: int) -> list[str]:
        return self._each_dead(group, ids, due_us)

    def purge(self, group: str, ids: list[int]) -> list[str]:
        return self._each_dead(group, ids, None)

    def _each_dead(self, group: str, ids: list[int], due_us: int | None) -> list[str]:
        found, answers, seen = self.group(group), [], set[int]()
        good = []
        for message_id in ids:
            answer = self._look(found, message_id)
            if answer == "dead":
                answer = "duplicate" if message_id in seen else "ok"
                seen.add(message_id)
                good += [message_id] if answer == "ok" else []
            answers.append("conflict" if answer == "there" else answer)
        for message_id in good:
            place, offset = self._place(found, message_id)
            del place.dead[offset]
            if due_us is not None:
                place.rows[offset] = Row(due_us=due_us, revived=True)
        return answers

    # Time, and what all of it stands on

    def expire(self) -> None:
        """Leases run out by the tick."""
        for group in self.groups.values():
            holders: Counter[str] = Counter()
            for place in group.places:
                over = [
                    (offset, row.lease)
                    for offset, row in sorted(place.rows.items())
                    if row.lease is not None and row.lease.until <= self.tick
                ]
                for offset, lease in over:
                    holders[lease.consumer] += 1
                    # Nobody is known to have opened it.
                    verb = "release" if lease.sign == "silent" else "expire"
                    self._do(verb, place, offset, 0, reason="the lease expired")
            for consumer, count in sorted(holders.items()):
                self._doubt(group, consumer, count)
            self._forget(group)

    def _doubt(self, group: Group, consumer: str, ended: int) -> None:
        session, line = group.line.names.get(consumer), group.line
        if session is not None:
            held = len(self._held(group, consumer))
            before = line.doubts[session][0] if session in line.doubts else held + ended
            limit = max(1, before // 2)
            line.doubts[session] = limit, max(0, limit - held)

    def restart(self) -> None:
        """Sessions are gone; every live lease runs its full length from here."""
        self.deleted.clear()
        for group in self.groups.values():
            group.line, group.sessions = Line(), set()
            for place in group.places:
                for row in place.rows.values():
                    if row.lease is not None:
                        row.lease.until = self.tick + row.lease.length_us
                        row.lease.sign = ""
                        row.lease.hold_until = self.tick + self.settings.hold_us

    def transaction(self, parts: list[tuple[str, dict[str, Any]]]) -> bool:
        """Whether all of it came out ok; otherwise nothing happened."""
        before = copy.deepcopy((self.logs, self.groups))
        self._in_transaction = True
        try:
            for name, given in parts:
                answers = getattr(self, name)(**given)
                if name != "produce" and any(answer != "ok" for answer in answers):
                    break
            else:
                before = self.logs, self.groups
                return True
        except FastiError:
            pass
        finally:
            self._in_transaction = False
            self.logs, self.groups = before
            for group in self.groups.values():
                self._forget(group)
        return False


def make_id(partition: int, offset: int) -> int:
    """The id of a row."""
    return partition << SEQUENCE_BITS | (offset + 1)
