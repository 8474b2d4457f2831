"""Works out the occurrences of schedules, in a thread of its own, and has them fired.

It keeps every schedule of every cron topic in groups (groups.py) and a plan of when each
group is next due, sleeps until then, and sends `Fire` commands, some thousand rows each. The engine
decides. Several commands are under way at once, and a schedule is taken to have had what was sent for
it; whatever goes wrong (a full disk, an answer that never came, an engine that was loaded again),
schedules are read from the engine anew: it knows the last occurrence of each, and refuses one that
it has had.

Messages of schedules that may overlap are emitted 10 seconds ahead, so that at the moment itself
there is nothing to be done but to hand them out. Those that ask whether the last one is finished are
emitted when they are due.

Its thread is a `Poller` around `poll`. In virtual time there is none: `catch_up` does what is due in the
caller's.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.broker.cron.emission import Chunk, Member
from fasti.broker.cron.groups import Due, Group, GroupKey, waiting_for
from fasti.broker.cron.occurrences import Occurrences, Timing
from fasti.broker.cron.parcels import Parcel, Piece
from fasti.broker.threads import Poller
from fasti.broker.topics import read_topics
from fasti.core.agenda import FOREVER, Agenda
from fasti.core.cron.commands import ReadSchedules, SchedulesPage
from fasti.core.cron.schedule import Schedule
from fasti.errors import Closed, FastiError, InvalidArgument, Moved, NotFound
from fasti.model import MINUTE_US, SECOND_US, Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_log = logging.getLogger("fasti.broker.scheduler")

# So many commands share a few syncs.
_IN_FLIGHT_MAX = 16
_PAGE_ROWS = 2_000
# The wall clock may be set while it sleeps.
_NAP_S_MAX = 1.0
_RETRY_US = SECOND_US // 5
_TARGET_RETRY_US = 10 * SECOND_US


class _Topic:
    """The schedules of one cron topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes = 0
        self.groups: dict[int, Group] = {}


