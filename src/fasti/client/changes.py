"""The change feed: everything that happened to every message, in order, as Arrow tables.

    for table in client.changes(topic="emails"):
        ...                                          # up to now
    with client.changes(start=saved, follow=True) as changes:
        for table in changes:
            store(table, changes.position)           # and on and on

A reader is for one thread at a time; `close` is for any. When the connection is lost it connects
again and goes on behind the last table that it gave out: no row is missing and none comes twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from fasti.client.arguments import ArrowTable
from fasti.client.durations import Duration, moment_us, seconds
from fasti.client.following import Followings
from fasti.client.pauses import PASSING
from fasti.client.position import FeedBounds as FeedBounds
from fasti.client.position import Position as Position
from fasti.client.position import by_shard
from fasti.client.transport import Header, Transport
from fasti.errors import Closed, FastiError, InvalidArgument

# A read that doesn't follow is given up when nothing came for so long.
_PATIENCE_S = 30.0
# So many messages of a key are remembered for the broker.
_MET_MAX = 1_000


Start = Any
"""`"earliest"`, `"latest"`, a `Position` or its text, or an aware datetime."""


def feed_bounds(transport: Transport) -> FeedBounds:
    """Where the feed begins and ends now, of every shard."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for shard in all_shards(transport):
        header, _ = shard.call("feed", {})
        first[header["shard"]], last[header["shard"]] = int(header["first"]), int(header["last"])
    return FeedBounds(Position.of(first), Position.of(last))


def all_shards(transport: Transport) -> list[Transport]:
    """The way to each, in the order of their numbers."""
    return [transport.shard(number) for number in range(transport.shard_count)]


def resolve(transport: Transport, start: Start) -> Position:
    """The position that is meant, and still there, in every shard.

    Raises `gone`, `not_found` if it lies ahead, `invalid_argument` if it doesn't name each shard.
    """
    if isinstance(start, str) and start not in ("earliest", "latest"):
        start = Position.parse(start)
    if isinstance(start, Position):
        places = by_shard(start.frames, transport.shard_count, "start")
        for number, place in enumerate(places):
            fields = {"shard": place.shard, "after": place.frame}
            transport.shard(number).call("feed", fields)
        return start
    if isinstance(start, datetime):
        time_us, frames = moment_us(start, "start"), dict[str, int]()
        for shard in all_shards(transport):
            header, _ = shard.call("feed", {"time_us": time_us})
            frames[header["shard"]] = int(header["position"])
        return Position.of(frames)
    if isinstance(start, str):
        bounds = feed_bounds(transport)
        return bounds.first if start == "earliest" else bounds.last
    raise InvalidArgument(
        f"start must be earliest, latest, a position or an aware datetime, not {start!r}",
        field="start",
    )


@dataclass(slots=True)
class _Feed:
    """One shard's feed, as far as it was read; where reading ends, unless it is followed."""

    transport: Transport
    name: str
    frame: int
    end: int | None
    # A read of it that is under way.
    plain: Iterator[pa.RecordBatch] | None = None
    # Messages met under the key, the latest last: when the connection was lost, the broker is given
    # them.
    met: dict[tuple[str, int], None] = field(default_factory=dict)


