"""The topics of a shard, read a page at a time: no step is long, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.core.queries import TOPICS_PER_PAGE, ReadTopics, TopicView

if TYPE_CHECKING:
    from fasti.broker.shard import Shard


def read_topics(shard: Shard, kind: str = "", timeout_s: float | None = None) -> list[TopicView]:
    """All topics, or those of one kind, in the order in which they were created. Any thread.

    Each is as it was when its page was read; one that is created or deleted meanwhile may be missing.
    """
    topics: list[TopicView] = []
    while True:
        after = topics[-1].number if topics else 0
        page = shard.ask(ReadTopics(kind, after=after)).result(timeout_s)
        topics += page
        if len(page) < TOPICS_PER_PAGE:
            return topics
