"""All topic kinds. The engine makes one object of each."""

from __future__ import annotations

from fasti.core.cron.kind import CronKind
from fasti.core.kind import Kind
from fasti.core.kv.kind import KvKind
from fasti.core.log.kind import LogKind
from fasti.core.priority.kind import PriorityKind
from fasti.core.timeline.kind import TimelineKind

KIND_CLASSES: tuple[type[Kind], ...] = (TimelineKind, PriorityKind, CronKind, LogKind, KvKind)
