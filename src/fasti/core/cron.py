"""Schedules that emit messages into timelines."""

from __future__ import annotations

from typing import ClassVar

from fasti.core.kind import Kind


class CronKind(Kind):
    """Schedules that emit messages into timelines."""

    name: ClassVar[str] = "cron"
