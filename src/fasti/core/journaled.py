"""Every event that a journal may hold, by its code."""

from __future__ import annotations

# Imported so that their events are known.
from fasti.core.catalogue import events as _catalogue  # noqa: F401
from fasti.core.cron import events as _cron  # noqa: F401
from fasti.core.events import Event
from fasti.core.kv import events as _kv  # noqa: F401
from fasti.core.log import events as _log  # noqa: F401
from fasti.core.log import group_events as _groups  # noqa: F401
from fasti.core.numbered import events as _numbered  # noqa: F401
from fasti.core.priority import events as _priority  # noqa: F401
from fasti.core.sinks import events as _sinks  # noqa: F401


def _all(kind: type[Event]) -> list[type[Event]]:
    found = [kind] if kind.code else []
    for below in kind.__subclasses__():
        found += _all(below)
    return found


# `dataclass(slots=True)` makes each class anew: of two with one code the later one counts.
EVENTS: dict[int, type[Event]] = {kind.code: kind for kind in _all(Event)}
