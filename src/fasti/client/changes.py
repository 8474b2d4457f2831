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
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from fasti.client.arguments import ArrowTable
from fasti.client.durations import Duration, moment_us, seconds
from fasti.client.following import Following
from fasti.client.pauses import PASSING
from fasti.client.transport import Header, Transport
from fasti.errors import Closed, FastiError, InvalidArgument
from fasti.protocol.feed_name import FeedName

# A read that doesn't follow is given up when nothing came for so long.
_PATIENCE_S = 30.0
# So many messages of a key are remembered for the broker.
_MET_MAX = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a shard's change feed. As text: `str(position)`, and back by `Position.parse`.

    `shard` has the shard's name and which life of its journal it is, as in `0.9f3c01d2ab45e678`: a
    journal that was restored or repaired begins a new life, in which this position means nothing.
    """

    shard: str
    frame: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Back from text. Raises `invalid_argument`."""
        shard, _, frame = text.partition(":")
        if not frame.isdecimal():
            raise InvalidArgument(f"{text!r} is not a position in a change feed", field="position")
        return cls(str(FeedName.parse(shard)), int(frame))

    def __str__(self) -> str:
        return f"{self.shard}:{self.frame}"


@dataclass(frozen=True, slots=True)
class FeedBounds:
    """What the broker still has: everything behind `first`, up to `last`."""

    first: Position
    last: Position


Start = Any
"""`"earliest"`, `"latest"`, a `Position` or its text, or an aware datetime."""


def feed_bounds(transport: Transport) -> FeedBounds:
    """Where the feed begins and ends now."""
    header, _ = transport.call("feed", {})
    first, last = (Position(header["shard"], int(header[name])) for name in ("first", "last"))
    return FeedBounds(first, last)


def resolve(transport: Transport, start: Start) -> Position:
    """The position that is meant, and still there. Raises `gone`, `not_found` if it lies ahead."""
    if isinstance(start, str) and start not in ("earliest", "latest"):
        start = Position.parse(start)
    if isinstance(start, Position):
        transport.call("feed", {"shard": start.shard, "after": start.frame})
        return start
    if isinstance(start, datetime):
        header, _ = transport.call("feed", {"time_us": moment_us(start, "start")})
        return Position(header["shard"], int(header["position"]))
    if isinstance(start, str):
        bounds = feed_bounds(transport)
        return bounds.first if start == "earliest" else bounds.last
    raise InvalidArgument(
        f"start must be earliest, latest, a position or an aware datetime, not {start!r}",
        field="start",
    )


class Changes:
    """Made by `client.changes()`: an iterator of tables and a context manager.

    `position` is behind all that was given out: keep it to go on there another day.
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
        self._transport = transport
        self._timeout_s = seconds(timeout, "timeout")
        self._fields: Header = {"call": "changes", "payload": payload}
        if topic is not None:
            self._fields["topic"] = topic
        if key is not None:
            if not key:
                raise InvalidArgument("a key must not be empty", field="key")
            self._fields["key"] = key
        # Messages met under the key, the latest last: when the connection was lost, the broker is
        # given them.
        self._met: dict[tuple[str, int], None] = {}
        if id is not None:
            self._fields["ids"] = [id] if isinstance(id, int) else [int(number) for number in id]
        self.position = resolve(transport, start)
        # Without following it ends where the feed does now.
        self._end: Position | None = None if follow else feed_bounds(transport).last
        self._plain: Iterator[pa.RecordBatch] | None = None
        self._following = Following(transport)
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

        Raises `gone` when the broker has dropped what comes next; its details say `first`.
        """
        if self.closed:
            raise StopIteration
        batch = self._followed() if self.follow else self._read()
        if batch is None:
            raise StopIteration
        return pa.Table.from_batches([batch])

    # Up to an end

    def _read(self) -> pa.RecordBatch | None:
        assert self._end is not None
        until = self._following.deadline(self._timeout_s or _PATIENCE_S)
        while self.position.frame < self._end.frame:
            try:
                if self._plain is None:
                    self._plain = self._transport.read(
                        {**self._place(), "through": self._end.frame}
                    )
                for batch in self._plain:
                    if batch.num_rows:
                        self._moved(batch.column("position")[-1].as_py())
                        self._remember(batch)
                        return batch
                self._moved(self._end.frame)
            except FastiError as error:
                self._plain = None
                if error.code not in PASSING or not self._following.pause(error, until):
                    raise
        return None

    def _place(self) -> Header:
        place = {"shard": self.position.shard, "after": self.position.frame}
        known = {"known": [[*message] for message in self._met]} if self._met else {}
        return {**self._fields, **place, **known}

    def _remember(self, batch: pa.RecordBatch) -> None:
        if "key" not in self._fields:
            return
        met = zip(batch.column("topic").to_pylist(), batch.column("id").to_pylist(), strict=True)
        self._met.update(dict.fromkeys(message for message in met if None not in message))
        for oldest in list(self._met)[: max(0, len(self._met) - _MET_MAX)]:
            del self._met[oldest]

    def _moved(self, frame: int) -> None:
        self.position = Position(self.position.shard, frame)

    # On and on

    def _followed(self) -> pa.RecordBatch | None:
        until = self._following.deadline(self._timeout_s)
        following = self._following
        while True:
            try:
                if not following.open:
                    following.begin(self._place())
                item = following.take(until)
                if item is None:
                    return None
                if isinstance(item, FastiError):
                    raise item
                header, batch = item
                self._moved(int(header["position"]))
                if batch is not None and batch.num_rows:
                    self._remember(batch)
                    return batch
            except FastiError as error:
                following.end()
                if following.closed:
                    return None
                if error.code not in PASSING:
                    raise
                if not following.pause(error, until):
                    return None

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
