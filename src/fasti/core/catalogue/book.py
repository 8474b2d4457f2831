"""The state of the catalogue on a shard: which of its topics are entries, and which version it has.

On shard 0 a topic's number in the catalogue is its own number there, and every change of an entry raises
the version. Which entries are gone is remembered for a while; who is further behind is told all that
there are. On the other shards numbers of their own stand beside those of the catalogue, because topics
that a shard makes for itself are no part of it. The only shard there is has no catalogue.

Changed by events alone. The sequencer's thread only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fasti.core.catalogue import events as ev

if TYPE_CHECKING:
    from fasti.core.kind import Apply
    from fasti.core.state import ShardState, Topic

# Entries that are gone and remembered: as many as there may be topics.
GONE_MAX = 10_000


class CatalogueBook:
    """Entries by their number, in the order of their last change."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.version = 0
        self.topics: dict[int, Topic] = {}
        # Version and number of entries that are gone, of all after this version.
        self.gone: deque[tuple[int, int]] = deque()
        self.gone_after = 0

    def events(self) -> dict[type[Any], Apply]:
        """By event, the function that makes it so."""
        return {
            ev.EntryChanged: self._changed,
            ev.EntryDropped: self._dropped,
            ev.CatalogueFollowed: self._followed,
        }

    def _changed(self, event: ev.EntryChanged, _: int) -> None:
        topic = self._state.topics[event.topic]
        topic.catalogue_number, topic.catalogue_version = event.number, event.version
        self.topics.pop(event.number, None)
        self.topics[event.number] = topic
        self.version = max(self.version, event.version)

    def _dropped(self, event: ev.EntryDropped, _: int) -> None:
        self.gone.append((event.version, event.number))
        while len(self.gone) > GONE_MAX:
            self.gone_after = self.gone.popleft()[0]
        self.version = max(self.version, event.version)

    def _followed(self, event: ev.CatalogueFollowed, _: int) -> None:
        self.version = event.version

    def forget(self, topic: Topic) -> None:
        """The topic is being deleted."""
        if self.topics.get(topic.catalogue_number) is topic:
            del self.topics[topic.catalogue_number]

    # Checkpoints

    def capture(self) -> dict[str, Any]:
        """As plain values. What its topics say is kept with them."""
        gone = [[version, number] for version, number in self.gone]
        return {"version": self.version, "gone": gone, "gone_after": self.gone_after}

    def restore(self, described: dict[str, Any]) -> None:
        """Back from `capture`, when the topics are there."""
        self.version, self.gone_after = described["version"], described["gone_after"]
        self.gone.extend((version, number) for version, number in described["gone"])
        entries = [topic for topic in self._state.topics.values() if topic.catalogue_number]
        entries.sort(key=lambda topic: topic.catalogue_version)
        self.topics = {topic.catalogue_number: topic for topic in entries}
