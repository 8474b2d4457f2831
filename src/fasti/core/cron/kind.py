"""Cron topics: schedules that emit messages into timelines and priority topics.

Occurrences are worked out elsewhere and come in as `Fire`. Here is decided which of them count: one
that is later than the schedule's last, of its present version, while it isn't paused. The message
and the mark that it was emitted are one group of the journal, so that an occurrence has one message,
or none, whatever breaks.

Messages may be emitted ahead of their time. What then changes the schedule takes them back first,
unless they are with a consumer already; and so does the first step after a start with those whose
time came while no broker ran: they are decided anew, by the schedule's misfire policy. Those whose
time came while a broker ran were in time and stay: that it ran is known from the last event's time,
and `Passed` is an event for when there is no other.

The sequencer's thread only.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core import commands, traits
from fasti.core.agenda import FOREVER
from fasti.core.cron import commands as co
from fasti.core.cron import events as ev
from fasti.core.cron.book import SCHEDULE_BYTES, Ahead, CronBook
from fasti.core.cron.schedule import OVERLAPS, Schedule
from fasti.core.events import Cancelled, Event
from fasti.core.keys import Rows
from fasti.core.kind import Apply, Columns, Handler, Kind
from fasti.core.replies import Done, Reply, SchedulesChanged, blank
from fasti.core.state import Topic
from fasti.core.timeline import reads
from fasti.core.traits import Traits
from fasti.core.work import Work, repeated, split_ids
from fasti.errors import InvalidArgument, NotFound, Overloaded
from fasti.model import SECOND_US, Outcome, State

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SKIP, _CANCEL = OVERLAPS.index("skip"), OVERLAPS.index("cancel")
# What has fallen due is looked at no more often than this.
_PASSED_US = SECOND_US // 2


class CronKind(Kind):
    """Schedules that emit messages into timelines."""

    traits: ClassVar[Traits] = traits.CRON

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        # Until when a broker was known to run before this start; None once that is judged.
        self._ran_until_us: int | None = None
        self._next_passed_us = 0

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on cron topics."""
        return {
            co.PutSchedules: self._put,
            co.DeleteSchedule: self._delete,
            co.PauseSchedule: self._pause,
            co.RunSchedule: self._run,
            co.ReadSchedules: self._read,
            co.SumSchedules: self._sum,
            co.Fire: self._fire,
            commands.Count: reads.count,
        }

    def events(self) -> dict[type[Event], Apply]:
        """Who makes the events of schedules so."""
        return {
            ev.SchedulePut: self._apply_put,
            ev.ScheduleDeleted: self._apply_deleted,
            ev.SchedulePaused: self._apply_paused,
            ev.Fired: self._apply_fired,
            ev.Unfired: self._apply_unfired,
            ev.Passed: lambda event, frame: None,
        }

    def make(self, topic: Topic) -> None:
        """No messages of its own."""
        topic.body = CronBook()
        self.state.memory.schedules_bytes += topic.body.size_bytes

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted."""
        self.state.memory.schedules_bytes -= topic.body.size_bytes

    def deleting(self, work: Work, topic: Topic) -> None:
        """The topic is about to go: so does what it emitted ahead."""
        book: CronBook = topic.body
        self._take_back(work, topic, np.flatnonzero(book.exists[: book.size]))
        work.effects.append(SchedulesChanged(topic.number))

    def _sum(self, work: Work, query: co.SumSchedules) -> Done:
        book: CronBook = work.topic(query.topic).body
        paused = int((book.paused[: book.size] & book.exists[: book.size]).sum())
        emitted, skipped = int(book.fired.sum()), int(book.skipped.sum())
        return Done(co.ScheduleSums(len(book), paused, emitted, skipped))

    def _books(self) -> list[tuple[Topic, CronBook]]:
        return [(topic, topic.body) for topic in self.all_topics.values()]

    # Events

    def _book(self, event: Any) -> CronBook:
        book: CronBook = self.state.topics[event.topic].body
        return book

    def _apply_put(self, event: ev.SchedulePut, _: int) -> None:
        book = self._book(event)
        before_bytes = book.size_bytes
        book.put(event.number, event.name, event.version, event.last_us, event.definition)
        self.state.memory.schedules_bytes += book.size_bytes - before_bytes

    def _apply_deleted(self, event: ev.ScheduleDeleted, _: int) -> None:
        book = self._book(event)
        before_bytes = book.size_bytes
        book.delete(event.number)
        self.state.memory.schedules_bytes += book.size_bytes - before_bytes

    def _apply_paused(self, event: ev.SchedulePaused, _: int) -> None:
        self._book(event).pause(event.number, bool(event.paused), event.last_us)

    def _apply_fired(self, event: ev.Fired, _: int) -> None:
        targets = np.full(len(event.number), event.target, dtype=np.int64)
        entries = Ahead(targets, event.number, event.occurrence_us, event.id)
        self._book(event).fire(entries, event.at_us)

    def _apply_unfired(self, event: ev.Unfired, _: int) -> None:
        self._book(event).unfire(event.number, event.last_us)

    def _states(self, targets: Int64s, ids: Int64s) -> NDArray[np.uint8]:
        """States of messages in several targets; NONE where there is no such topic any more."""
        states = np.zeros(len(ids), dtype=np.uint8)
        for number in np.unique(targets).tolist():
            target = self.state.topics.get(number)
            if target is None:
                continue
            mine = np.flatnonzero((targets == number) & (ids > 0))
            for place, rows, sequences in split_ids(ids[mine], len(target.partitions)):
                partition = target.partitions[place]
                states[mine[rows]] = partition.states(partition.ledger.slots(sequences))
        return states

    # Steps

    def start(self, tick: int) -> None:
        """Replay is over: what was emitted ahead is judged in the first step."""
        self._ran_until_us = self.state.last_at_us

    def before(self, work: Work) -> bool:
        """The first step: what came due while no broker ran is taken back."""
        ran_until_us, self._ran_until_us = self._ran_until_us, None
        if ran_until_us is not None:
            for topic, book in self._books():
                if book.ahead:
                    self._judge_missed(work, topic, book, ran_until_us)
        return False

    def _judge_missed(self, work: Work, topic: Topic, book: CronBook, ran_until_us: int) -> None:
        entries = book.all_ahead()
        begun, grace = entries.occurrence_us, book.grace_us[entries.number]
        missed = (begun > ran_until_us) & (begun + grace < work.now_us)
        missed &= book.exists[entries.number]
        if missed.any():
            # With all that follow, so that the schedule can go on from before the first of them.
            self._take_back(work, topic, np.unique(entries.number[missed]), ran_until_us)

    def after(self, work: Work) -> bool:
        """Notes that the broker runs when something falls due, and forgets what has."""
        now_us = work.now_us
        if now_us < self._next_passed_us:
            return False
        for topic, book in self._books():
            if book.first_ahead_us <= now_us:
                if self.state.last_at_us < book.first_ahead_us:
                    work.emit(ev.Passed(now_us, topic.number))
                self._next_passed_us = now_us + _PASSED_US
                book.forget(now_us)
        return False

    def next_us(self) -> int:
        """When the next message that was emitted ahead falls due."""
        first = min((book.first_ahead_us for _, book in self._books()), default=FOREVER)
        return FOREVER if first == FOREVER else max(first, self._next_passed_us)

    # Taking back

    def _take_back(
        self, work: Work, topic: Topic, numbers: Int64s, after_us: int | None = None
    ) -> None:
        """Cancels what these schedules emitted for occurrences after a moment (now).

        They go on from there; but what is with a consumer stays, and so does all before it.
        """
        book: CronBook = topic.body
        after_us = work.now_us if after_us is None else after_us
        entries = book.ahead_of(numbers, after_us)
        if not len(entries.id):
            return
        # What was in a topic that is gone is to be emitted again, into another one.
        there = np.isin(entries.target, list(self.state.topics))
        out = there & (self._states(entries.target, entries.id) != State.SCHEDULED)
        kept_until = np.full(book.size, after_us, dtype=np.int64)
        np.maximum.at(kept_until, entries.number[out], entries.occurrence_us[out])
        wanted = ~out & (entries.occurrence_us > kept_until[entries.number])
        entries, there = entries.only(wanted), there[wanted]
        if len(entries.id):
            self._cancel(work, entries.target[there], entries.id[there])
            last_us = kept_until[entries.number]
            work.emit(ev.Unfired(work.now_us, topic.number, entries.number, last_us))
            work.effects.append(SchedulesChanged(topic.number))

    def _cancel(self, work: Work, targets: Int64s, ids: Int64s) -> None:
        for number in np.unique(targets).tolist():
            target = self.state.topics[number]
            for place, _, sequences in split_ids(ids[targets == number], len(target.partitions)):
                work.emit(Cancelled(work.now_us, number, place, sequences))

    # Schedules

    def _find(self, topic: Topic, name: str) -> int:
        book: CronBook = topic.body
        number = book.by_name.get(name)
        if number is None:
            details = {"topic": topic.name, "schedule": name}
            raise NotFound(f"there is no schedule {name!r} in {topic.name!r}", details=details)
        return number

    def _put(self, work: Work, command: co.PutSchedules) -> Done:
        topic = work.topic(command.topic)
        book: CronBook = topic.body
        self._check_put(work, topic, command)
        changed = [
            number
            for name, definition in command.schedules
            if (number := book.by_name.get(name)) is not None
            and command.version in (-1, int(book.version[number]))
            and book.definitions[number] != definition
        ]
        if changed:
            self._take_back(work, topic, np.array(changed))
        outcomes = [
            self._put_one(work, topic, book, name, definition, command.version)
            for name, definition in command.schedules
        ]
        work.effects.append(SchedulesChanged(topic.number))
        return Done(outcomes)

    def _check_put(self, work: Work, topic: Topic, command: co.PutSchedules) -> None:
        book: CronBook = topic.body
        for name, _ in command.schedules:
            if not 0 < len(name.encode()) <= work.limits.name_bytes_max:
                limit = work.limits.name_bytes_max
                raise InvalidArgument(
                    f"a schedule's name has 1 to {limit} bytes", field="name", limit=limit
                )
        added = {name for name, _ in command.schedules if name not in book.by_name}
        if len(book) + len(added) > work.limits.schedules_max:
            raise Overloaded(f"{topic.name!r} has {work.limits.schedules_max} schedules already")
        texts_bytes = sum(len(name) + len(text) for name, text in command.schedules)
        work.state.memory.require(len(added) * SCHEDULE_BYTES + texts_bytes, "more schedules")
        for target in {json.loads(definition)["target"] for _, definition in command.schedules}:
            self._target(work, target)

    def _target(self, work: Work, name: str) -> Topic:
        target = work.state.by_name.get(name)
        if target is None:
            raise NotFound(f"there is no target topic {name!r}", details={"topic": name})
        if not target.kind.traits.is_queue:
            kinds = " or ".join(traits.kinds_with(lambda kind: kind.is_queue))
            raise InvalidArgument(
                f"a schedule's target is a {kinds} topic: {name!r} is a {target.settings.kind}",
                field="target",
            )
        if target.settings.relay:
            raise InvalidArgument(
                f"{name!r} is a relay, which keeps nothing: schedules need their last message",
                field="target",
            )
        return target

    def _put_one(
        self, work: Work, topic: Topic, book: CronBook, name: str, definition: str, version: int
    ) -> tuple[Outcome, int]:
        number = book.by_name.get(name)
        current = 0 if number is None else int(book.version[number])
        if version not in (-1, current):
            return Outcome.CONFLICT, current
        last_us = work.now_us
        if number is None:
            number = next(iter(book.free), book.size)
            current = int(book.version[number]) if number < book.size else 0
        else:
            before = book.definitions[number]
            assert before is not None
            if before == definition:
                return Outcome.OK, current
            last_us = int(book.last_us[number])
            if Schedule.from_json(before).timing != Schedule.from_json(definition).timing:
                last_us = max(last_us, work.now_us)
        event = ev.SchedulePut(
            work.now_us, topic.number, number, current + 1, last_us, name, definition
        )
        work.emit(event)
        return Outcome.OK, current + 1

    def _delete(self, work: Work, command: co.DeleteSchedule) -> Done:
        topic = work.topic(command.topic)
        number = self._find(topic, command.name)
        self._take_back(work, topic, np.array([number]))
        work.emit(ev.ScheduleDeleted(work.now_us, topic.number, number))
        work.effects.append(SchedulesChanged(topic.number))
        return Done()

    def _pause(self, work: Work, command: co.PauseSchedule) -> Done:
        topic = work.topic(command.topic)
        book: CronBook = topic.body
        number = self._find(topic, command.name)
        changed = bool(book.paused[number]) != command.paused
        if changed:
            self._take_back(work, topic, np.array([number]))
            last_us = int(book.last_us[number])
            if not command.paused:
                last_us = max(last_us, work.now_us)
            event = ev.SchedulePaused(
                work.now_us, topic.number, number, int(command.paused), last_us
            )
            work.emit(event)
            work.effects.append(SchedulesChanged(topic.number))
        return Done(changed)

    def _read(self, work: Work, command: co.ReadSchedules) -> Done:
        topic = work.topic(command.topic)
        book: CronBook = topic.body
        work.change_hints(book.forget, work.now_us)
        size = book.size
        if command.name:
            found = np.array([self._find(topic, command.name)])
        elif command.after_change >= 0:
            changed = book.changed_at[:size]
            found = np.flatnonzero(changed > command.after_change)
            found = found[np.argsort(changed[found])]
        else:
            begin = command.after_number + 1
            found = begin + np.flatnonzero(book.exists[begin:size])
        limit = max(1, command.limit)
        numbers, more = found[:limit], len(found) > limit
        changes = int(book.changed_at[numbers[-1]]) if more else book.changes
        page = co.SchedulesPage(
            numbers,
            book.version[numbers],
            book.paused[numbers],
            book.last_us[numbers],
            book.occurred_us[numbers],
            book.last_id[numbers],
            book.fired[numbers],
            book.skipped[numbers],
            [book.names[number] for number in numbers.tolist()],
            [book.definitions[number] for number in numbers.tolist()],
            changes,
            more,
        )
        return Done(page)

    # Occurrences

    def _fire(self, work: Work, command: co.Fire) -> Reply:
        topic = work.topic(command.topic)
        target = self._target(work, command.target)
        book: CronBook = topic.body
        reply = blank(len(command.numbers))
        reply.status[:] = self._judge(book, command)
        good = reply.status == Outcome.OK
        numbers = command.numbers[good]
        if len(numbers):
            skipped = command.due_us[good] < 0
            ids = self._emit(work, topic, target, command, good, skipped)
            reply.ids[good] = ids
            reply.versions[good] = command.versions[good]
        return reply

    def _judge(self, book: CronBook, command: co.Fire) -> NDArray[np.uint8]:
        numbers = command.numbers
        status = np.zeros(len(numbers), dtype=np.uint8)
        known = (numbers >= 0) & (numbers < book.size)
        places = np.where(known, numbers, 0)
        known &= book.exists[places]
        status[command.occurrences_us <= book.last_us[places]] = Outcome.DUPLICATE
        again = repeated(numbers)
        if again is not None:
            status[again] = Outcome.DUPLICATE
        status[(book.version[places] != command.versions) | book.paused[places]] = Outcome.CONFLICT
        status[~known] = Outcome.NOT_FOUND
        return status

    def _emit(
        self, work: Work, topic: Topic, target: Topic, command: co.Fire, good: Bools, skipped: Bools
    ) -> Int64s:
        """Messages for the good rows, except those that are passed over: their ids."""
        book: CronBook = topic.body
        numbers, due = command.numbers[good], command.due_us[good]
        work.change_hints(book.forget, work.now_us)
        states = self._states(book.last_target[numbers], book.last_id[numbers])
        open_ones = (states == State.SCHEDULED) | (states == State.LEASED)
        skipped = skipped | ((book.overlap[numbers] == _SKIP) & open_ones)
        last = (book.last_target[numbers], book.last_id[numbers])
        ids = np.zeros(len(numbers), dtype=np.int64)
        emitted = np.flatnonzero(~skipped)
        if len(emitted):
            rows = command.rows
            if len(emitted) < len(rows):
                kept = np.flatnonzero(good)[emitted]
                rows = Rows(rows.batch.take(pa.array(kept)))
            ids[emitted] = self._produce(work, target, rows, due[emitted], book, numbers[emitted])
        replaced = (book.overlap[numbers] == _CANCEL) & (states == State.SCHEDULED) & ~skipped
        if replaced.any():
            self._cancel(work, last[0][replaced], last[1][replaced])
        occurrences = command.occurrences_us[good]
        work.emit(ev.Fired(work.now_us, topic.number, target.number, numbers, occurrences, ids))
        return ids

    def _produce(
        self, work: Work, target: Topic, rows: Rows, due: Int64s, book: CronBook, numbers: Int64s
    ) -> Int64s:
        produce = commands.Produce(target.name, rows, commands.When(due_us=due))
        if target.kind.traits.has_priorities:
            produce.priorities = book.priority[numbers]
        after = book.expiry_of(numbers)
        if after is not None:
            produce.expires = commands.Expires(after_us=after)
        return self.engine.produce_into(work, produce).ids

    def _run(self, work: Work, command: co.RunSchedule) -> Reply:
        topic = work.topic(command.topic)
        book: CronBook = topic.body
        number = self._find(topic, command.name)
        definition = book.definitions[number]
        assert definition is not None
        target = self._target(work, Schedule.from_json(definition).target)
        one, yes = np.array([number]), np.ones(1, dtype=np.bool_)
        work.change_hints(book.forget, work.now_us)
        reply = blank(1)
        reply.ids[:], reply.versions[:] = book.last_id[one], book.version[one]
        states = self._states(book.last_target[one], book.last_id[one])
        if book.overlap[number] == _SKIP and states[0] in (State.SCHEDULED, State.LEASED):
            reply.status[:] = Outcome.CONFLICT
            return reply
        now, none = np.array([work.now_us]), np.zeros(1, dtype=np.int64)
        fire = co.Fire(topic.name, target.name, one, book.version[one], none, now, command.rows)
        reply.ids[:] = self._emit(work, topic, target, fire, yes, ~yes)
        return reply

    # Checkpoints

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """Schedules, and what they emitted ahead."""
        book: CronBook = topic.body
        return book.capture(f"cron.{topic.number}.", columns)

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from a checkpoint."""
        if described:
            before_bytes = topic.body.size_bytes
            topic.body.restore(f"cron.{topic.number}.", described, columns)
            self.state.memory.schedules_bytes += topic.body.size_bytes - before_bytes
