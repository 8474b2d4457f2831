"""What the numbers of topics and groups in events stand for, also of those that are gone.

Events name a topic or a group by its number, which is never used again. Whoever reads the journal
later, the change feed, wants names. A name that is gone is kept as long as the journal still has
events of it; `prune` is called with each checkpoint.
"""

from __future__ import annotations

from typing import Any

from fasti.core import events as ev
from fasti.core.group_events import GroupDropped, GroupMade

Group = tuple[int, int]

NAMING = frozenset({ev.TopicCreated, ev.TopicDeleted, GroupMade, GroupDropped})


class Directory:
    """Names by number. Written by the sequencer's thread; others may look up single names."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        self.groups: dict[Group, str] = {}
        # The frame that ended them.
        self._gone_topics: dict[int, int] = {}
        self._gone_groups: dict[Group, int] = {}

    def note(self, event: Any, frame: int) -> None:
        """A topic or group was made, or is gone."""
        if isinstance(event, ev.TopicCreated):
            self.topics[event.topic] = event.name
        elif isinstance(event, GroupMade):
            self.groups[event.topic, event.number] = event.group
        elif isinstance(event, ev.TopicDeleted):
            self._gone_topics[event.topic] = frame
        else:
            self._gone_groups[event.topic, event.number] = frame

    def prune(self, first_frame: int) -> None:
        """The journal begins here now."""
        topics = [number for number, frame in self._gone_topics.items() if frame < first_frame]
        for number in topics:
            del self._gone_topics[number]
            self.topics.pop(number, None)
        forgotten = set(topics)
        groups = [group for group, frame in self._gone_groups.items() if frame < first_frame]
        groups += [group for group in self.groups if forgotten and group[0] in forgotten]
        for group in groups:
            self.groups.pop(group, None)
            self._gone_groups.pop(group, None)

    def capture(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "topics": [[number, name] for number, name in self.topics.items()],
            "groups": [[*group, name] for group, name in self.groups.items()],
            "gone_topics": [[number, frame] for number, frame in self._gone_topics.items()],
            "gone_groups": [[*group, frame] for group, frame in self._gone_groups.items()],
        }

    def restore(self, described: dict[str, Any]) -> None:
        """Back from `capture`."""
        self.topics.update((number, name) for number, name in described["topics"])
        self.groups.update(((t, n), name) for t, n, name in described["groups"])
        self._gone_topics.update((number, frame) for number, frame in described["gone_topics"])
        self._gone_groups.update(((t, n), frame) for t, n, frame in described["gone_groups"])
