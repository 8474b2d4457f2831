"""What schedules emit: one message for each occurrence that counts, and what is taken back of it.

An occurrence counts if it is later than the schedule's last, of its present version, and the schedule
isn't paused. Messages may be emitted ahead of their time; what changes the schedule takes them back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core import commands, traits
from fasti.core.cron import commands as co
from fasti.core.cron import events as ev
from fasti.core.cron.book import CronBook
from fasti.core.cron.schedule import OVERLAPS, Schedule
from fasti.core.events import Cancelled
from fasti.core.keys import Rows
from fasti.core.replies import Reply, SchedulesChanged, blank
from fasti.core.state import Topic
from fasti.core.work import Work, repeated, split_ids
from fasti.errors import InvalidArgument, NotFound
from fasti.model import Outcome, State

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SKIP, _CANCEL = OVERLAPS.index("skip"), OVERLAPS.index("cancel")


def fire(work: Work, command: co.Fire) -> Reply:
    """Occurrences have come: those that count are emitted, and the reply says which did."""
    topic = work.topic(command.topic)
    target = find_target(work, command.target)
    book: CronBook = topic.body
    reply = blank(len(command.numbers))
    reply.status[:] = _judge(book, command)
    good = reply.status == Outcome.OK
    numbers = command.numbers[good]
    if len(numbers):
        skipped = command.due_us[good] < 0
        ids = _emit(work, topic, target, command, good, skipped)
        reply.ids[good] = ids
        reply.versions[good] = command.versions[good]
    return reply


def run(work: Work, command: co.RunSchedule) -> Reply:
    """One message now, beside the schedule's occurrences; `conflict` if its last one is still open."""
    topic = work.topic(command.topic)
    book: CronBook = topic.body
    number = find_schedule(topic, command.name)
    definition = book.definitions[number]
    assert definition is not None
    target = find_target(work, Schedule.from_json(definition).target)
    one, yes = np.array([number]), np.ones(1, dtype=np.bool_)
    work.change_hints(book.forget, work.now_us)
    reply = blank(1)
    reply.ids[:], reply.versions[:] = book.last_id[one], book.version[one]
    states = _states(work, book.last_target[one], book.last_id[one])
    if book.overlap[number] == _SKIP and states[0] in (State.SCHEDULED, State.LEASED):
        reply.status[:] = Outcome.CONFLICT
        return reply
    now, none = np.array([work.now_us]), np.zeros(1, dtype=np.int64)
    fire = co.Fire(topic.name, target.name, one, book.version[one], none, now, command.rows)
    reply.ids[:] = _emit(work, topic, target, fire, yes, ~yes)
    return reply


def find_schedule(topic: Topic, name: str) -> int:
    """The number of a schedule. Raises `not_found`."""
    book: CronBook = topic.body
    number = book.by_name.get(name)
    if number is None:
        details = {"topic": topic.name, "schedule": name}
        raise NotFound(f"there is no schedule {name!r} in {topic.name!r}", details=details)
    return number


def find_target(work: Work, name: str) -> Topic:
    """The topic that a schedule emits into. Raises `not_found`, `invalid_argument`, or `wrong_shard`."""
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
    if target.own is not None:
        # A schedule is on a shard of its target. Raises `wrong_shard`.
        target.own.at_turn(name, 0)
    return target


def _judge(book: CronBook, command: co.Fire) -> NDArray[np.uint8]:
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
    work: Work, topic: Topic, target: Topic, command: co.Fire, good: Bools, skipped: Bools
) -> Int64s:
    """Messages for the good rows, except those that are passed over: their ids."""
    book: CronBook = topic.body
    numbers, due = command.numbers[good], command.due_us[good]
    work.change_hints(book.forget, work.now_us)
    states = _states(work, book.last_target[numbers], book.last_id[numbers])
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
        ids[emitted] = _produce(work, target, rows, due[emitted], book, numbers[emitted])
    replaced = (book.overlap[numbers] == _CANCEL) & (states == State.SCHEDULED) & ~skipped
    if replaced.any():
        _cancel(work, last[0][replaced], last[1][replaced])
    occurrences = command.occurrences_us[good]
    work.emit(ev.Fired(work.now_us, topic.number, target.number, numbers, occurrences, ids))
    return ids


def _produce(
    work: Work, target: Topic, rows: Rows, due: Int64s, book: CronBook, numbers: Int64s
) -> Int64s:
    produce = commands.Produce(target.name, rows, commands.When(due_us=due))
    if target.kind.traits.has_priorities:
        produce.priorities = book.priority[numbers]
    after = book.expiry_of(numbers)
    if after is not None:
        produce.expires = commands.Expires(after_us=after)
    return target.kind.engine.produce_into(work, produce).ids


def _states(work: Work, targets: Int64s, ids: Int64s) -> NDArray[np.uint8]:
    """States of messages in several targets; NONE where there is no such topic any more."""
    states = np.zeros(len(ids), dtype=np.uint8)
    for number in np.unique(targets).tolist():
        target = work.state.topics.get(number)
        if target is None:
            continue
        mine = np.flatnonzero((targets == number) & (ids > 0))
        for place, rows, sequences in split_ids(ids[mine], len(target.partitions)):
            partition = target.partitions[place]
            states[mine[rows]] = partition.states(partition.ledger.slots(sequences))
    return states


def take_back(work: Work, topic: Topic, numbers: Int64s, after_us: int | None = None) -> None:
    """Cancels what these schedules emitted for occurrences after a moment (now).

    They go on from there; but what is with a consumer stays, and so does all before it.
    """
    book: CronBook = topic.body
    after_us = work.now_us if after_us is None else after_us
    entries = book.ahead_of(numbers, after_us)
    if not len(entries.id):
        return
    # What was in a topic that is gone is to be emitted again, into another one.
    there = np.isin(entries.target, list(work.state.topics))
    out = there & (_states(work, entries.target, entries.id) != State.SCHEDULED)
    kept_until = np.full(book.size, after_us, dtype=np.int64)
    np.maximum.at(kept_until, entries.number[out], entries.occurrence_us[out])
    wanted = ~out & (entries.occurrence_us > kept_until[entries.number])
    entries, there = entries.only(wanted), there[wanted]
    if len(entries.id):
        _cancel(work, entries.target[there], entries.id[there])
        last_us = kept_until[entries.number]
        work.emit(ev.Unfired(work.now_us, topic.number, entries.number, last_us))
        work.effects.append(SchedulesChanged(topic.number))


def _cancel(work: Work, targets: Int64s, ids: Int64s) -> None:
    for number in np.unique(targets).tolist():
        target = work.state.topics[number]
        for place, _, sequences in split_ids(ids[targets == number], len(target.partitions)):
            work.emit(Cancelled(work.now_us, number, place, sequences))
