"""Which topic a row of the feed is of, when a name was used again.

The feed names topics; a topic that was deleted and made anew is another one, and its ids begin anew.
Each gets a number of its own here, which is never used again, by the rows of the feed that say when
topics were made and deleted.

Runs in the driver: topics are few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fasti.errors import FastiError
from fasti.pipeline.files import DataFile
from fasti.pipeline.tables import Table

if TYPE_CHECKING:
    from fasti.client.client import Client

SCHEMA = pa.schema(
    [
        pa.field("topic_no", pa.int64()),
        pa.field("shard", pa.string()),
        pa.field("topic", pa.string()),
        # Where in the feed it was made; 0: before the feed begins.
        pa.field("topic_since", pa.int64()),
        # Where it was deleted.
        pa.field("until", pa.int64()),
        pa.field("kind", pa.string()),
    ]
)
# Kinds that have messages.
QUEUES = ("timeline", "priority")
_OPS = ("topic_created", "topic_deleted")


@dataclass
class LakeTopic:
    """One topic, from its making to its end."""

    topic_no: int
    shard: str
    topic: str
    topic_since: int
    until: int | None
    kind: str


@dataclass(frozen=True)
class TopicEvents:
    """What a step's rows tell of topics: all names, and when one was made or deleted."""

    names: set[str]
    events: list[dict[str, Any]]

    @classmethod
    def by(
        cls, table: Table, files: list[DataFile], shard: str, after: int, through: int
    ) -> TopicEvents:
        """Looks at the few columns of bronze that say it, without Spark."""
        paths = [str(table.path / file.path) for file in files]
        columns = ["position", "row", "at", "op", "topic", "details"]
        column = pc.field("position")
        within = (column > after) & (column <= through) & (pc.field("shard") == shard)
        dataset = ds.dataset(paths, format="parquet")
        names: set[str] = set()
        for batch in dataset.to_batches(columns=["topic"], filter=within):
            names.update(name for name in pc.unique(batch.column("topic")).to_pylist() if name)
        rare = within & pc.field("op").isin(_OPS)
        events = dataset.to_table(columns=columns, filter=rare).to_pylist()
        return cls(names, sorted(events, key=lambda event: (event["position"], event["row"])))


@dataclass(frozen=True)
class Deleted:
    """A topic's end."""

    topic_no: int
    position: int
    row: int
    at: datetime


class LakeTopics:
    """All topics of a lake."""

    def __init__(self, table: Table) -> None:
        self._table = table
        rows = table.arrow().to_pylist() if table.exists() else []
        self._topics: list[LakeTopic] = []
        # Those of one name, oldest first.
        self._named: dict[tuple[str, str], list[LakeTopic]] = {}
        for row in sorted(rows, key=lambda row: row["topic_no"]):
            self._keep(LakeTopic(**row))
        self._saved = [asdict(topic) for topic in self._topics]

    def learn(self, shard: str, seen: TopicEvents, connect: Callable[[], Client]) -> list[Deleted]:
        """Takes in what a step has seen. Returns the topics that ended in it; the same if repeated.

        The broker is asked for kinds of topics that were made before the feed began.
        """
        deleted = []
        for event in seen.events:
            name, position = event["topic"], event["position"]
            if event["op"] == "topic_created":
                last = self._before(shard, name, position)
                if last is None or last.topic_since != position:
                    kind = json.loads(event["details"])["settings"]["kind"]
                    self._add(shard, name, position, kind)
            elif event["op"] == "topic_deleted":
                last = self._before(shard, name, position) or self._add(shard, name, 0, "")
                last.until = position
                deleted.append(Deleted(last.topic_no, position, event["row"], event["at"]))
        strangers = sorted(name for name in seen.names if (shard, name) not in self._named)
        kinds = _kinds(connect) if strangers else {}
        for name in strangers:
            self._add(shard, name, 0, kinds.get(name, ""))
        return deleted

    def save(self) -> None:
        """Keeps it, if there is anything new."""
        rows = [asdict(topic) for topic in self._topics]
        if rows != self._saved:
            self._table.overwrite(pa.Table.from_pylist(rows, SCHEMA))
            self._saved = rows

    def spans(self, shard: str, names: Iterable[str]) -> list[tuple[Any, ...]]:
        """Those of these names that have messages: (shard, topic, no, since, from, to).

        Rows from a position on, up to before another, are the topic's; of the first of a name also
        all that came before.
        """
        spans = []
        for name in sorted(set(names)):
            named = self._named.get((shard, name), [])
            for index, topic in enumerate(named):
                begin = topic.topic_since if index else -1
                end = named[index + 1].topic_since if index + 1 < len(named) else 1 << 62
                if not topic.kind or topic.kind in QUEUES:
                    spans.append((shard, name, topic.topic_no, topic.topic_since, begin, end))
        return spans

    def _before(self, shard: str, name: str, position: int) -> LakeTopic | None:
        """The one of a name that was there then."""
        named = self._named.get((shard, name), [])
        return next((topic for topic in reversed(named) if topic.topic_since <= position), None)

    def _add(self, shard: str, name: str, since: int, kind: str) -> LakeTopic:
        # From 1, in the order in which they are met.
        topic = LakeTopic(len(self._topics) + 1, shard, name, since, None, kind)
        self._keep(topic)
        return topic

    def _keep(self, topic: LakeTopic) -> None:
        self._topics.append(topic)
        named = self._named.setdefault((topic.shard, topic.topic), [])
        named.append(topic)
        named.sort(key=lambda topic: topic.topic_since)


def _kinds(connect: Callable[[], Client]) -> dict[str, str]:
    """As far as the topics are still there, and the broker is."""
    try:
        return {topic.name: topic.settings.kind for topic in connect().topics()}
    except FastiError:
        return {}
