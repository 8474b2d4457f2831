"""What points to a topic: schedules that emit into it, and bindings that lead to it.

When a topic is deleted, bindings to it end with it, and schedules wait for a topic of its name. Who
deletes one is told before, and the log afterwards. Handler threads.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.core.cron.commands import ReadSchedules, SchedulesPage
from fasti.core.cron.schedule import Schedule
from fasti.core.traits import KINDS
from fasti.errors import FastiError, NotFound

if TYPE_CHECKING:
    from fasti.broker.service import Service

_log = logging.getLogger("fasti.broker.topics")

# So many are named; the rest is counted.
_NAMED_MAX = 100
_LOGGED_MAX = 5
_PAGE_ROWS = 2_000


@dataclass(slots=True)
class References:
    """Pairs of a cron topic and a schedule's name, and of a bound topic and a pattern."""

    schedules: list[tuple[str, str]] = field(default_factory=list)
    schedules_count: int = 0
    bindings: list[tuple[str, str]] = field(default_factory=list)
    bindings_count: int = 0

    def to_dict(self) -> Header:
        """As the protocol tells it."""
        return {
            "schedules": [{"topic": topic, "name": name} for topic, name in self.schedules],
            "schedules_count": self.schedules_count,
            "bindings": [{"topic": topic, "pattern": pattern} for topic, pattern in self.bindings],
            "bindings_count": self.bindings_count,
        }


def references_to(service: Service, target: str) -> References:
    """All that point to the topic; the first of each are named."""
    found = References()
    if target.startswith("_"):
        # An inbox, or another of the broker's own: they come and go, and nothing points to them.
        return found
    topics = service.topics().values()
    bound = [
        (topic.name, pattern) for topic in topics for pattern, to in topic.bindings if to == target
    ]
    found.bindings, found.bindings_count = bound[:_NAMED_MAX], len(bound)
    for topic in topics:
        # Those of the topic itself go with it.
        if KINDS[topic.settings.kind].has_schedules and topic.name != target:
            _read_schedules(service, topic.name, target, found)
    return found


def _read_schedules(service: Service, topic: str, target: str, found: References) -> None:
    after, more = -1, True
    while more:
        try:
            command = ReadSchedules(topic, after_number=after, limit=_PAGE_ROWS)
            page: SchedulesPage = service.command(command).value
        except NotFound:
            return
        for name, definition in zip(page.names, page.definitions, strict=True):
            if definition is not None and _emits_into(definition, target):
                found.schedules_count += 1
                if len(found.schedules) < _NAMED_MAX:
                    found.schedules.append((topic, name))
        more = page.more and len(page.numbers) > 0
        after = int(page.numbers[-1]) if more else after


def _emits_into(definition: str, target: str) -> bool:
    if target.isascii() and f'"{target}"' not in definition:
        # Spares to read a million others.
        return False
    try:
        return Schedule.from_json(definition).target == target
    except FastiError:
        # A newer version wrote it: it is never fired here.
        return False


def log_deletion(topic: str, found: References) -> None:
    """Tells whoever reads the log what the deletion of a topic leaves behind."""
    if found.bindings_count:
        _log.warning(
            "topic %r was deleted, and with it the bindings that led to it: %s (%d in all)",
            topic,
            _some(found.bindings, found.bindings_count),
            found.bindings_count,
        )
    if found.schedules_count:
        _log.warning(
            "topic %r was deleted: the schedules that emit into it wait until it is there again: "
            "%s (%d in all)",
            topic,
            _some(found.schedules, found.schedules_count),
            found.schedules_count,
        )


def _some(named: list[tuple[str, str]], count: int) -> str:
    first = ", ".join(f"{topic}/{name}" for topic, name in named[:_LOGGED_MAX])
    return first + (", ..." if count > _LOGGED_MAX else "")


def _references(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, topic=str)
    service.require_topic(fields["topic"])
    return references_to(service, fields["topic"]).to_dict(), []


ACTIONS: dict[str, Action] = {"references": _references}
TRANSACTION_PARTS: dict[str, PartOf] = {}
