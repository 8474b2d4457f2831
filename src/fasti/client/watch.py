"""Watching a key-value topic: its changes as they happen, over lost connections, without a gap.

A stream's reading thread puts what comes into a queue, as long as there is room; when there is
none it waits, and the wire holds the broker up. One thread iterates. What came before a connection
was lost is still given; the next stream goes on behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from fasti.client.arguments import ArrowBatch
from fasti.client.durations import Duration, as_datetime, seconds
from fasti.client.following import Following
from fasti.client.transport import Header, Transport
from fasti.errors import Closed, FastiError, IllegalTransition


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one entry: `op` is `put`, `delete` or `expire`."""

    position: int
    op: str
    key: str
    clustering: str | None
    version: int
    value: bytes | None
    headers: dict[str, str]
    content_type: str | None
    at_us: int
    expires_us: int | None

    @property
    def at(self) -> datetime:
        """When it happened."""
        return as_datetime(self.at_us)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Change:
        """From a row of the protocol."""
        return cls(
            row["position"],
            row["op"],
            row["key"],
            row["clustering"],
            row["version"] or 0,
            row["value"],
            dict(row["headers"] or ()),
            row["content_type"],
            row["at_us"],
            row["expires_us"],
        )


class Watch:
    """Made by `client.kv(topic).watch()`; an iterator and a context manager, for one thread.

    `position` is behind all that was given: keep it to go on there another day.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        position: int | None,
        prefix: str | None,
        timeout: Duration | None,
    ) -> None:
        self.topic = topic
        self._transport, self._prefix = transport, prefix
        self._timeout_s = None if timeout is None else seconds(timeout)
        self._following = Following(transport)
        # What was taken from there: whole batches, and rows of the one that is being given.
        self._batches: deque[pa.RecordBatch] = deque()
        self._rows: deque[Change] = deque()
        # From now on means from this call on, whatever happens to the first connection.
        if position is None:
            header, _ = transport.call("kv_describe", {"topic": topic})
            position = int(header["position"])
        self.position = position
        # Behind what came by the wire, which may be ahead of what was given.
        self._came = position
        self._open()

    def _open(self) -> None:
        descriptor: Header = {"call": "watch", "topic": self.topic, "position": self._came}
        if self._prefix is not None:
            descriptor["prefix"] = self._prefix
        self._following.begin(descriptor)

    def _again(self, error: FastiError, until: float | None) -> bool:
        """Opens the next stream where the last one ended, after a pause that grows.

        False when the time is up or it was closed; what is no matter of connections is raised.
        """
        while error.retryable or isinstance(error, Closed):
            if not self._following.pause(error, until):
                return False
            try:
                self._open()
                return True
            except FastiError as refusal:
                error = refusal
        self.close()
        raise error

    # The thread that iterates

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        """The next change; waits for it. Ends after `timeout` without one, or when it is closed."""
        while (change := self.take()) is None:
            if not self.more():
                raise StopIteration
        return change

    def batches(self) -> Iterator[ArrowBatch]:
        """The same by whole Arrow batches, as they come: for many changes a second.

        The columns are those of `Change`. What happened at once is never split over two batches.
        """
        while True:
            while (batch := self.take_batch()) is not None:
                yield batch
            if not self.more():
                return

    def take(self) -> Change | None:
        """The next change, if it is here already."""
        if not self._rows:
            if not self._batches:
                return None
            rows = self._batches.popleft().to_pylist()
            self._rows.extend(Change.of_row(row) for row in rows)
        change = self._rows.popleft()
        # What happened at once has one position: between its rows, going on means all of it again.
        if not self._rows or self._rows[0].position != change.position:
            self.position = max(self.position, change.position)
        return change

    def take_batch(self) -> ArrowBatch | None:
        """The next batch, if one is here already."""
        if self._rows:
            raise IllegalTransition("a batch is being given change by change: take those first")
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self.position = max(self.position, batch.column("position")[-1].as_py())
        return batch

    def more(self) -> bool:
        """Waits until there is something to take; False after `timeout`, or when it is closed."""
        until = self._following.deadline(self._timeout_s)
        while not self._rows and not self._batches:
            if not self._fill(until):
                return False
        return True

    def _fill(self, until: float | None) -> bool:
        if not self._following.open and not self._following.closed:
            # The time was up while it was to be opened again.
            return self._again(Closed("the stream was lost"), until)
        item = self._following.take(until)
        if item is None:
            return False
        if isinstance(item, FastiError):
            return self._again(item, until)
        header, batch = item
        self._came = int(header["position"])
        if batch is not None and batch.num_rows:
            self._batches.append(batch)
        else:
            self.position = max(self.position, self._came)
        return True

    # Any thread

    def close(self) -> None:
        """Ends the iteration. Again: nothing happens."""
        self._following.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Watch of {self.topic!r} at {self.position}>"
