"""Reads that may be out of date: from the shard that a broker leads, or from one that it stands by for.

The actions and the listing are those of any read; what they ask of is not. A `StaleShard` answers commands that
change nothing, and nothing else: from a leader without a proof that it still leads, so also while too few servers
answer, and from a standby as far as that has followed. Either way what is told is durable, and never taken back.
Each answer says as of when it is (`as_of_us`).

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from fasti.broker.calls import requests
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.calls.listing import Listings
from fasti.broker.calls.requests import Answer
from fasti.broker.calls.snapshots import KEEP_US, Held, gone
from fasti.broker.placement import OneShard
from fasti.broker.request import Request
from fasti.broker.sequencer import Moving
from fasti.core.commands import DropSnapshot, TakeSnapshot
from fasti.core.queries import ReadTopics, TopicView
from fasti.errors import FastiError, InvalidArgument, NoQuorum, NotFound, Unavailable
from fasti.model import TopicSettings
from fasti.protocol.schemas import AS_OF, SHARD_NUMBER, STALE, STALE_ACTIONS, STALE_READS

if TYPE_CHECKING:
    from fasti.broker.caller import Caller
    from fasti.broker.clock import EngineClock
    from fasti.broker.host import Host
    from fasti.broker.lobby import Lobby
    from fasti.broker.service import Service
    from fasti.broker.shard import Shard
    from fasti.config import ShardSettings
    from fasti.core.engine import Engine
    from fasti.core.layout import ShardPlace
    from fasti.core.rows.snapshot import Snapshot
    from fasti.protocol.feed_name import FeedName
    from fasti.storage.payloads import Payloads

Header = dict[str, Any]

# So long a read waits for what was decided before it to become durable; so often it looks whether that takes longer.
_DURABLE_S, _LOOK_S, _PAUSE_S = 5.0, 0.25, 0.01


class StaleStore(Protocol):
    """Where the contents of messages are."""

    @property
    def payloads(self) -> Payloads: ...
    @property
    def seed(self) -> tuple[int, int]: ...


class StaleShard(Protocol):
    """What is read from. Of a `Shard` it has what the reads use."""

    # As of when the last answer is; one is for one request.
    as_of_us: int

    @property
    def place(self) -> ShardPlace: ...
    @property
    def settings(self) -> ShardSettings: ...
    @property
    def clock(self) -> EngineClock: ...
    @property
    def feed_name(self) -> FeedName: ...
    @property
    def store(self) -> StaleStore: ...

    def call(self, command: Any, timeout: float | None = None, lead: bool = False) -> Any:
        """The reply to a command that changes nothing."""

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Its reader has done with it. Waits for nothing."""


