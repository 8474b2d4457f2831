"""Cron topics: schedules that emit messages into timelines and priority topics.

Occurrences are worked out elsewhere and come in as `Fire` (firing.py). The message and the mark
that it was emitted are one group of the journal, so that an occurrence has one message, or none,
whatever breaks. Commands on schedules are decided in schedule_commands.py.

Messages may be emitted ahead of their time. What then changes the schedule takes them back first,
unless they are with a consumer already; and so does the first step after a start with those whose
time came while no broker ran: they are decided anew, by the schedule's misfire policy. Those whose
time came while a broker ran were in time and stay: that it ran is known from the last event's time,
and `Passed` is an event for when there is no other.

The sequencer's thread only.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fasti.core import commands, traits
from fasti.core.agenda import FOREVER
from fasti.core.cron import commands as co
from fasti.core.cron import events as ev
from fasti.core.cron import schedule_commands
from fasti.core.cron.book import Ahead, CronBook
from fasti.core.cron.firing import fire, run, take_back
from fasti.core.events import Event
from fasti.core.kind import Apply, Columns, Handler, Kind
from fasti.core.replies import SchedulesChanged
from fasti.core.state import Topic
from fasti.core.timeline import reads
from fasti.core.traits import Traits
from fasti.core.work import Work
from fasti.model import SECOND_US

# What has fallen due is looked at no more often than this.
_PASSED_US = SECOND_US // 2


class CronKind(Kind):
    """Schedules that emit messages into timelines."""

    traits: ClassVar[Traits] = traits.CRON
    # A schedule is where its target is, and emits into the partitions that its shard has.
    is_spread: ClassVar[bool] = False

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        # Until when a broker was known to run before this start; None once that is judged.
        self._ran_until_us: int | None = None
        self._next_passed_us = 0

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on cron topics."""
        return {
            co.PutSchedules: schedule_commands.put,
            co.DeleteSchedule: schedule_commands.delete,
            co.PauseSchedule: schedule_commands.pause,
            co.RunSchedule: run,
            co.ReadSchedules: schedule_commands.read,
            co.SumSchedules: schedule_commands.sum_up,
            co.Fire: fire,
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
        take_back(work, topic, np.flatnonzero(book.exists[: book.size]))
        work.effects.append(SchedulesChanged(topic.number))

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
            take_back(work, topic, np.unique(entries.number[missed]), ran_until_us)

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