class Scheduler:
    """One per service. `wake` and `stop` from any thread; the rest is its own thread's."""

    def __init__(self, shard: Shard, threaded: bool = True) -> None:
        self._shard, self._threaded = shard, threaded
        self._counts = shard.fire_counts
        self._changed = True
        # The tick before which nothing is tried again.
        self._retry_at = 0
        self._poller = Poller(shard.threads, shard.label("fasti-cron"), self.poll)
        self._recoveries = -1
        self._engine = shard.engine
        self._topics: dict[int, _Topic] = {}
        self._groups: dict[GroupKey, Group] = {}
        self._occurrences: dict[Timing, Occurrences] = {}
        self._agenda: Agenda[Group] = Agenda()
        self._parcels: dict[tuple[str, ...], Parcel] = {}
        self._sent: deque[tuple[Parcel, Future[list[Any]]]] = deque()
        # Pairs of topic and target that schedules wait for, so that the log says it once.
        self._awaited: set[tuple[str, str]] = set()

    # Any thread

    def start(self) -> None:
        """Begins to fire."""
        self._shard.on_schedules = self._note
        if self._threaded:
            self._poller.start()

    def stop(self) -> None:
        """Fires nothing more; returns when its thread has ended."""
        self._poller.stop()

    def _note(self, topic: int) -> None:
        self._changed = True
        self._poller.wake()

    # Its thread

    def poll(self) -> float | None:
        """Fires what is due; in how many seconds there is something to do again, None: on a change."""
        left_us = self._retry_at - self._shard.clock.tick()
        if left_us > 0:
            return left_us / 1e6
        try:
            self.catch_up()
        except FastiError as error:
            if isinstance(error, (Closed, Moved)) and self._shard.is_stopped:
                # There is no shard to fire for.
                return None
            _log.info("schedules are read again: %s", error)
            return self._retry_in(error.retry_after_us or _RETRY_US)
        except Exception:
            _log.exception("the scheduler failed; schedules are read again")
            return self._retry_in(_RETRY_US)
        return 0.0 if self._changed else self._seconds()

    def _seconds(self) -> float | None:
        first = self.next_us()
        if first is None:
            return None
        return min(max((first - self._shard.clock.now_us()) / 1e6, 0.0), _NAP_S_MAX)

    def _retry_in(self, retry_us: int) -> float:
        self._counts.failed += 1
        self._recoveries = -1
        self._retry_at = self._shard.clock.tick() + retry_us
        return retry_us / 1e6

    def next_us(self) -> int | None:
        """When something is to be done next; None if nothing is."""
        first_us = self._agenda.next_us()
        return first_us if first_us < FOREVER else None

    def catch_up(self) -> None:
        """Reads what has changed, and fires all that is due by now."""
        while not self._poller.stopping:
            self._poller.progress += 1
            self._refresh()
            now_us = self._shard.clock.now_us()
            group = self._agenda.pop(now_us)
            if group is None:
                if not (self._parcels or self._sent):
                    return
                self._finish()
                continue
            self._fire(group, now_us)
            self._plan_group(group)

    # Reading

    def _refresh(self) -> None:
        shard = self._shard
        if self._recoveries != shard.recoveries:
            # Another engine: it may know less than the one before it.
            self._topics, self._groups, self._agenda = {}, {}, Agenda()
            self._occurrences = {}
            self._parcels.clear()
            self._sent.clear()
            self._changed, self._recoveries = True, shard.recoveries
            self._engine = shard.engine
        if not self._changed:
            return
        self._changed = False
        try:
            known = {topic.number: topic.name for topic in read_topics(shard, "cron")}
            for number in [number for number in self._topics if number not in known]:
                for schedule in list(self._topics[number].groups):
                    self._remove(self._topics[number], schedule)
                gone = self._topics.pop(number).name
                self._awaited = {place for place in self._awaited if place[0] != gone}
            for number, name in known.items():
                self._read(self._topics.setdefault(number, _Topic(name)))
        except BaseException:
            self._changed = True
            raise

    def _read(self, topic: _Topic) -> None:
        more = True
        touched: set[GroupKey] = set()
        while more:
            command = ReadSchedules(topic.name, after_change=topic.changes, limit=_PAGE_ROWS)
            reply = self._shard.call(command)
            if isinstance(reply.error, NotFound):
                self._changed = True
                return
            if reply.error is not None:
                raise reply.error
            page = reply.value
            for row, number in enumerate(page.numbers.tolist()):
                if number in topic.groups:
                    touched.add(topic.groups[number].key)
                    self._remove(topic, number)
                definition = page.definitions[row]
                if definition is not None and not page.paused[row]:
                    key = self._add(topic, page, row)
                    touched.update([key] if key is not None else [])
            topic.changes, more = page.changes, page.more
        for key in touched:
            if key in self._groups:
                self._plan_group(self._groups[key])

    def _add(self, topic: _Topic, page: SchedulesPage, row: int) -> GroupKey | None:
        number, name = int(page.numbers[row]), page.names[row]
        try:
            schedule = Schedule.from_json(page.definitions[row] or "")
            key = GroupKey.of(topic.name, schedule)
        except FastiError as error:
            # It was good when it was put: its zone is no more, or a newer version wrote it.
            _log.warning("schedule %r of %r can't be fired: %s", name, topic.name, error)
            self._counts.failed += 1
            return None
        group = self._groups.get(key)
        if group is None:
            occurrences = self._occurrences.setdefault(key.timing, Occurrences(key.timing))
            group = self._groups[key] = Group(key, occurrences)
        version, last_us = int(page.versions[row]), int(page.last_us[row])
        group.add(Member(number, version, last_us, name, schedule))
        topic.groups[number] = group
        return key

    def _remove(self, topic: _Topic, number: int) -> None:
        group = topic.groups.pop(number)
        group.remove(number)
        if not len(group):
            self._agenda.drop(group)
            del self._groups[group.key]

    def _plan_group(self, group: Group) -> None:
        if len(group):
            acts_us = group.acts_us()
            self._agenda.plan(group, FOREVER if acts_us is None else acts_us)

    # Firing

    def _fire(self, group: Group, now_us: int) -> None:
        group.not_before_us = 0
        for due in group.due(now_us):
            for chunk in group.chunks:
                which = waiting_for(chunk, due.at_us)
                if which is None or len(which):
                    self._send(group, chunk, which, due)
            # What a refused command took back waits for another time.
            if self._changed or self._poller.stopping or group.not_before_us > now_us:
                break
        group.occurrences.forget(now_us - MINUTE_US)

    def _send(self, group: Group, chunk: Chunk, which: NDArray[np.intp] | None, due: Due) -> None:
        """Its schedules have had the occurrence, as far as this thread is concerned."""
        at_us = due.at_us
        batch = chunk.rows(at_us, which).batch
        # One that was missed is sent at once.
        dues = np.full(len(chunk.numbers), at_us) if due.missed else chunk.due_us(at_us)
        if not due.emitted:
            dues = np.full(len(dues), -1)
        places = slice(None) if which is None else which
        before_us = chunk.last_us[places].copy()
        numbers, versions = chunk.numbers, chunk.versions[places]
        piece = Piece(group, chunk, numbers, versions, places, before_us, due, dues[places], batch)
        chunk.last_us[places] = at_us
        key = (group.key.topic, group.key.target, *batch.schema.names)
        parcel = self._parcels.get(key)
        if parcel is not None and not parcel.takes(piece):
            self._submit(self._parcels.pop(key))
            parcel = None
        if parcel is None:
            parcel = self._parcels[key] = Parcel(group.key.topic, group.key.target)
        parcel.add(piece)

    def _submit(self, parcel: Parcel) -> None:
        command = parcel.command()
        if self._shard.faults.suspects:
            self._shard.faults.check(command)
        # For the engine that the schedules were read from: the one after it may not know of the
        # occurrences before these, and would take them for done.
        self._sent.append((parcel, self._shard.submit([command], self._engine)))
        if len(self._sent) >= _IN_FLIGHT_MAX:
            self._take(*self._sent.popleft())

    def _finish(self) -> None:
        """Nothing is held back or under way."""
        while self._parcels:
            self._submit(self._parcels.pop(next(iter(self._parcels))))
        while self._sent:
            self._take(*self._sent.popleft())

    def _take(self, parcel: Parcel, answer: Future[list[Any]]) -> None:
        """What became of one command; raises when schedules must be read anew."""
        reply = answer.result()[0]
        if isinstance(reply.error, (NotFound, InvalidArgument)):
            self._log_awaited(parcel, reply.error)
            for piece in parcel.pieces:
                self._wait_for_target(piece)
            return
        if reply.error is not None:
            raise reply.error
        self._awaited.discard((parcel.topic, parcel.target))
        # Rows that are refused are of schedules that have changed, and are about to be read again.
        begin, now_us = 0, self._shard.clock.now_us()
        for piece in parcel.pieces:
            end = begin + len(piece.due_us)
            fired = int((reply.status[begin:end] == Outcome.OK).sum())
            begin = end
            if piece.due.missed:
                self._counts.misfired += fired
            elif fired:
                late_us = max(now_us - piece.due.at_us, 0)
                self._counts.late.add_all(np.full(fired, late_us / 1e6))

    def _log_awaited(self, parcel: Parcel, error: FastiError) -> None:
        place = (parcel.topic, parcel.target)
        if place not in self._awaited:
            self._awaited.add(place)
            _log.warning("schedules of %r wait for their target %r: %s", *place, error)

    def _wait_for_target(self, piece: Piece) -> None:
        """The target is gone, or is no target any more: what is missed is judged later."""
        self._counts.failed += 1
        self._counts.target_missing += 1
        group, chunk = piece.group, piece.chunk
        if chunk.numbers is not piece.numbers:
            # Its schedules have changed meanwhile.
            self._recoveries = -1
            return
        chunk.last_us[piece.places] = np.minimum(chunk.last_us[piece.places], piece.before_us)
        group.not_before_us = self._shard.clock.now_us() + _TARGET_RETRY_US
        if len(group):
            group.last_us()
            self._plan_group(group)
