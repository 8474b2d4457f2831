"""What the SDK needs of whatever carries its words to a broker and back.

Three things do: `FlightTransport` (a connection to a broker process), `EmbeddedTransport` (a
broker inside this process) and, over several of either, `ShardedTransport`. All take and give exactly what docs/protocol.md says: JSON objects as
dicts, rows as Arrow, errors as `FastiError`; so everything above this line is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from fasti.core.layout import Layout
from fasti.errors import FastiError
from fasti.runtime import Runtime

Header = dict[str, Any]
Ended = Callable[[FastiError | None], None]
# What goes with a header: rows, or the payload of one message, whose columns stand in it as `row`.
Content: TypeAlias = "pa.RecordBatch | bytes | None"
Arrived = Callable[[Header, Content], None]


class BrokerClock(Protocol):
    """The broker's clock as this side knows it. Any thread may ask.

    Virtual time, in tests, is another implementation: there `seconds_until` is infinite for what
    has not come, and the test that moves the time on calls the listeners.
    """

    @property
    def unsure_us(self) -> int:
        """How much further the broker's clock may be, when nothing was heard of it for long.

        Leases run on meanwhile: they are over when they may be.
        """

    def now_us(self) -> int:
        """The lower end of what the broker's clock shows now: a caller that waits for it is never early."""

    def seconds_until(self, at_us: int) -> float:
        """How long to sleep until `now_us()` has reached it; 0 or less if it has."""

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the time has leapt; returns how to stop that."""


class Stream(Protocol):
    """One direction of an open call; the other comes in by callbacks, from a thread of its own."""

    def send(self, metadata: Header, content: Content = None) -> None:
        """Writes; for one thread at a time. Blocks while the broker doesn't take it.

        Raises `unavailable` when the connection is lost.
        """

    def finish(self) -> None:
        """No more will be written; what was is still answered, then `ended` is called."""

    def cancel(self) -> None:
        """Ends the call at once, on both sides."""


# In a ticket of a plan: the broker that has the rows, if it is another one. Not sent to it.
LOCATION = "location"
# By `connect(timeout=...)` another.
TIMEOUT_S = 30.0
# Actions that may be asked twice without harm: they are asked again while no broker answers.
REPEATABLE = frozenset(
    (
        *("hello", "clock", "create_topic", "topic", "topics", "get", "count", "forecast"),
        *("log", "offsets", "groups", "dead", "feed", "kv_get", "kv_describe", "bind"),
        *("bindings", "sinks", "drop_stages", "health", "metrics", "drop_snapshot"),
        *("checkpoint", "scrub", "scrub_status", "cluster", "drain"),
    )
)


class Transport(Protocol):
    """A way to a broker. Any thread may call; each call raises `FastiError` and nothing else."""

    clock: BrokerClock
    # Where everything above has its threads, conditions, intervals and draws from.
    runtime: Runtime
    # How long those wait who don't say how long.
    timeout_s: float
    # Whether the broker can take this side for gone when nothing comes from it.
    on_network: bool
    # How many shards there are behind it.
    shard_count: int

    def shard(self, number: int) -> Transport:
        """The way to one shard: what goes there is about that shard alone."""

    def layout(self, topic: str) -> Layout:
        """Which shard has which partition of a topic. Raises `not_found`.

        Known after the first time; where there is one shard, always.
        """

    def forget_layout(self, topic: str) -> None:
        """Has `layout` ask again: the topic may have been deleted and made anew."""

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """An action of the protocol: its reply's header and parts. An `error` in it is raised."""

    def produce(
        self,
        descriptor: Header,
        schema: pa.Schema,
        receipt: Callable[[Header], None],
        ended: Ended,
    ) -> Stream:
        """Opens a stream of batches. `receipt` gets each receipt in order, errors included.

        `ended` is called once, last: None after `finish`, else what broke the stream.
        """

    def consume(
        self,
        descriptor: Header,
        arrived: Arrived,
        ended: Ended,
    ) -> Stream:
        """Opens a session. `arrived` gets what the broker writes, in order."""

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """The batches that a ticket stands for. At least one, maybe empty, so the schema is known."""

    def plan(self, descriptor: Header) -> list[Header]:
        """The tickets of a read: one consistent state, to be read in parallel."""

    def at(self, location: str | None) -> Transport:
        """The way to the broker that a ticket names. None means this one."""

    def close(self) -> None:
        """Ends everything that is open; an embedded broker is shut down with it."""


class OnlyShard:
    """For transports behind which there is one shard: all of it is there, and nothing has to be asked."""

    shard_count = 1
    _everything = Layout()

    def shard(self, number: int) -> Any:
        """This one."""
        return self

    def layout(self, topic: str) -> Layout:
        """Everything on one shard."""
        return self._everything

    def forget_layout(self, topic: str) -> None:
        """There is no other."""
