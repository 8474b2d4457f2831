"""Priority topics: messages by (priority, due, sequence)."""

from __future__ import annotations

from typing import ClassVar

from fasti.core.timeline_kind import TimelineKind


class PriorityKind(TimelineKind):
    """Priority topics: messages by (priority, due, sequence)."""

    name: ClassVar[str] = "priority"
