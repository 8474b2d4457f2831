"""Schedules: what a cron topic emits into other topics, and when.

Made by `client.schedules(topic)`; any thread may call.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Unpack

from fasti.client.arguments import Fold, Gap, Misfire, Moment, Overlap, ScheduleOptions
from fasti.client.durations import (
    Duration,
    as_datetime,
    duration_us,
    moment_us,
    optional_moment_us,
)
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.transport import Header, Transport
from fasti.core.cron import schedule as wire
from fasti.errors import InvalidArgument

_PUT_ROWS = 250
_PAGE_ROWS = 1_000


class Occurrence(NamedTuple):
    """A moment at which a schedule happens: in UTC, and as clocks in its zone show it."""

    at: datetime
    local: datetime

    @classmethod
    def of_reply(cls, header: Header) -> Occurrence:
        """From the protocol's object."""
        return cls(as_datetime(header["at_us"]), datetime.fromisoformat(header["local"]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, as it was when it was asked for.

    `next` is None while it rests and when it has ended. `last` is its last occurrence that was
    emitted, `last_id` the id of its last message in the target topic; `skipped` counts occurrences
    that a policy passed over. With `target_missing` there is no topic of the target's name: it goes on
    when there is one.
    """

    name: str
    definition: wire.Schedule
    version: int
    paused: bool
    next: Occurrence | None
    last: datetime | None
    last_id: int | None
    fired: int
    skipped: int
    target_missing: bool = False

    @classmethod
    def of_reply(cls, header: Header) -> Schedule:
        """From the protocol's object."""
        following, last_us = header["next"], header["last_us"]
        return cls(
            header["name"],
            wire.Schedule.from_dict(header["schedule"]),
            header["version"],
            header["paused"],
            None if following is None else Occurrence.of_reply(following),
            None if last_us is None else as_datetime(last_us),
            header["last_id"],
            header["fired"],
            header["skipped"],
            header.get("target_missing", False),
        )

    @property
    def cron(self) -> str | None:
        """The expression, if it has one."""
        return self.definition.cron or None

    @property
    def every(self) -> timedelta | None:
        """The interval, if it has one."""
        every_us = self.definition.every_us
        return timedelta(microseconds=every_us) if every_us else None

    @property
    def timezone(self) -> str:
        """The name of its time zone."""
        return self.definition.timezone

    @property
    def target(self) -> str:
        """The topic that it emits into."""
        return self.definition.target

    def arguments(self) -> dict[str, Any]:
        """What `put` would be given to make it, without what is a default."""
        arguments: dict[str, Any] = {}
        given = self.definition.to_dict()
        for name, value in given.items():
            plain = name.removesuffix("_us")
            if name == "payload":
                value = self.definition.payload
            elif plain in _MOMENTS:
                value = as_datetime(value)
            elif plain != name:
                value = timedelta(microseconds=value)
            arguments[plain] = value
        return arguments


_MOMENTS = ("start", "end")
_LENGTHS = ("every", "jitter", "misfire_grace", "expires")


class Schedules:
    """The schedules of one cron topic.

    reports = client.schedules("reports")
    reports.put("daily", cron="0 9 * * *", timezone="Europe/Paris", target="emails",
                payload=b"the daily report")
    reports.preview("daily", 5)          # the next five, in UTC and in local time
    reports.pause("daily"); reports.resume("daily"); reports.run_now("daily")
    reports.delete("daily")
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self.topic = topic
        self._transport = transport

    def put(
        self,
        name: str,
        *,
        target: str,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        payload: bytes | str = b"",
        template: bool = False,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        subject: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        gap: Gap = "shift",
        fold: Fold = "first",
        misfire: Misfire = "once",
        misfire_max: int = 100,
        misfire_grace: Duration = "10s",
        overlap: Overlap = "allow",
        version: int | None = None,
    ) -> Outcome:
        """Makes a schedule, or changes it; the same again is fine and changes nothing.

        `cron` has five fields (minute, hour, day, month, weekday) or six with seconds before them,
        or is `@hourly`, `@daily`, `@weekly`, `@monthly` or `@yearly`; or give `every`, a length. It
        happens in `timezone`, from `start` to `end`, each time later by up to `jitter`. `gap` says
        what becomes of local times that the clock leaps over (`shift` or `skip`), `fold` of those
        that come twice (`first`, `second` or `both`). `misfire` is about those that were missed by
        more than `misfire_grace` because no broker ran: `once` for all of them, `skip`, or `all`, at
        most `misfire_max`. `overlap` is about a message that is not finished when the next is due:
        `allow`, `skip` the next, or `cancel` the last. With `template`, `{{occurrence}}`,
        `{{local}}`, `{{date}}` and `{{schedule}}` in the payload are filled in.

        `expires` is how long after it is due a message must be begun: one that was not begun by then is
        dead with the reason `expired`.

        With `version`, only if the schedule has it (0: if there is none): else the answer is
        `conflict`. Raises `invalid_argument` on what makes no sense, `not_found` when the target
        isn't there.
        """
        arguments = {key: value for key, value in locals().items() if key in _ARGUMENTS}
        return self.put_many({name: arguments}, version=version)[0]

    def put_many(
        self, schedules: Mapping[str, Mapping[str, Any]], *, version: int | None = None
    ) -> builtins.list[Outcome]:
        """Many at once: for each name what `put` is given. An outcome for each, in their order."""
        named = [
            {"name": name, "schedule": wire_definition(**arguments)}
            for name, arguments in schedules.items()
        ]
        outcomes: builtins.list[Outcome] = []
        for begin in range(0, len(named), _PUT_ROWS):
            header = {
                "topic": self.topic,
                "schedules": named[begin : begin + _PUT_ROWS],
                "expected": -1 if version is None else version,
            }
            reply, _ = self._transport.call("put_schedules", header)
            outcomes += [
                Outcome(outcome["status"], 0, outcome["version"]) for outcome in reply["outcomes"]
            ]
        return outcomes

    def get(self, name: str) -> Schedule:
        """One schedule. Raises `not_found`."""
        reply, _ = self._transport.call("schedules", {"topic": self.topic, "name": name})
        return Schedule.of_reply(reply["schedules"][0])

    def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        schedules: builtins.list[Schedule] = []
        after: int | None = -1
        while after is not None:
            header = {"topic": self.topic, "after_number": after, "limit": _PAGE_ROWS}
            reply, _ = self._transport.call("schedules", header)
            schedules += [Schedule.of_reply(schedule) for schedule in reply["schedules"]]
            after = reply["next_after_number"]
        return sorted(schedules, key=lambda schedule: schedule.name)

    def preview(
        self,
        name: str | None = None,
        count: int = 10,
        *,
        after: Moment | None = None,
        **definition: Unpack[ScheduleOptions],
    ) -> builtins.list[Occurrence]:
        """The next occurrences, after now or a moment, whether it rests or not.

        Without a name, of what `put` would be given: `preview(cron="@daily", timezone="Asia/Tokyo")`.
        """
        header: Header = {"count": count, "after_us": optional_moment_us(after, "after")}
        if name is not None:
            if definition:
                raise InvalidArgument("a name or a definition, not both", field="name")
            header |= {"topic": self.topic, "name": name}
        else:
            header["schedule"] = wire_definition(**{"target": "-", **definition})
        reply, _ = self._transport.call("preview", header)
        return [Occurrence.of_reply(occurrence) for occurrence in reply["occurrences"]]

    def pause(self, name: str) -> bool:
        """It rests until it is resumed; what it has emitted ahead is taken back.

        Gives whether that is new. Raises `not_found`.
        """
        return self._pause(name, True)

    def resume(self, name: str) -> bool:
        """It goes on; what it missed while it rested is not made up for."""
        return self._pause(name, False)

    def _pause(self, name: str, paused: bool) -> bool:
        header = {"topic": self.topic, "name": name, "paused": paused}
        reply, _ = self._transport.call("pause_schedule", header)
        return bool(reply["changed"])

    def run_now(self, name: str) -> Outcome:
        """One message now, beside the occurrences: its `id` in the target topic.

        `conflict` if the schedule skips while its last message is not finished; `id` is that one's.
        """
        header = {"topic": self.topic, "name": name}
        reply, _ = self._transport.call("run_schedule", header)
        return Outcomes.of_reply(reply)[0]

    def delete(self, name: str) -> None:
        """It is gone, and so is what it has emitted ahead. Raises `not_found`."""
        self._transport.call("delete_schedule", {"topic": self.topic, "name": name})

    def __repr__(self) -> str:
        return f"<Schedules of {self.topic!r}>"


_ARGUMENTS = frozenset(Schedules.put.__annotations__) - {"name", "version", "return"}


def wire_definition(**given: Any) -> dict[str, Any]:
    """What `put` is given as the protocol has it. Raises `invalid_argument`."""
    definition: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ARGUMENTS:
            raise InvalidArgument(f"a schedule has no {name!r}", field=name)
        if value is None:
            continue
        if name in _LENGTHS:
            definition[name + "_us"] = duration_us(value, name)
        elif name in _MOMENTS:
            definition[name + "_us"] = moment_us(value, name)
        elif name == "payload":
            definition[name] = _encoded(value)
        elif name == "headers":
            definition[name] = dict(value)
        else:
            definition[name] = value
    return definition


def _encoded(payload: Any) -> str:
    import base64

    if isinstance(payload, str):
        payload = payload.encode()
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidArgument("a payload must be bytes or text", field="payload")
    return base64.b64encode(payload).decode()
