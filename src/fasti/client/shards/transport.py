"""A way to a broker with several shards: a transport like any other, which routes.

What names a shard by `shard_number` goes there as it is. Everything else goes where the table says
(`table.py`), and its answers come back as one. Streams are for one shard each: whoever opens them does
so by `shard(n)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.client.shards import reading
from fasti.client.shards.layouts import Layouts
from fasti.client.shards.routing import OWN, Answer, Request, carry_out
from fasti.client.shards.table import TABLE
from fasti.client.transport import (
    Arrived,
    BrokerClock,
    Ended,
    Header,
    Stream,
    Transport,
)
from fasti.core.layout import Layout
from fasti.errors import InvalidArgument, NotFound
from fasti.model import TopicSettings
from fasti.protocol.schemas import STALE

if TYPE_CHECKING:
    from fasti.client.flight_transport import FlightTransport

SHARD_NUMBER = "shard_number"
CATALOGUE = 0


class ShardedTransport:
    """Over one transport for each shard. Any thread may call.

    `close` closes them and what is behind them; `name` is for people.
    """

    def __init__(
        self,
        shards: Sequence[Transport],
        *,
        clock: BrokerClock,
        name: str,
        close: Callable[[], None],
        process_shards: Callable[[], list[int]] = lambda: [CATALOGUE],
        call_any: Callable[[str, Header, float], Answer] | None = None,
    ) -> None:
        """`call_any` asks any process, with which there are several."""
        self._shards = list(shards)
        self._close = close
        self._name = name
        # A shard of each process, for what is about processes and not about shards.
        self.process_shards = process_shards
        self._call_any = call_any
        first = self._shards[CATALOGUE]
        self.clock: BrokerClock = clock
        self.runtime = first.runtime
        self.timeout_s = first.timeout_s
        self.on_network = first.on_network
        self.shard_count = len(self._shards)
        self.layouts = Layouts(self._ask_layout, self.runtime.monotonic)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"{self._name} ({self.shard_count} shards)"

    def shard(self, number: int) -> Transport:
        """The way to one shard. Raises `invalid_argument` if there is none of that number."""
        if not 0 <= number < self.shard_count:
            raise InvalidArgument(
                f"there is no shard {number}: the broker has {self.shard_count}", field=SHARD_NUMBER
            )
        return self._shards[number]

    def layout(self, topic: str) -> Layout:
        """Which shard has which partition of a topic. Raises `not_found`."""
        return self.layouts.of(topic)

    def forget_layout(self, topic: str) -> None:
        """Has `layout` ask again: the topic may have been deleted and made anew."""
        self.layouts.forget(topic)

    def _ask_layout(self, topic: str, stale: bool) -> Layout:
        fields: Header = {"topic": topic, STALE: True} if stale else {"topic": topic}
        try:
            header, _ = self._shards[CATALOGUE].call("topic", fields)
        except NotFound:
            if not topic.startswith(OWN):
                raise
            # A shard makes these for itself, with a partition for every shard.
            return Layout(self.shard_count, self.shard_count)
        return Layout.of(TopicSettings.from_dict(header["settings"]), self.shard_count)

    # Calls

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[Header, list[pa.Table]]:
        """An action's reply, made of those of all shards that it is for."""
        header = header or {}
        if SHARD_NUMBER in header:
            return self.shard(header[SHARD_NUMBER]).call(
                action, _without_number(header), parts, timeout
            )
        route = TABLE.get(action)
        if route is None:
            # A newer broker may know it; any of its shards says so.
            return self._shards[CATALOGUE].call(action, header, parts, timeout)
        limit_s = self.timeout_s if timeout is None else timeout
        if route.any_process and self._call_any is not None:
            return self._call_any(action, header, limit_s)
        until = self.runtime.monotonic() + limit_s
        return carry_out(route, Request(self, action, header, parts, until, timeout))

    def plan(self, descriptor: Header) -> list[Header]:
        """The tickets of a read: each names its shard."""
        if SHARD_NUMBER in descriptor:
            return self.shard(descriptor[SHARD_NUMBER]).plan(_without_number(descriptor))
        return reading.plan(self, descriptor)

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        """The batches that a ticket stands for."""
        if SHARD_NUMBER in ticket:
            return self.shard(ticket[SHARD_NUMBER]).read(_without_number(ticket))
        return reading.read(self, ticket)

    def produce(
        self,
        descriptor: Header,
        schema: pa.Schema,
        receipt: Callable[[Header], None],
        ended: Ended,
    ) -> Stream:
        """Opens a stream to the shard that the descriptor names."""
        return self.shard(_named(descriptor)).produce(
            _without_number(descriptor), schema, receipt, ended
        )

    def consume(self, descriptor: Header, arrived: Arrived, ended: Ended) -> Stream:
        """Opens a session of the shard that the descriptor names."""
        return self.shard(_named(descriptor)).consume(_without_number(descriptor), arrived, ended)

    def at(self, location: str | None) -> ShardedTransport:
        """This one: tickets name their shards, and where those are is known here."""
        return self

    def close(self) -> None:
        """Ends everything that is open; an embedded broker is shut down with it."""
        self._close()


def _without_number(fields: Header) -> Header:
    """The way to a shard names it itself, where that is needed."""
    return {name: value for name, value in fields.items() if name != SHARD_NUMBER}


def _named(descriptor: Header) -> int:
    if SHARD_NUMBER not in descriptor:
        raise InvalidArgument("a stream is for one shard: name it", field=SHARD_NUMBER)
    return int(descriptor[SHARD_NUMBER])


def over_flight(entry: FlightTransport, hello: dict[str, Any]) -> ShardedTransport:
    """The way to the processes of a broker, of which one has answered `hello` by `entry`."""
    from fasti.client.shards import parallel
    from fasti.client.shards.clocks import LowestClock
    from fasti.client.shards.processes import Processes
    from fasti.client.shards.shard_transport import shard_transports

    processes = Processes(entry, hello)
    # Their clocks are wanted before the first message comes. One that doesn't answer is waited for later.
    others = [host for host in processes.map.hosts() if host != processes.asked]
    if others:
        parallel.each(entry.runtime, processes.greet, others)
    shards = shard_transports(processes)
    clock = LowestClock([shard.clock for shard in shards])
    return ShardedTransport(
        shards,
        clock=clock,
        name=str(entry),
        close=processes.close,
        process_shards=processes.one_shard_each,
        call_any=processes.call_any,
    )
