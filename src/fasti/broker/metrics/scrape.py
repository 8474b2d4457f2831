"""What the parts of one scrape share: the shard, its topics as they were read once, and the bound.

Topics are asked in small pieces, a step for each, so that a scrape of ten thousand of them doesn't
hold up what is due. A shard that doesn't answer in time raises here, and the scrape goes on without
what only its engine knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fasti.broker.metrics.series import SeriesBound
from fasti.broker.topics import read_topics
from fasti.core.command import Command
from fasti.core.queries import TopicView

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

TIMEOUT_S = 10.0
# Partitions that are counted in one step, each in some microseconds.
_PARTITIONS_PER_CALL = 64


class Scrape:
    """One scrape. Its thread only."""

    def __init__(self, shard: Shard, bound: SeriesBound) -> None:
        self.shard, self.bound = shard, bound
        self.answers = shard.pulse.beats()
        self.topics: list[TopicView] = []

    def read_topics(self) -> None:
        """All topics, by name. Raises if the shard doesn't answer."""
        if not self.answers:
            raise TimeoutError
        self.topics = read_topics(self.shard, timeout_s=TIMEOUT_S)
        self.topics.sort(key=lambda topic: topic.name)

    def of_kind(self, kind: str) -> list[TopicView]:
        """The topics of a kind, by name."""
        return [topic for topic in self.topics if topic.settings.kind == kind]

    def ask(self, command: Command) -> Any:
        """The value of one reply; None if the topic was deleted since."""
        reply = self.shard.call(command, TIMEOUT_S)
        return reply.value if reply.error is None else None

    def ask_all(
        self, topics: Iterable[TopicView], command: Callable[[str], Command]
    ) -> Iterator[tuple[TopicView, Any]]:
        """Each topic and its reply; one that was deleted since is left out."""
        piece: list[TopicView] = []
        partitions = 0
        for topic in topics:
            piece.append(topic)
            partitions += topic.settings.partitions
            if partitions >= _PARTITIONS_PER_CALL:
                yield from self._ask(piece, command)
                piece, partitions = [], 0
        if piece:
            yield from self._ask(piece, command)

    def _ask(
        self, piece: list[TopicView], command: Callable[[str], Command]
    ) -> Iterator[tuple[TopicView, Any]]:
        replies = self.shard.submit([command(topic.name) for topic in piece]).result(TIMEOUT_S)
        for topic, reply in zip(piece, replies, strict=True):
            if reply.error is None:
                yield topic, reply
