"""Watching a key-value topic: its changes as they happen, over lost connections, without a gap.

A stream's reading thread puts what comes into a queue, as long as there is room; when there is
none it waits, and the wire holds the broker up. One thread iterates. What came before a connection
was lost is still given; the next stream goes on behind it.

Where a broker has several shards there is a stream of each: the changes of a key come in order, as a
key has one shard, and a position is a number for each shard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from fasti.client.arguments import ArrowBatch
from fasti.client.durations import Duration, as_datetime, seconds
from fasti.client.following import Followings
from fasti.client.transport import Header, Transport
from fasti.errors import Closed, FastiError, IllegalTransition, InvalidArgument

WatchPosition: TypeAlias = int | dict[int, int]
"""Where a watch is: a number, or where a broker has several shards one for each, by its number."""


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
        position: WatchPosition | None,
        prefix: str | None,
        timeout: Duration | None,
    ) -> None:
        self.topic = topic
        self._prefix = prefix
        self._timeout_s = None if timeout is None else seconds(timeout)
        numbers = watched_shards(transport, topic)
        shards = [transport.shard(number) for number in numbers]
        self._following = Followings(shards)
        # What was taken from there: whole batches, and rows of the one that is being given; of each the
        # place of its shard among those that are watched.
        self._batches: deque[tuple[int, pa.RecordBatch]] = deque()
        self._rows: deque[Change] = deque()
        self._rows_of = 0
        # From now on means from this call on, whatever happens to the first connection.
        places = (
            _now(transport, topic, numbers)
            if position is None
            else _given(transport, numbers, position)
        )
        self._is_one = transport.shard_count == 1
        self._numbers, self._places = numbers, places
        # Behind what came by the wire, which may be ahead of what was given.
        self._came = list(places)
        self._following.begin(self._place)

    @property
    def position(self) -> WatchPosition:
        """Behind all that was given: keep it to go on there another day."""
        if self._is_one:
            return self._places[0]
        return dict(zip(self._numbers, self._places, strict=True))

    def _place(self, number: int) -> Header:
        descriptor: Header = {"call": "watch", "topic": self.topic, "position": self._came[number]}
        if self._prefix is not None:
            descriptor["prefix"] = self._prefix
        return descriptor

    def _again(self, number: int, error: FastiError, until: float | None) -> bool:
        """Has the next stream opened where the last one ended, after a pause that grows.

        False when the time is up or it was closed; what is no matter of connections is raised.
        """
        if error.retryable or isinstance(error, Closed):
            return self._following.pause(number, error, until)
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
            self._rows_of, batch = self._batches.popleft()
            self._rows.extend(Change.of_row(row) for row in batch.to_pylist())
        change = self._rows.popleft()
        # What happened at once has one position: between its rows, going on means all of it again.
        if not self._rows or self._rows[0].position != change.position:
            self._advance(self._rows_of, change.position)
        return change

    def take_batch(self) -> ArrowBatch | None:
        """The next batch, if one is here already."""
        if self._rows:
            raise IllegalTransition("a batch is being given change by change: take those first")
        if not self._batches:
            return None
        number, batch = self._batches.popleft()
        self._advance(number, batch.column("position")[-1].as_py())
        return batch

    def _advance(self, number: int, position: int) -> None:
        self._places[number] = max(self._places[number], position)

    def more(self) -> bool:
        """Waits until there is something to take; False after `timeout`, or when it is closed."""
        until = self._following.deadline(self._timeout_s)
        while not self._rows and not self._batches:
            if not self._fill(until):
                return False
        return True

    def _fill(self, until: float | None) -> bool:
        taken = self._following.take(until, self._place)
        if taken is None:
            return False
        number, item = taken
        if isinstance(item, FastiError):
            return self._again(number, item, until)
        header, batch = item
        self._came[number] = int(header["position"])
        if batch is not None and batch.num_rows:
            self._batches.append((number, batch))
        else:
            self._advance(number, self._came[number])
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


def watched_shards(transport: Transport, topic: str) -> list[int]:
    """The shards that have entries of a topic. Raises `not_found` where there are several."""
    if transport.shard_count == 1:
        return [0]
    # The topic may have been made anew since it was asked for.
    transport.forget_layout(topic)
    return transport.layout(topic).all_shards


def watch_position(transport: Transport, topic: str) -> WatchPosition:
    """Where the changes of a topic are by now."""
    numbers = watched_shards(transport, topic)
    places = _now(transport, topic, numbers)
    return places[0] if transport.shard_count == 1 else dict(zip(numbers, places, strict=True))


def _now(transport: Transport, topic: str, numbers: list[int]) -> list[int]:
    places = []
    for number in numbers:
        header, _ = transport.shard(number).call("kv_describe", {"topic": topic})
        places.append(int(header["position"]))
    return places


def _given(transport: Transport, numbers: list[int], position: Any) -> list[int]:
    """A position as a number for each shard. Raises `invalid_argument`."""
    if transport.shard_count == 1 and not isinstance(position, Mapping):
        return [position]
    if isinstance(position, Mapping):
        # JSON has names where there were numbers.
        places = {int(number): int(at) for number, at in position.items()}
        if sorted(places) == numbers:
            return [places[number] for number in numbers]
    names = ", ".join(map(str, numbers))
    raise InvalidArgument(
        f"a position of this topic has a number for each of its shards, {names}, and not "
        f"{position!r}",
        field="position",
    )
