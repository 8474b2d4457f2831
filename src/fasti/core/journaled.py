"""Every event that a journal may hold, by its code."""

from __future__ import annotations

from fasti.core import (  # noqa: F401  (imported so that their events are known)
    cron_events,
    group_events,
    kv_events,
    log_events,
    priority_events,
)
from fasti.core.events import Event


def _all(kind: type[Event]) -> list[type[Event]]:
    found = [kind] if kind.code else []
    for below in kind.__subclasses__():
        found += _all(below)
    return found


# `dataclass(slots=True)` makes each class anew: of two with one code the later one counts.
EVENTS: dict[int, type[Event]] = {kind.code: kind for kind in _all(Event)}
