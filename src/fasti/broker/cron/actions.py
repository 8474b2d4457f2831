"""Actions on schedules: put, read, preview, pause, run, delete.

Definitions are checked here, in the thread that received them: types, ranges, the expression and
the zone, and that the message which they make is one that the broker takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.cron.emission import Chunk, Member, one_row
from fasti.broker.cron.occurrences import Occurrences, Timing, local_text, preview
from fasti.core.cron import commands as cc
from fasti.core.cron.schedule import Schedule, check_schedule
from fasti.core.keys import Rows
from fasti.core.routing.subjects import check_subjects
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, Limits, Outcome
from fasti.protocol.outcomes import encode

if TYPE_CHECKING:
    from fasti.broker.service import Service

PUT_MAX = 250
_PAGE_MAX = 1_000
_PREVIEW_MAX = 1_000


def _put_schedules(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, schedules=list, expected=-1)
    listed = fields["schedules"]
    if not 0 < len(listed) <= PUT_MAX:
        raise InvalidArgument(
            f"1 to {PUT_MAX} schedules at a time", field="schedules", limit=PUT_MAX
        )
    named: list[tuple[str, Schedule]] = []
    for item in listed:
        if not isinstance(item, dict):
            raise InvalidArgument("a schedule must be an object", field="schedules")
        item = requests.checked(item, name=str, schedule=dict)
        named.append((item["name"], Schedule.from_dict(item["schedule"])))
    _check(named, service.limits)
    texts = [(name, schedule.to_json()) for name, schedule in named]
    command = cc.PutSchedules(fields["topic"], texts, fields["expected"])
    results = service.command(command, caller).value
    outcomes = [{"status": Outcome(status).word, "version": version} for status, version in results]
    return {"outcomes": outcomes}, []


def _check(named: list[tuple[str, Schedule]], limits: Limits) -> None:
    """Definitions make sense, and so do their messages. Raises `invalid_argument`."""
    chunk = Chunk()
    try:
        for number, (name, schedule) in enumerate(named):
            check_schedule(schedule, limits)
            Timing.of(schedule)
            chunk.add(Member(number, 0, 0, name, schedule))
        chunk.build()
        batch = chunk.rows(0, None).batch
        columns = {field: batch.column(field) for field in batch.schema.names}
        Rows.of(columns.pop("payload"), limits, **columns)
        if "subject" in columns:
            check_subjects(columns["subject"])
    except UnicodeEncodeError:
        raise InvalidArgument("a string can't be encoded as UTF-8", field="schedules") from None


def _schedules(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, name="", after_number=-1, limit=_PAGE_MAX)
    limit = min(max(fields["limit"], 1), _PAGE_MAX)
    # No topic has so many: beyond, there is nothing, and nothing that overflows.
    after = min(max(fields["after_number"], -1), 1 << 32)
    command = cc.ReadSchedules(fields["topic"], fields["name"], after, limit=limit)
    page: cc.SchedulesPage = service.command(command).value
    described = _Described(service.clock.now_us(), frozenset(service.topics()))
    schedules = [described.row(page, row) for row in range(len(page.numbers))]
    more = int(page.numbers[-1]) if page.more else None
    return {"schedules": schedules, "next_after_number": more}, []


class _Described:
    """Schedules as the protocol shows them; a timing that several share is worked out once."""

    def __init__(self, now_us: int, topics: frozenset[str]) -> None:
        self._now_us, self._topics = now_us, topics
        self._known: dict[Timing, Occurrences] = {}

    def row(self, page: cc.SchedulesPage, row: int) -> Header:
        definition = page.definitions[row]
        assert definition is not None
        schedule, paused = Schedule.from_json(definition), bool(page.paused[row])
        return {
            "name": page.names[row],
            "schedule": schedule.to_dict(),
            "version": int(page.versions[row]),
            "paused": paused,
            "next": None if paused else self._next(schedule),
            "last_us": int(page.occurred_us[row]) or None,
            "last_id": int(page.last_ids[row]) or None,
            "fired": int(page.fired[row]),
            "skipped": int(page.skipped[row]),
            "target_missing": schedule.target not in self._topics,
        }

    def _next(self, schedule: Schedule) -> Header | None:
        try:
            timing = Timing.of(schedule)
        except InvalidArgument:
            # It was good when it was put: its zone is no more.
            return None
        occurrences = self._known.setdefault(timing, Occurrences(timing))
        at_us = occurrences.first_after(max(self._now_us, schedule.start_us - 1))
        if at_us is None or at_us > (schedule.end_us or DUE_MAX_US):
            return None
        return {"at_us": at_us, "local": local_text(at_us, occurrences.zone)}


def _preview(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic="", name="", schedule={}, count=10, after_us=None)
    after_us = requests.integer(fields, "after_us")
    count = fields["count"]
    if not 0 < count <= _PREVIEW_MAX:
        raise InvalidArgument(
            f"a preview can show 1 to {_PREVIEW_MAX}", field="count", limit=_PREVIEW_MAX
        )
    if bool(fields["name"]) == bool(fields["schedule"]):
        raise InvalidArgument("a preview is of a name or of a definition", field="name")
    if fields["name"]:
        command = cc.ReadSchedules(fields["topic"], fields["name"])
        schedule = Schedule.from_json(service.command(command).value.definitions[0])
    else:
        # Where it goes to makes no difference.
        schedule = Schedule.from_dict({"target": "-", **fields["schedule"]})
        _check([("-", schedule)], service.limits)
    after_us = service.clock.now_us() if after_us is None else max(after_us, 0)
    occurrences = preview(schedule, after_us, count)
    return {"occurrences": [{"at_us": at_us, "local": local} for at_us, local in occurrences]}, []


def _pause_schedule(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, name=str, paused=bool)
    return {"changed": bool(service.command(cc.PauseSchedule(**fields), caller).value)}, []


def _run_schedule(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, name=str)
    topic, name = fields["topic"], fields["name"]
    page = service.command(cc.ReadSchedules(topic, name)).value
    schedule = Schedule.from_json(page.definitions[0])
    rows = one_row(name, schedule, service.clock.now_us())
    reply: Any = service.command(cc.RunSchedule(topic, name, rows), caller)
    return encode(service.mutation("run_schedule", topic, reply)), []


def _delete_schedule(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str, name=str)
    service.command(cc.DeleteSchedule(**fields), caller)
    return {}, []


ACTIONS: dict[str, Action] = {
    "put_schedules": _put_schedules,
    "schedules": _schedules,
    "preview": _preview,
    "pause_schedule": _pause_schedule,
    "run_schedule": _run_schedule,
    "delete_schedule": _delete_schedule,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
