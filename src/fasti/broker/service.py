"""What a broker does for its clients, whatever wire their requests came over.

A door hands over JSON objects and Arrow rows as docs/protocol.md has them and gets the same back.
`call` carries out an action in the caller's thread; `intake` opens a producer's stream,
`subscription` a consumer's session, `listings` reads. Any thread may call anything here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from fasti.broker.caller import Caller
from fasti.broker.calls import control, requests
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.calls.attempts import Attempts
from fasti.broker.calls.backups import Backups
from fasti.broker.calls.call_stream import CallStream, Route
from fasti.broker.calls.changes import ChangeFollower, ChangeReads
from fasti.broker.calls.intake import Intake
from fasti.broker.calls.listing import Listings
from fasti.broker.calls.requests import Action, Answer
from fasti.broker.calls.snapshots import Snapshots
from fasti.broker.calls.subscription import Subscription
from fasti.broker.cron.scheduler import Scheduler
from fasti.broker.kv.reads import KvReads
from fasti.broker.kv.watch import KvWatcher
from fasti.broker.log.follow import LogFollower
from fasti.broker.log.reads import LogReads
from fasti.broker.metrics.counts import LatenessBook
from fasti.broker.placement import Placement
from fasti.broker.routing.routes import RouteBook
from fasti.broker.shares import CountedShare, LeaseShare, Shares
from fasti.broker.sinks.carrying import Carrier
from fasti.broker.sinks.staging import StageIntake
from fasti.broker.stale import of_leader, take_stale
from fasti.broker.topics import read_topics
from fasti.core.command import Command
from fasti.core.numbered.commands import Numbered
from fasti.core.queries import ReadTopics, TopicView
from fasti.core.replies import Reply
from fasti.errors import (
    Closed,
    FastiError,
    InternalError,
    InvalidArgument,
    Moved,
    NotFound,
    StorageFailed,
    Unavailable,
)
from fasti.model import TopicSettings
from fasti.protocol.numbered import ONCE
from fasti.protocol.schemas import STALE_ACTIONS, STALE_READS

if TYPE_CHECKING:
    from fasti.broker.host import Host
    from fasti.broker.metrics.counts import Metrics
    from fasti.broker.shard import Shard
    from fasti.core.engine import Engine

Header = dict[str, Any]

_INTAKES = ("produce", "stage")
# Answered while the broker stops, and whatever else is under way.
_ALWAYS = ("health", "metrics", "hello", "clock")
_STOPPING = Closed("the broker is stopping: connect again")


class Reads(Protocol):
    """Reads of one sort that stream."""

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]: ...
    def read(
        self, caller: Caller, ticket: Header
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]: ...


class Exchange(Protocol):
    """One end of an open exchange: a thread reads into `take`, another writes what `next` gives."""

    caller: Caller
    call: str

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def topic(self) -> str: ...
    def take(self, metadata: Header, batch: pa.RecordBatch | None) -> None: ...
    def next(self) -> tuple[Header, pa.RecordBatch | bytes | None] | None: ...
    def finish(self) -> None: ...
    def stop(self, error: FastiError) -> None: ...
    def close(self) -> None: ...


class Service:
    """One per broker. Doors and an embedded client share it."""

    def __init__(
        self,
        placement: Placement,
        metrics: Metrics,
        threaded: bool = True,
        host: Host | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`host` is that of a shard beside others, whose callers have `shares` in all of them."""
        self.placement = placement
        self.host = host
        # The same for all shards of a broker.
        catalogue = placement.catalogue
        self.settings, self.limits = catalogue.settings, catalogue.settings.limits
        self.clock, self.threads, self.faults = catalogue.clock, catalogue.threads, catalogue.faults
        self.runtime = catalogue.runtime
        self.metrics = metrics
        if shares is None:
            shares = metrics.shares = Shares(placement)
            shares.leases = LeaseShare(placement)
        self.shares, self.leases = shares, shares.leases
        self.lateness = LatenessBook()
        self.snapshots = Snapshots(self)
        self.listings = Listings(self)
        self.routes = RouteBook(placement)
        self.stopping = False
        # Set when the shard has left this process: what its sessions are told.
        self.moved: Moved | None = None
        # Whether control calls leave a line in the log: not those of a broker that warms up.
        self.logs_control = True
        self.kv = KvReads(self)
        self.backups = Backups(self)
        # Reads that stream, and exchanges, by the call that opens them.
        self.reads: dict[str, Reads] = {
            "list": self.listings,
            "log": LogReads(self),
            "kv": self.kv,
            "changes": ChangeReads(self),
            "backup": self.backups,
        }
        self.exchanges: dict[str, Callable[[Service, Caller, Header], Exchange]] = {
            "consume": Subscription,
            "follow": LogFollower,
            "watch": KvWatcher,
            "changes": ChangeFollower,
        }
        self.schedulers = [Scheduler(shard, threaded) for shard in placement.shards()]
        for scheduler in self.schedulers:
            scheduler.start()
        self.carrier = Carrier(self)
        self.carrier.start()
        # Changing a topic reads its settings first: two changes at once would lose one.
        self.topic_lock = threading.Lock()
        self.attempts = Attempts()
        self._sessions: set[Exchange] = set()
        self._sessions_lock = threading.Lock()

    # For doors

    def call(
        self,
        caller: Caller,
        action: str,
        header: Header,
        parts: Sequence[pa.Table] = (),
    ) -> Answer:
        """Carries out an action. Raises what the caller is to be told."""
        carry_out = ACTIONS.get(action)
        if carry_out is None:
            raise InvalidArgument(f"unknown action {action!r}", field="action")
        if self.stopping and action not in _ALWAYS:
            raise self.unavailable()
        try:
            if action in _ALWAYS:
                answer = carry_out(self, caller, requests.check_version(header), list(parts))
            else:
                answer = self._carry_out(action, carry_out, caller, header, parts)
        except Exception as raised:
            error = _reason(raised, self.placement.catalogue)
            if error is None:
                raise
            self.metrics.refused(action, error.code, caller.name)
            if self.logs_control:
                control.log_failed(action, caller, header, error)
            if error is raised:
                raise
            raise error from raised
        if self.logs_control:
            control.log_done(action, caller, header, answer[0])
        return answer

    def _carry_out(
        self, name: str, action: Action, caller: Caller, header: Header, parts: Sequence[pa.Table]
    ) -> Answer:
        """Counted towards the caller's share while it is under way."""
        self.shares.calls.take(caller)
        try:
            fields = requests.check_version(header)
            if take_stale(fields, name in STALE_ACTIONS):
                return of_leader(self).carry_out(name, caller, fields, parts)
            if (once := fields.pop(ONCE, None)) is not None:
                caller = caller.calling(requests.call_number(name, once))
            try:
                return action(self, caller, dict(fields), list(parts))
            except NotFound as error:
                if not self._catch_up(error):
                    raise
                # A topic that was not known here, and is: nothing was done.
                return action(self, caller, fields, list(parts))
        finally:
            self.shares.calls.give_back(caller)

    def _catch_up(self, error: NotFound) -> bool:
        """Whether the shard knows topics by now that it did not; the catalogue was asked, if there is one."""
        catalogue = None if self.host is None else self.host.catalogue
        return catalogue is not None and catalogue.catch_up(self, error)

    def intake(self, caller: Caller, descriptor: Header) -> Intake:
        """A producer's stream, or a sink's; to be ended by its `end`."""
        with self._counted(caller, descriptor):
            call, rest = self._opened_as(descriptor, _INTAKES)
            self.shares.intakes.take(caller)
            try:
                opened = Intake if call == "produce" else StageIntake
                intake = opened(self, caller, rest)
                if isinstance(intake, StageIntake):
                    self.shares.stages.claim(caller, intake.stage)
            except BaseException:
                self.shares.intakes.give_back(caller)
                raise
        intake.when_ended = lambda: self.shares.intakes.give_back(caller)
        return intake

    @contextmanager
    def call_stream(
        self, caller: Caller, descriptor: Header, route: Route | None = None
    ) -> Iterator[CallStream]:
        """A stream of small calls, for as long as the block takes. `route` finds the service of each."""
        with self._counted(caller, descriptor):
            _, rest = self._opened_as(descriptor, (CallStream.call,))
            opened = CallStream(route or (lambda action, header: self), caller, rest)
            self.shares.call_streams.take(caller)
        try:
            yield opened
        finally:
            self.shares.call_streams.give_back(caller)

    def exchange(self, caller: Caller, descriptor: Header) -> Exchange:
        """A consumer's session, or a follower's; to be given back to `leave`."""
        with self._counted(caller, descriptor):
            call, rest = self._opened_as(descriptor, self.exchanges)
            with ExitStack() as undo:
                for share in self._shares_of(call):
                    share.take(caller)
                    undo.callback(share.give_back, caller)
                session = self.exchanges[call](self, caller, rest)
                undo.pop_all()
        with self._sessions_lock:
            self._sessions.add(session)
        self.metrics.session_opened(_consumed(session))
        # A stop or a deletion at this moment told all sessions but this one.
        if self.stopping:
            session.stop(_STOPPING)
        elif self.moved is not None:
            session.stop(self.moved)
        elif session.topic and not self._has_topic(session.topic):
            session.stop(_deleted(session.topic))
        return session

    def _has_topic(self, topic: str) -> bool:
        return topic in self.placement.shard_of(topic).engine.state.by_name

    def leave(self, session: Exchange) -> None:
        """The session's connection is gone."""
        session.close()
        with self._sessions_lock:
            if session not in self._sessions:
                return
            self._sessions.remove(session)
        for share in self._shares_of(session.call):
            share.give_back(session.caller)
        self.metrics.session_closed(_consumed(session))

    def _shares_of(self, call: str) -> tuple[CountedShare, ...]:
        """The limits that an exchange counts towards."""
        shares = self.shares
        return (shares.sessions,) if call == "consume" else (shares.sessions, shares.watchers)

    def subscriptions(self) -> dict[int, Subscription]:
        """The consumers' sessions that are open, by number."""
        with self._sessions_lock:
            sessions = list(self._sessions)
        consumers = [session for session in sessions if isinstance(session, Subscription)]
        return {consumer.number: consumer for consumer in consumers}

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """A schema and the batches that a ticket stands for."""
        with self._counted(caller, ticket):
            call, rest = self._opened_as(ticket, self.reads)
            stale = take_stale(rest, call in STALE_READS)
            read = of_leader(self).open_read if stale else self.reads[call].read
            with self.shares.reads.one(caller):
                schema, batches = read(caller, rest)
        return schema, self._reading(batches, caller)

    def _reading(
        self, batches: Iterator[pa.RecordBatch], caller: Caller
    ) -> Iterator[pa.RecordBatch]:
        """Counted from the first batch on: one that is never begun needn't be given back."""
        with self.shares.reads.one(caller):
            yield from batches

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """The schema and the tickets of a read."""
        with self._counted(caller, descriptor), self.shares.calls.one(caller):
            call, rest = self._opened_as(descriptor, self.reads)
            schema, tickets = self.reads[call].plan(caller, rest)
        if self.host is not None:
            number = self.placement.catalogue.place.number
            tickets = [{**ticket, "shard_number": number} for ticket in tickets]
        return schema, tickets

    @contextmanager
    def _counted(self, caller: Caller, descriptor: Header) -> Iterator[None]:
        """Counts a stream that is refused when it is opened."""
        try:
            yield
        except FastiError as error:
            call = descriptor.get("call")
            known = isinstance(call, str) and (
                call in (*self.reads, *self.exchanges, *_INTAKES, CallStream.call)
            )
            self.metrics.refused(str(call) if known else "stream", error.code, caller.name)
            raise

    def _opened_as(self, descriptor: Header, calls: Collection[str]) -> tuple[str, Header]:
        if self.stopping:
            raise self.unavailable()
        rest = requests.check_version(descriptor)
        call = rest.pop("call", None)
        if call not in calls:
            choices = " or ".join(map(repr, calls))
            raise InvalidArgument(f"the call must be {choices} here, not {call!r}", field="call")
        return str(call), rest

    def close(self) -> None:
        """Ends what works by itself here; before the shard is closed."""
        for scheduler in self.schedulers:
            scheduler.stop()
        self.carrier.stop()

    def begin_stopping(self) -> None:
        """Nothing new is taken; sessions are told, so that consumers look for another broker."""
        self.stopping = True
        self.end_sessions(_STOPPING)

    def end_sessions(self, error: FastiError) -> None:
        """All that are open are told why."""
        with self._sessions_lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.stop(error)

    def topic_gone(self, topic: str) -> None:
        """The topic was deleted: the sessions that wait for its messages are told."""
        self.routes.topic_gone(topic)
        self.kv.forget(topic)
        with self._sessions_lock:
            sessions = [session for session in self._sessions if session.topic == topic]
        for session in sessions:
            session.stop(_deleted(topic))

    def unavailable(self) -> Unavailable:
        """What is answered while the broker stops."""
        return Unavailable("the broker is stopping", retry_after_us=1_000_000)

    # For the parts of the service

    def failed(
        self, call: str, error: Exception, shard: Shard, engine: Engine | None = None
    ) -> FastiError:
        """What is told of an exception that ends a stream: trouble that passes, or our own fault.

        `engine` is the one that the stream began with. What the same messages would do to the next
        stream too is not to be repeated.
        """
        if shard.elsewhere is not None:
            return shard.end_error()
        recovers = shard.failure is not None or engine not in (None, shard.engine)
        if isinstance(error, (FastiError, OSError)) or recovers or self.stopping:
            return Closed(f"the session failed: {error}")
        shard.faults.note_call(call, error)
        return InternalError(f"the broker failed on this {call}, as far as it came: {error!r}")

    def submit(
        self, shard: Shard, commands: Sequence[Any], lead: bool = False
    ) -> Future[list[Any]]:
        """Hands commands to a shard; what they produce is routed first. `lead`: see `Shard.submit`."""
        if self.stopping:
            raise self.unavailable()
        if self.routes.may_route:
            for command in commands:
                self.routes.route(command)
        return shard.submit(commands, lead=lead)

    def command(self, command: Command, caller: Caller | None = None, part: int = 0) -> Any:
        """One command's reply; its error is raised.

        With a `caller` whose call has a number it happens once, however often it is called; `part` tells
        the commands of one call apart.
        """
        if caller is not None and caller.call is not None:
            command = Numbered(command, caller.call, part)
        reply = self.routes.call(command)
        if reply.error is not None:
            raise reply.error
        return reply

    def mutation(self, op: str, topic: str, reply: Reply) -> Reply:
        """Counts what became of the rows."""
        if reply.error is not None:
            raise reply.error
        self.metrics.mutated(op, topic, reply.status)
        return reply

    def note_started(self, topic: str, command: Any) -> None:
        """User code got these messages at `started_us`: how late was that?"""
        started = getattr(command, "started_us", 0)
        if isinstance(started, np.ndarray):
            late_us = self.lateness.started(command.ids, command.tokens, started)
            if len(late_us):
                self.metrics.lateness(topic, late_us)

    def require_topic(self, name: str) -> TopicSettings:
        """A topic's settings. Raises `not_found`."""
        return self.topic(name).settings

    def topic(self, name: str) -> TopicView:
        """A topic, durable by now. Raises `not_found`."""
        shard = self.placement.shard_of(name)
        topics = self.topics_of(shard, name)
        if not topics:
            error = NotFound(f"there is no topic {name!r}", details={"topic": name})
            topics = self.topics_of(shard, name) if self._catch_up(error) else []
            if not topics:
                raise error
        return topics[0]

    def topics(self) -> dict[str, TopicView]:
        """All topics, of which each is durable by now."""
        shards = self.placement.shards()
        return {topic.name: topic for shard in shards for topic in self.topics_of(shard)}

    def topics_of(self, shard: Shard, name: str = "") -> list[TopicView]:
        """Those of one shard, or the one of that name."""
        topics: list[TopicView]
        topics = shard.ask(ReadTopics(name=name)).result() if name else read_topics(shard)
        # Answered behind everything that was decided before it.
        with suppress(FastiError):
            shard.submit([]).result()
        return topics


def _reason(error: Exception, shard: Shard) -> FastiError | None:
    """What a caller is told of it; None of a fault, which is the door's to tell.

    A shard that left took its storage along, and with it what a call was about to read.
    """
    of_storage = isinstance(error, (Closed, StorageFailed)) or not isinstance(error, FastiError)
    if shard.elsewhere is not None and of_storage:
        return shard.end_error()
    return error if isinstance(error, FastiError) else None


def _consumed(session: Exchange) -> str:
    """The topic whose messages the session consumes; empty if it only follows."""
    return session.topic if isinstance(session, Subscription) else ""


def _deleted(topic: str) -> NotFound:
    return NotFound(f"the topic {topic!r} was deleted", details={"topic": topic})
