"""Handlers that are called by the clock: the schedule behind `app.cron` and `app.every`.

A handler has a timetable: a schedule in a cron topic, whose messages go to the handler's own topic.
It is put when the app starts, and says everything that decides about occurrences, so that the same
code means the same schedule: twenty workers that start at once put the same, which changes nothing,
and a restart neither repeats an occurrence nor begins to count anew. With other code the schedule is
changed, and that is logged: what was deployed last declares, as with a topic's settings.

What is no longer declared is not deleted: a worker of the older code may still run, and another app
may share the cron topic. An app with an owner has a cron topic of its own, and logs what lies there
without a handler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from fasti.app.codec import JSON
from fasti.app.handler import AnyHandler, HandlerOptions
from fasti.client.arguments import (
    Fold,
    Gap,
    Headers,
    Misfire,
    Moment,
    Overlap,
    ScheduleOptions,
)
from fasti.client.client import Client
from fasti.client.durations import Duration
from fasti.client.schedules import Schedules
from fasti.errors import InvalidArgument, NotFound

logger = logging.getLogger("fasti.app")

# What the broker fills into a payload for each occurrence.
_OCCURRENCES = {datetime: '"{{occurrence}}"', date: '"{{date}}"'}


class CronOptions(HandlerOptions, total=False):
    """What `app.cron` and `app.every` take: how the handler is run, and options of the schedule."""

    name: str
    topic: str
    schedules: str
    payload: Any
    paused: bool
    start: Moment
    end: Moment
    jitter: Duration
    gap: Gap
    fold: Fold
    misfire: Misfire
    misfire_max: int
    misfire_grace: Duration
    overlap: Overlap
    priority: int
    expires: Duration
    headers: Headers


_OF_SCHEDULE = frozenset(CronOptions.__annotations__) & frozenset(ScheduleOptions.__annotations__)
_OF_HANDLER = frozenset(HandlerOptions.__annotations__)
_OF_BOTH = frozenset(CronOptions.__annotations__) | _OF_HANDLER


@dataclass(frozen=True, slots=True)
class Timetable:
    """When a handler is called: a schedule, and the cron topic in which it lies."""

    topic: str
    name: str
    definition: dict[str, Any]
    paused: bool | None = None


def handler_options(
    function: Callable[..., Any], options: CronOptions
) -> tuple[str, str, dict[str, Any]]:
    """The schedule's name, the handler's topic, and how it is run. Raises `invalid_argument`."""
    for option in options:
        if option not in _OF_BOTH:
            raise InvalidArgument(f"a timetable has no option {option!r}", field=option)
    name = str(options.get("name") or getattr(function, "__name__", ""))
    how = {key: value for key, value in options.items() if key in _OF_HANDLER}
    return name, str(options.get("topic") or name), how


def timetable_of(
    handler: AnyHandler, name: str, timing: ScheduleOptions, options: CronOptions
) -> Timetable:
    """The schedule that calls a handler. Raises `invalid_argument` if it could not take the payload."""
    owner = handler.app.owner
    definition: dict[str, Any] = {
        **timing,
        **{key: value for key, value in options.items() if key in _OF_SCHEDULE},
        **_payload(handler, options),
        "target": handler.topic,
    }
    place = options.get("schedules") or (f"cron.{owner}" if owner else "cron")
    return Timetable(place, name, definition, options.get("paused"))


def _payload(handler: AnyHandler, options: CronOptions) -> dict[str, Any]:
    shape = handler.shape
    if "payload" in options:
        payload, content_type = handler.encode(options["payload"])
        return {"payload": payload, "content_type": content_type}
    if shape.takes != "value":
        return {"payload": b""}
    template = _OCCURRENCES.get(shape.annotation)
    if template is not None:
        return {"payload": template, "content_type": JSON, "template": True}
    try:
        payload, content_type = handler.encode(None)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{handler.label} takes a value, so it needs a payload=; or let it take nothing, a "
            "datetime (the occurrence) or a Message",
            field="payload",
        ) from error
    return {"payload": payload, "content_type": content_type}


def check_timetables(client: Client, handlers: Iterable[AnyHandler]) -> None:
    """Has the broker judge all expressions, looks at cron topics, and changes nothing.

    Raises `invalid_argument`.
    """
    for timetable in [handler.timetable for handler in handlers if handler.timetable is not None]:
        _has_cron_topic(client, timetable.topic)
        schedules = client.schedules(timetable.topic)
        try:
            schedules.preview(count=1, **timetable.definition)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the schedule {timetable.name!r}: {error.message}", field=error.field
            ) from error


def ensure_timetables(client: Client, handlers: Iterable[AnyHandler], *, alone: bool) -> None:
    """Makes or changes the schedules of handlers, whose topics are there.

    `alone` means that the cron topics are this app's: it logs which schedules have no handler. With
    `create=False` nothing is made or changed. Raises what the broker refuses.
    """
    by_topic: dict[str, set[str]] = {}
    for handler in handlers:
        timetable = handler.timetable
        if timetable is None:
            continue
        schedules = client.schedules(timetable.topic)
        create = handler.settings.create is not False
        if create and not _has_cron_topic(client, timetable.topic):
            # Others may do the same at this moment: again with the same settings is fine.
            client.create_topic(timetable.topic, kind="cron")
        by_topic.setdefault(timetable.topic, set()).add(timetable.name)
        _ensure(schedules, timetable, create=create)
    if alone:
        for topic, names in by_topic.items():
            _report_orphans(client.schedules(topic), names)


def _has_cron_topic(client: Client, name: str) -> bool:
    """Raises `invalid_argument` if the topic holds something else."""
    try:
        kind = client.topic(name).settings.kind
    except NotFound:
        return False
    if kind != "cron":
        raise InvalidArgument(
            f"topic {name!r} is a {kind}, so it can't hold schedules: give another one by schedules=",
            field="schedules",
        )
    return True


def _ensure(schedules: Schedules, timetable: Timetable, *, create: bool) -> None:
    name = timetable.name
    try:
        before = schedules.get(name).definition
    except NotFound:
        if not create:
            raise
        before = None
    if create:
        schedules.put(name, **timetable.definition)
        after = schedules.get(name).definition
        if before is None:
            logger.info("schedule %r of %r was created", name, timetable.topic)
        elif before != after:
            logger.warning(
                "schedule %r of %r was changed to what its handler asks for: %s",
                name,
                timetable.topic,
                after,
            )
    if timetable.paused is not None:
        (schedules.pause if timetable.paused else schedules.resume)(name)


def _report_orphans(schedules: Schedules, names: set[str]) -> None:
    for schedule in schedules.list():
        if schedule.name not in names:
            logger.warning(
                "schedule %r has no handler in this app any more, and goes on; to end it: "
                "fasti schedules delete %s %s",
                schedule.name,
                schedules.topic,
                schedule.name,
            )
