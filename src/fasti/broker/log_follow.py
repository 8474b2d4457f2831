"""Whoever follows a log: rows as they become durable, partition by partition in turn.

The session holds no credit: what the reader doesn't take, the wire holds up, and `next` is not called
until there is room. Between pages it sleeps on the feed, which is told of every durable append; it
says `idle` when nothing came for a while, so that both sides notice when the other is gone.

One thread calls `next`, another `take` and `finish`; `stop` and `close` are for any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.broker import requests
from fasti.broker.log_reads import Begin
from fasti.errors import FastiError, InvalidArgument
from fasti.protocol.problems import error_to_json
from fasti.protocol.schemas import LOG_ROWS

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]
Written = tuple[Header, pa.RecordBatch | None]

IDLE_S = 5.0
_FIELDS: Header = {
    "topic": str,
    "partition": None,
    "offset": None,
    "time_us": None,
    "start": "",
    "offsets": {},
}


class LogFollower:
    """One reader that follows one topic, from where its descriptor says."""

    schema = LOG_ROWS

    def __init__(self, service: Service, descriptor: Header) -> None:
        fields = requests.checked(descriptor, **_FIELDS)
        self._service = service
        self._topic: str = fields["topic"]
        self._lock = threading.Lock()
        self._ended = self._left = False
        self._error: FastiError | None = None
        self._cursors = Begin(service, fields).cursors()
        shard = service.shard
        number = shard.run(lambda: shard.engine.state.by_name[self._topic].number).result()
        self._followed = shard.feed.follow(number, shard.settings.limits.watchers_max)
        self._written = self._write()

    @property
    def topic(self) -> str:
        """Whose rows it reads."""
        return self._topic

    # The thread that reads from the wire

    def take(self, metadata: Header, batch: pa.RecordBatch | None) -> None:
        """A follower has nothing to say."""
        self.stop(InvalidArgument("a follower writes nothing but its end", field="op"))

    def finish(self) -> None:
        """The reader wants no more."""
        self._end()

    # Any thread

    def stop(self, error: FastiError) -> None:
        """The broker ends it, with a reason."""
        self._error = error
        self._end()

    def close(self) -> None:
        """The wire is gone, or done."""
        self._end()
        with self._lock:
            left, self._left = self._left, True
        if not left:
            self._service.shard.feed.unfollow(self._followed)

    def _end(self) -> None:
        self._ended = True
        self._followed.wake()

    # The thread that writes to the wire

    def next(self) -> Written | None:
        """What to write next, when there is something; None when it is over."""
        return next(self._written, None)

    def _write(self) -> Iterator[Written]:
        try:
            yield from self._pages()
        except FastiError as error:
            self._error = error
        if self._error is not None:
            problem = error_to_json(self._error)
            yield self._said(kind="error", request=None, error=problem), None

    def _pages(self) -> Iterator[Written]:
        # Of each partition, how much was seen to have grown when it was last read to its end.
        looked = dict.fromkeys((cursor.partition for cursor in self._cursors), -1)
        while True:
            # Before looking: what grows from now on is not missed.
            seen = self._followed.seen
            rest = False
            for cursor in self._cursors:
                if not self._followed.grown(cursor.partition, looked[cursor.partition]):
                    continue
                for batch in cursor.page():
                    if self._ended:
                        return
                    header = self._said(kind="rows", partition=cursor.partition, end=cursor.end)
                    yield header, batch
                if cursor.moving or cursor.offset < cursor.end:
                    rest = True
                else:
                    looked[cursor.partition] = seen
            if self._ended:
                return
            if not rest and not self._followed.wait(seen, IDLE_S, self._is_over):
                yield self._said(kind="idle"), None

    def _is_over(self) -> bool:
        return self._ended

    def _said(self, **header: Any) -> Header:
        header["now_us"] = self._service.shard.clock.now_us()
        return header