class Changes:
    """Made by `client.changes()`: an iterator of tables and a context manager.

    `position` is behind all that was given out: keep it to go on there another day. Where the broker
    has several shards each table is of one of them, which a column `shard` names: its rows are in
    order, and there is no order over shards.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        start: Start,
        topic: str | None,
        key: str | None = None,
        id: int | Sequence[int] | None = None,
        payload: bool,
        follow: bool,
        timeout: Duration | None,
    ) -> None:
        self.follow = follow
        self._timeout_s = seconds(timeout, "timeout")
        self._fields: Header = {"call": "changes", "payload": payload}
        if topic is not None:
            self._fields["topic"] = topic
        if key is not None:
            if not key:
                raise InvalidArgument("a key must not be empty", field="key")
            self._fields["key"] = key
        if id is not None:
            self._fields["ids"] = [id] if isinstance(id, int) else [int(number) for number in id]
        self.position = resolve(transport, start)
        # Without following it ends where the feed does now.
        ends = {} if follow else feed_bounds(transport).last.frames
        shards = all_shards(transport)
        places = by_shard(self.position.frames, len(shards))
        self._feeds = [
            _Feed(shard, place.shard, place.frame, ends.get(place.shard))
            for shard, place in zip(shards, places, strict=True)
        ]
        self._following = Followings(shards)
        self._gone = weakref.finalize(self, self._following.close)
        self._gone.atexit = False

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing more."""
        return self._following.closed

    def __iter__(self) -> Iterator[ArrowTable]:
        return self

    def __next__(self) -> ArrowTable:
        """The next rows. Ends at the end, with `follow` after `timeout` without any.

        Raises `gone` when the broker has dropped what comes next; its details say `first`, and `shard`
        of which feed.
        """
        if self.closed:
            raise StopIteration
        batch = self._followed() if self.follow else self._read()
        if batch is None:
            raise StopIteration
        return pa.Table.from_batches([batch])

    # Up to an end: one shard after the other

    def _read(self) -> pa.RecordBatch | None:
        until = self._following.deadline(self._timeout_s or _PATIENCE_S)
        for number, feed in enumerate(self._feeds):
            batch = self._read_feed(number, feed, until)
            if batch is not None:
                return batch
        return None

    def _read_feed(self, number: int, feed: _Feed, until: float | None) -> pa.RecordBatch | None:
        assert feed.end is not None
        while feed.frame < feed.end:
            try:
                if feed.plain is None:
                    feed.plain = feed.transport.read({**self._place(number), "through": feed.end})
                for batch in feed.plain:
                    if batch.num_rows:
                        self._move(feed, batch.column("position")[-1].as_py())
                        self._remember(feed, batch)
                        return self._named(feed, batch)
                self._move(feed, feed.end)
            except FastiError as error:
                feed.plain = None
                if error.code not in PASSING or not self._following.wait(number, error, until):
                    self._name_shard(error, feed)
                    raise
        return None

    def _place(self, number: int) -> Header:
        feed = self._feeds[number]
        place = {"shard": feed.name, "after": feed.frame}
        known = {"known": [[*message] for message in feed.met]} if feed.met else {}
        return {**self._fields, **place, **known}

    def _remember(self, feed: _Feed, batch: pa.RecordBatch) -> None:
        if "key" not in self._fields:
            return
        met = zip(batch.column("topic").to_pylist(), batch.column("id").to_pylist(), strict=True)
        feed.met.update(dict.fromkeys(message for message in met if None not in message))
        for oldest in list(feed.met)[: max(0, len(feed.met) - _MET_MAX)]:
            del feed.met[oldest]

    def _move(self, feed: _Feed, frame: int) -> None:
        feed.frame = frame
        self.position = self.position.moved(feed.name, frame)

    def _named(self, feed: _Feed, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the feed that it is of, where there are several."""
        if len(self._feeds) == 1:
            return batch
        return batch.append_column("shard", pa.repeat(pa.scalar(feed.name), batch.num_rows))

    # On and on

    def _followed(self) -> pa.RecordBatch | None:
        following = self._following
        until = following.deadline(self._timeout_s)
        while True:
            taken = following.take(until, self._place)
            if taken is None:
                return None
            number, item = taken
            feed = self._feeds[number]
            if isinstance(item, FastiError):
                following.end(number)
                if following.closed:
                    return None
                if item.code not in PASSING:
                    self._name_shard(item, feed)
                    raise item
                if not following.pause(number, item, until):
                    return None
                continue
            header, batch = item
            self._move(feed, int(header["position"]))
            if batch is not None and batch.num_rows:
                self._remember(feed, batch)
                return self._named(feed, batch)

    def _name_shard(self, error: FastiError, feed: _Feed) -> None:
        """Adds the feed that it is about, where there are several."""
        if len(self._feeds) > 1 and error.code in ("gone", "not_found"):
            error.details.setdefault("shard", feed.name)

    # The end

    def close(self) -> None:
        """Ends it. Again: nothing happens."""
        self._following.close()

    def __enter__(self) -> Changes:
        if self.closed:
            raise Closed("these changes were closed before")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Changes at {self.position}>"