class LedShard:
    """A shard that this process leads, for one request."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.as_of_us = 0
        self.place, self.settings, self.clock = shard.place, shard.settings, shard.clock
        self.feed_name = shard.feed_name

    @property
    def store(self) -> StaleStore:
        return self._shard.store

    def call(self, command: Any, timeout: float | None = None, lead: bool = False) -> Any:
        """Raises `no_quorum` if what it knows is not all durable, and won't be soon."""
        shard, now_us = self._shard, self.clock.now_us()
        if not shard.store.journal.is_replicated:
            reply = shard.call(command, lead=True)
        else:
            reply, unanswered_s = self._wait_for(command)
            now_us -= round(unanswered_s * 1e6)
        # Several answers are as of the first.
        self.as_of_us = self.as_of_us or now_us
        return reply

    def _wait_for(self, command: Any) -> tuple[Any, float]:
        """The reply, durable but not proven, and for how long nothing else has become durable.

        It is decided in a step, or by an engine that stands still for want of a quorum.
        """
        shard, request = self._shard, None
        pause, until = threading.Event(), shard.runtime.monotonic() + _DURABLE_S
        while True:
            try:
                return shard.sequencer.read_still(command), shard.committer.unanswered_s
            except Moving:
                pass
            try:
                request = request or self._enter(command)
                return request.result(_LOOK_S)[0], 0.0
            except NoQuorum:
                # The turn in which that became known is about to end.
                pause.wait(_PAUSE_S)
            except TimeoutError:
                pass
            if shard.runtime.monotonic() >= until:
                raise NoQuorum(f"nothing becomes durable in shard {shard.name} for now")

    def _enter(self, command: Any) -> Future[list[Any]]:
        if self._shard.faults.suspects:
            self._shard.faults.check(command)
        request = Request.of([command], self._shard.runtime.future(), None, stale=True)
        return self._shard.sequencer.enter(request)

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Also while the engine stands still: else they would pile up for as long as that lasts."""
        engine: Engine = self._shard.engine
        if engine.snapshots.get(snapshot.number) is snapshot:
            command = DropSnapshot(snapshot.number)
            try:
                self._shard.sequencer.read_still(command)
            except (Moving, FastiError):
                self._ask(command, engine)

    def _ask(self, command: Any, engine: Engine) -> Future[Any] | None:
        try:
            return self._shard.ask(command, engine)
        except FastiError:
            # The shard is closed, and the snapshot gone with its engine.
            return None


class StaleService:
    """The service of one stale read: it has what the actions and the listing use of a `Service`."""

    stopping = False

    def __init__(self, shard: StaleShard, process: Service | Lobby) -> None:
        """`process` is what answers for the process: limits, metrics and faults are counted there."""
        self._shard = shard
        self.placement = OneShard(cast("Shard", shard))
        self.settings, self.limits = shard.settings, shard.settings.limits
        self.clock, self.metrics, self.shares = shard.clock, process.metrics, process.shares
        self.faults = process.faults
        self.snapshots = _Snapshots(shard)

    # For doors

    def call(
        self, caller: Caller, action: str, header: Header, parts: Sequence[pa.Table] = ()
    ) -> Answer:
        """Carries out an action that reads. Raises what the caller is to be told."""
        try:
            fields = requests.check_version(header)
            take_stale(fields, action in STALE_ACTIONS)
            with self.shares.calls.one(caller):
                return self.carry_out(action, caller, fields, parts)
        except FastiError as error:
            self.metrics.refused(action, error.code, caller.name)
            raise

    def carry_out(
        self, action: str, caller: Caller, fields: Header, parts: Sequence[pa.Table]
    ) -> Answer:
        """The same, of which everything is counted that is to be."""
        assert action in STALE_ACTIONS, "it only reads"
        reading = cast("Service", self)
        told, rows = ACTIONS[action](reading, caller, dict(fields), list(parts))
        return {**told, AS_OF: self._shard.as_of_us}, rows

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """A schema, which says as of when it is, and the batches that a ticket stands for."""
        try:
            fields = requests.check_version(ticket)
            call = fields.pop("call", None)
            take_stale(fields, call in STALE_READS)
            with self.shares.reads.one(caller):
                schema, batches = self.open_read(caller, fields)
        except FastiError as error:
            self.metrics.refused("list", error.code, caller.name)
            raise
        return schema, self._reading(batches, caller)

    def _reading(
        self, batches: Iterator[pa.RecordBatch], caller: Caller
    ) -> Iterator[pa.RecordBatch]:
        with self.shares.reads.one(caller):
            yield from batches

    def open_read(
        self, caller: Caller, fields: Header
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The same, of which everything is counted that is to be."""
        schema, batches = Listings(cast("Service", self)).read(caller, fields)
        as_of = {AS_OF: str(self._shard.as_of_us)}
        return schema.with_metadata(as_of), (
            batch.replace_schema_metadata(as_of) for batch in batches
        )

    # For the parts

    def command(self, command: Any) -> Any:
        """One command's reply; its error is raised."""
        reply = self._shard.call(command)
        if reply.error is not None:
            raise reply.error
        return reply

    def require_topic(self, name: str) -> TopicSettings:
        """A topic's settings. Raises `not_found`."""
        return self.topic(name).settings

    def topic(self, name: str) -> TopicView:
        """A topic. Raises `not_found`."""
        topics: list[TopicView] = self.command(ReadTopics(name=name)).value
        if not topics:
            raise NotFound(f"there is no topic {name!r}", details={"topic": name})
        return topics[0]

    def unavailable(self) -> Unavailable:
        """What is answered while the broker stops."""
        return Unavailable("the broker is stopping", retry_after_us=1_000_000)


class _Snapshots:
    """Of one listing."""

    def __init__(self, shard: StaleShard) -> None:
        self._shard = shard

    @contextmanager
    def for_one_listing(self, caller: Caller, topic: str) -> Iterator[Held]:
        """A snapshot of one topic that goes with its only reader. Raises what the engine refuses."""
        reply = self._shard.call(TakeSnapshot(self._shard.clock.now_us() + KEEP_US, topic))
        if reply.error is not None:
            raise reply.error
        try:
            yield Held(reply.value, cast("Shard", self._shard), KEEP_US, caller.name)
        finally:
            self._shard.drop_snapshot(reply.value)

    def used(self, held: Held) -> Held:
        """It is kept for long enough."""
        return held

    def find(self, number: int, position: int | None = None) -> Held:
        """None is kept for a second reader."""
        raise gone(number)


def of_leader(service: Service) -> StaleService:
    """For one read of the shard that a service has."""
    return StaleService(LedShard(service.placement.catalogue), service)


def of_standby(host: Host, header: Header, call: Any, known: Container[Any]) -> StaleService | None:
    """For one read of a shard that a process follows and doesn't lead, if `call` may be stale and wants to be."""
    number = header.get(SHARD_NUMBER)
    wanted = type(call) is str and call in known and header.get(STALE) is True
    if not wanted or type(number) is not int or number in host.services:
        return None
    shard = host.find_standby(number)
    if shard is None:
        return None
    del header[SHARD_NUMBER]
    return StaleService(shard, host.first)


def take_stale(fields: Header, known: bool) -> bool:
    """Whether a request says that its answer may be stale; if that is `known` here the word is taken out of it.

    Raises `invalid_argument`.
    """
    if STALE not in fields or not known:
        return False
    if type(fields[STALE]) is not bool:
        raise InvalidArgument(f"{STALE!r} must be a JSON boolean", field=STALE)
    return bool(fields.pop(STALE))
