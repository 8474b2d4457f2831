"""What the numbers of topics and groups in events stand for, also of those that are gone.

Events name a topic or a group by its number. Whoever reads the journal later, the change feed, wants
names. A topic's number is never used again; a group's may be, so a name counts from a frame on. A
name that is gone is kept as long as the journal still has events of it; `prune` is called with each
checkpoint.
"""

from __future__ import annotations

from typing import Any

from fasti.core import events as ev
from fasti.core.log.group_events import GroupDropped, GroupMade

Group = tuple[int, int]

NAMING = frozenset({ev.TopicCreated, ev.TopicDeleted, GroupMade, GroupDropped})


class Directory:
    """Names by number. Written by the sequencer's thread; others may look up single names."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        # Names with the frame from which on they count, oldest first; "" from where one is gone.
        self._groups: dict[Group, list[tuple[int, str]]] = {}
        # The frame that ended them.
        self._gone_topics: dict[int, int] = {}

    def group(self, topic: int, number: int, frame: int) -> str | None:
        """The group's name as of a frame."""
        names = self._groups.get((topic, number), ())
        return next((name for begin, name in reversed(names) if name and begin <= frame), None)

    def note(self, event: Any, frame: int) -> None:
        """A topic or group was made, or is gone."""
        if isinstance(event, ev.TopicCreated):
            self.topics[event.topic] = event.name
        elif isinstance(event, GroupMade):
            self._groups.setdefault((event.topic, event.number), []).append((frame, event.group))
        elif isinstance(event, ev.TopicDeleted):
            self._gone_topics[event.topic] = frame
        else:
            self._groups.setdefault((event.topic, event.number), []).append((frame, ""))

    def prune(self, first_frame: int) -> None:
        """The journal begins here now."""
        topics = [number for number, frame in self._gone_topics.items() if frame < first_frame]
        for number in topics:
            del self._gone_topics[number]
            self.topics.pop(number, None)
        forgotten = set(topics)
        for group, names in list(self._groups.items()):
            # What counted until before the first frame is asked for by nobody.
            while len(names) > 1 and names[1][0] < first_frame:
                names.pop(0)
            if group[0] in forgotten or (not names[0][1] and len(names) == 1):
                del self._groups[group]

    def capture(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "topics": [[number, name] for number, name in self.topics.items()],
            "groups": [
                [*group, frame, name]
                for group, names in self._groups.items()
                for frame, name in names
            ],
            "gone_topics": [[number, frame] for number, frame in self._gone_topics.items()],
        }

    def restore(self, described: dict[str, Any]) -> None:
        """Back from `capture`."""
        self.topics.update((number, name) for number, name in described["topics"])
        for topic, number, frame, name in described["groups"]:
            self._groups.setdefault((topic, number), []).append((frame, name))
        self._gone_topics.update((number, frame) for number, frame in described["gone_topics"])
