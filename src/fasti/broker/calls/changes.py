"""The change feed for those who read it: from position to position, or on and on.

Reading costs the broker's own threads nothing but the disk: pages are read from the journal and
translated in the thread that serves the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.change_filter import NEEDED, change_filter
from fasti.broker.calls.follower import IDLE_S, Follower, Written
from fasti.broker.calls.listed import columns_of, words
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.feed import EVERYTHING
from fasti.core.queries import ReadTopicNames
from fasti.errors import Closed, Gone, InvalidArgument
from fasti.protocol.feed_name import is_nameless
from fasti.protocol.schemas import VERSION
from fasti.storage.change_feed import ChangeFeed, DirectoryNames
from fasti.storage.transitions import WITH_PAYLOADS, schema_of

if TYPE_CHECKING:
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard

_SPLITS_MAX = 1_000
# Before the journal is looked at again, when the shard recovers.
_PAUSE_S = 0.05
_FIELDS: Header = {
    "shard": "",
    "after": None,
    "topic": "",
    "topics": [],
    "ops": [],
    "ids": [],
    "key": "",
    "known": [],
    "columns": [],
    "payload": False,
}


def feed_of(shard: Shard) -> ChangeFeed:
    """The feed as it is now; an engine that recovers has another one."""
    names = DirectoryNames(shard.engine.state.directory)
    return ChangeFeed(shard.store.journal, shard.store.seed, names)


def shard_with(service: Service, name: str) -> Shard:
    """The shard with the feed of that name; without one the catalogue. Raises `gone`."""
    named = name.rpartition(".")[0]
    shards = service.placement.shards()
    shard = next((shard for shard in shards if shard.name == named), service.placement.catalogue)
    if name in ("", str(shard.feed_name)):
        return shard
    feed = feed_of(shard)
    why = f"positions of shard {name} do not belong here: this is shard {shard.feed_name}"
    if shard.name == named:
        why += ". Its journal was begun anew: by a restore, a repair, a reset of its clock, a clone"
    if is_nameless(name):
        why += ". An older version wrote them, which did not name the shard: begin anew"
    details = {"shard": str(shard.feed_name), "first": feed.first, "last": feed.last}
    raise Gone(why, details=details)


class Span:
    """What a reader wants: checked fields of a ticket, plan or exchange."""

    def __init__(self, service: Service, fields: Header) -> None:
        self.shard = shard_with(service, fields["shard"])
        self.feed = feed = feed_of(self.shard)
        after = requests.integer(fields, "after")
        self.after = feed.first if after is None else after
        feed.check(self.after)
        self.payload: bool = fields["payload"]
        self.topic: str = fields["topic"]
        topics = [*words(fields, "topics"), *([self.topic] if self.topic else [])]
        self.topics = _numbers(self.shard, topics) if topics else None
        self.ops = frozenset(words(fields, "ops")) or None
        self.columns = tuple(words(fields, "columns"))
        if self.columns:
            columns_of(WITH_PAYLOADS, list(self.columns))
        self._filter = change_filter(service, fields, topics, self.ops)

    @property
    def schema(self) -> pa.Schema:
        """With or without payloads, or the columns that were asked for."""
        return schema_of(self.payload, self.columns)

    def pages(self, through: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Pages from where it is; it moves on with each."""
        wanted = self.schema.names
        ops, columns = self.ops, self.columns
        if self._filter is not None:
            # A message is known by rows of other ops too, and by columns that nobody asked for.
            ops, columns = None, (*wanted, *(name for name in NEEDED if name not in wanted))
        pages = self.feed.pages(self.after, through, self.payload, self.topics, ops, columns)
        for position, batch in pages:
            self.after = position
            yield position, batch if self._filter is None else self._filter.apply(batch, wanted)


def _numbers(shard: Shard, topics: list[str]) -> frozenset[int]:
    """All topics that ever had one of the names, as far as anybody remembers."""
    known: dict[int, str] = shard.ask(ReadTopicNames()).result()
    return frozenset(number for number, name in known.items() if name in topics)


