"""Commands on schedules: putting, deleting, pausing and reading them."""

from __future__ import annotations

import json

import numpy as np

from fasti.core.cron import commands as co
from fasti.core.cron import events as ev
from fasti.core.cron.book import SCHEDULE_BYTES, CronBook
from fasti.core.cron.firing import find_schedule, find_target, take_back
from fasti.core.cron.schedule import Schedule
from fasti.core.replies import Done, SchedulesChanged
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.errors import InvalidArgument, Overloaded
from fasti.model import Outcome


def put(work: Work, command: co.PutSchedules) -> Done:
    """Makes or changes schedules."""
    topic = work.topic(command.topic)
    book: CronBook = topic.body
    _check_put(work, topic, command)
    changed = [
        number
        for name, definition in command.schedules
        if (number := book.by_name.get(name)) is not None
        and command.version in (-1, int(book.version[number]))
        and book.definitions[number] != definition
    ]
    if changed:
        take_back(work, topic, np.array(changed))
    outcomes = [
        _put_one(work, topic, book, name, definition, command.version)
        for name, definition in command.schedules
    ]
    work.effects.append(SchedulesChanged(topic.number))
    return Done(outcomes)


def _check_put(work: Work, topic: Topic, command: co.PutSchedules) -> None:
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
        find_target(work, target)


def _put_one(
    work: Work, topic: Topic, book: CronBook, name: str, definition: str, version: int
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


def delete(work: Work, command: co.DeleteSchedule) -> Done:
    """One goes, with what it emitted ahead."""
    topic = work.topic(command.topic)
    number = find_schedule(topic, command.name)
    take_back(work, topic, np.array([number]))
    work.emit(ev.ScheduleDeleted(work.now_us, topic.number, number))
    work.effects.append(SchedulesChanged(topic.number))
    return Done()


def pause(work: Work, command: co.PauseSchedule) -> Done:
    """One rests, or goes on."""
    topic = work.topic(command.topic)
    book: CronBook = topic.body
    number = find_schedule(topic, command.name)
    changed = bool(book.paused[number]) != command.paused
    if changed:
        take_back(work, topic, np.array([number]))
        last_us = int(book.last_us[number])
        if not command.paused:
            last_us = max(last_us, work.now_us)
        event = ev.SchedulePaused(work.now_us, topic.number, number, int(command.paused), last_us)
        work.emit(event)
        work.effects.append(SchedulesChanged(topic.number))
    return Done(changed)


def read(work: Work, command: co.ReadSchedules) -> Done:
    """One by its name, those that changed, or a page of all."""
    topic = work.topic(command.topic)
    book: CronBook = topic.body
    work.change_hints(book.forget, work.now_us)
    size = book.size
    if command.name:
        found = np.array([find_schedule(topic, command.name)])
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


def sum_up(work: Work, query: co.SumSchedules) -> Done:
    """How many there are, and what they did."""
    book: CronBook = work.topic(query.topic).body
    paused = int((book.paused[: book.size] & book.exists[: book.size]).sum())
    emitted, skipped = int(book.fired.sum()), int(book.skipped.sum())
    return Done(co.ScheduleSums(len(book), paused, emitted, skipped))
