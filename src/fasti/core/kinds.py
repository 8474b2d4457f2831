"""All topic kinds. The engine makes one object of each."""

from __future__ import annotations

from fasti.core.cron import CronKind
from fasti.core.kind import Kind
from fasti.core.kv import KvKind
from fasti.core.log import LogKind
from fasti.core.priority import PriorityKind
from fasti.core.timeline_kind import TimelineKind

KIND_CLASSES: tuple[type[Kind], ...] = (TimelineKind, PriorityKind, CronKind, LogKind, KvKind)