class ChangeReads:
    """Tickets and plans of the feed. Any thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """Up to `splits` tickets that together have everything between two positions."""
        fields = requests.checked(descriptor, through=None, splits=1, **_FIELDS)
        if not 1 <= fields["splits"] <= _SPLITS_MAX:
            raise InvalidArgument(
                f"splits must be 1 to {_SPLITS_MAX}", field="splits", limit=_SPLITS_MAX
            )
        if fields["key"] and fields["splits"] > 1:
            raise InvalidArgument(
                "the changes of one key have one reader: splits must be 1", field="splits"
            )
        span = Span(self._service, fields)
        through = _through(span, fields)
        base = {
            "version": VERSION,
            "call": "changes",
            **{name: fields[name] for name in _FIELDS if fields[name] != _FIELDS[name]},
            "shard": str(span.shard.feed_name),
        }
        step = max(1, -(-(through - span.after) // fields["splits"]))
        bounds = list(range(span.after, through, step)) or [through]
        ends = [*bounds[1:], through]
        return span.schema, [
            {**base, "after": begin, "through": end}
            for begin, end in zip(bounds, ends, strict=True)
        ]

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The transitions of a ticket."""
        span_fields = requests.checked(ticket, through=None, **_FIELDS)
        span = Span(self._service, span_fields)
        through = _through(span, span_fields)
        return span.schema, (batch for _, batch in span.pages(through))


def _through(span: Span, fields: Header) -> int:
    through = requests.integer(fields, "through")
    if through is None:
        return span.feed.last
    span.feed.check(through)
    if through < span.after:
        raise InvalidArgument("`through` is before `after`", field="through")
    return through


class ChangeFollower(Follower):
    """A reader that follows the feed."""

    call = "changes"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        self._span = Span(service, requests.checked(descriptor, **_FIELDS))
        super().__init__(service, caller, self._span.shard)
        self._followed = self.shard.feed.follow(EVERYTHING)

    @property
    def schema(self) -> pa.Schema:
        """With or without payloads."""
        return self._span.schema

    @property
    def topic(self) -> str:
        """It belongs to no topic: it goes on when one is deleted."""
        return ""

    def wake(self) -> None:
        """To look whether it is over."""
        self._followed.wake()

    def leave(self) -> None:
        """One fewer follows."""
        self.shard.feed.unfollow(self._followed)

    def pages(self) -> Iterator[Written]:
        """Pages of the feed as they become durable."""
        span = self._span
        while not self.ended:
            # Before looking: what becomes durable from now on is not missed.
            seen = self._followed.seen
            # A shard that recovered has another journal, with the same frames.
            span.feed = feed_of(self.shard)
            idle, patience_s = True, IDLE_S
            try:
                for position, batch in span.pages(span.feed.last):
                    idle = False
                    yield self.said(kind="changes", position=position), batch
                    if self.ended:
                        return
            except Closed:
                # The shard recovers: soon the journal is another one.
                if self.shard.failed:
                    raise
                patience_s = _PAUSE_S
            if idle and not self._followed.wait(seen, patience_s, self.is_over):
                yield self.said(kind="idle", position=span.after), None


def _feed(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    """Where the feed begins and ends; where a time lies, or where so many rows end."""
    none(parts)
    fields = requests.checked(header, time_us=None, after=None, rows=None, shard="", topic="")
    time_us, rows = requests.integer(fields, "time_us"), requests.integer(fields, "rows")
    where = {name: fields[name] for name in ("shard", "after", "topic")}
    span = Span(service, {**_FIELDS, **where})
    feed = span.feed
    answer: Header = {"shard": str(span.shard.feed_name), "first": feed.first, "last": feed.last}
    if time_us is not None:
        answer["position"] = feed.before(time_us)
    if rows is not None:
        if rows < 1:
            raise InvalidArgument("rows must be at least 1", field="rows", limit=1)
        answer["position"], answer["rows"] = feed.end_after(span.after, rows, span.topics)
    return answer, []


ACTIONS: dict[str, Action] = {"feed": _feed}
TRANSACTION_PARTS: dict[str, PartOf] = {}
