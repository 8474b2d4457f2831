"""The client: one connection to a broker, from which producers, consumers and the rest are made."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from fasti.client import forking
from fasti.client.address import (
    Address,
    known_tls_ca,
    known_tls_client_cert,
    known_token,
    parse_address,
)
from fasti.client.closing import Closing
from fasti.client.durations import Duration, duration_us, seconds
from fasti.client.failures import FailureReports, OnFailure, checked_callback
from fasti.client.kept import Kept, keep
from fasti.client.thrown_away import ThrownAway
from fasti.client.topic_calls import TopicCalls
from fasti.client.transport import BrokerClock, Transport
from fasti.errors import FastiError, InvalidArgument
from fasti.extras import required
from fasti.model import Limits

if TYPE_CHECKING:
    from fasti.client.arguments import EmbeddedOptions
    from fasti.client.calls import Answer, Calls
    from fasti.client.certificates import Pem
    from fasti.client.changes import Changes
    from fasti.client.consumer import Consumer
    from fasti.client.flight_transport import FlightTransport
    from fasti.client.log_place import Start
    from fasti.client.messages import Messages
    from fasti.client.outbox import Outbox
    from fasti.client.outboxes import Outboxes
    from fasti.client.producer import Producer
    from fasti.client.reader import Reader
    from fasti.client.session import Session
    from fasti.client.sessions import Sessions
    from fasti.client.sinks import Sink
    from fasti.client.transaction import Transaction
    from fasti.client.watch import Watch

_clients: Kept[Client] = Kept()


def connect(
    address: str | None = None,
    *,
    owner: str = "",
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | bytes | None = None,
    tls_client_cert: str | os.PathLike[str] | bytes | None = None,
    timeout: Duration = "30s",
    on_failure: OnFailure | None = None,
    **embedded: Unpack[EmbeddedOptions],
) -> Client:
    """Connects to a broker, or opens one inside this process.

        client = fasti.connect("fasti://127.0.0.1:7170", owner="billing")
        client = fasti.connect("fasti://one:7170,two:7170")       # the first that answers
        client = fasti.connect("fasti+tls://broker:7170", token="…", tls_ca="ca.pem")
        client = fasti.connect("embedded:./data")                 # no server
        client = fasti.connect("embedded:./data", durability="interval", segment_bytes=1 << 20)
        client = fasti.connect("embedded:./new", shards=4)        # as many for good

    Without an address FASTI_ADDRESS is used, or else port 7170 of this machine; without a token
    FASTI_TOKEN; without `tls_ca`, the certificate of the authority that signed the broker's (a file,
    or its bytes in PEM), FASTI_TLS_CA, or else the authorities that the system trusts; without
    `tls_client_cert`, the certificate and key that this client shows to a broker that asks for one (in
    one file, or its bytes in PEM), FASTI_TLS_CLIENT_CERT, or else none. `owner` is in whose name messages are made and changed. `timeout` is for each
    call, and for `receipt.result()` and `ack(wait=True)` where they are given none. `clone=True` gives
    an embedded directory that is a copy of another a name of its own, once.

    `on_failure(failure)` is called for every send and ack of this client that failed and whose
    outcome was not read (`fasti.Failure` says what and why); one at a time, in a thread of the
    client's own; what it raises is logged. `client.producer` and `client.consumer` may be given others.

    Raises `unavailable` when no broker answers, `unauthenticated`, `locked` when another process
    has the directory open, `invalid_argument`.
    """
    place = parse_address(address)
    checked_callback(on_failure)
    timeout_s = duration_us(timeout, "timeout") / 1_000_000
    transport: Transport
    if place.directory is not None:
        with required("broker", "an embedded broker"):
            from fasti.client.shards.embedded import open_directory

        transport, hello = open_directory(place.directory, {**embedded}, timeout_s)
    else:
        if embedded:
            name = min(embedded)
            raise InvalidArgument(f"connect has no option {name!r}", field=name)
        entry = _flight_transport(place, token, tls_ca, tls_client_cert, timeout_s)
        transport = entry
        try:
            hello = entry.connect()
            if hello.get("shards", 1) > 1:
                from fasti.client.shards.transport import over_flight

                transport = over_flight(entry, hello)
        except FastiError:
            entry.close()
            raise
    return Client(transport, owner, hello, timeout_s, on_failure=on_failure)


def _flight_transport(
    place: Address,
    token: str | None,
    tls_ca: Pem | None,
    tls_client_cert: Pem | None,
    timeout_s: float,
) -> FlightTransport:
    from fasti.client.flight_transport import FlightTransport

    authority = certificate = None
    if place.tls:
        from fasti.client.certificates import read_authority, read_client_certificate

        authority = read_authority(tls_ca or known_tls_ca())
        certificate = read_client_certificate(tls_client_cert or known_tls_client_cert())
    return FlightTransport(
        place,
        token=token or known_token(),
        tls_ca=authority,
        tls_client=certificate,
        timeout=timeout_s,
    )


class Client(TopicCalls, Closing):
    """Made by `fasti.connect`. A context manager; any thread may use it.

    Closing it flushes its producers and gives back what its consumers have not started.
    """

    def __init__(
        self,
        transport: Transport,
        owner: str = "",
        hello: dict[str, Any] | None = None,
        timeout_s: float = 30.0,
        *,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.owner = owner
        self._on_failure = checked_callback(on_failure)
        self.failure_reports = FailureReports()
        self.transport = transport
        self._timeout_s = timeout_s
        hello = hello or {}
        self.server: str = hello.get("server", "")
        known = {name: value for name, value in hello.get("limits", {}).items() if name in _LIMITS}
        self.limits = Limits(**known)
        self._lock = threading.Lock()
        self._closed = False
        self._producers: Kept[Producer] = Kept()
        self._thrown_away = ThrownAway()
        self._consumers: Kept[Consumer] = Kept()
        self._readers: Kept[Reader] = Kept()
        self._changes: Kept[Changes] = Kept()
        self._watches: Kept[Watch] = Kept()
        self._calls: Calls | None = None
        # Those of consumers that were thrown away end by themselves, if they get the time.
        self._sessions: Kept[Session | Sessions] = Kept()
        _clients.add(self)
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        """Taken before the process forks."""
        return [self._lock]

    def _forked(self) -> None:
        """In a child process: answers to calls come to the parent's inbox, this one needs its own."""
        self._calls = None

    @property
    def clock(self) -> BrokerClock:
        """The broker's clock, as far as it is known here: its lower end."""
        return self.transport.clock

    @property
    def unread_failures(self) -> int:
        """How many sends and acks failed without anything reading their outcome."""
        return self.failure_reports.count

    # Messages

    def producer(
        self,
        topic: str,
        *,
        owner: str | None = None,
        max_block: Duration = "30s",
        deadline: Duration = "2m",
        buffer_rows: int = 200_000,
        buffer_bytes: int = 64 << 20,
        on_failure: OnFailure | None = None,
    ) -> Producer:
        """A producer of a topic's messages, in `owner`'s name (default: the client's).

        At `buffer_rows` or `buffer_bytes` without a receipt `send` blocks up to `max_block`. While
        the broker is full or away a send is repeated for up to `deadline`. Each producer has a
        connection's stream and two threads while it is used: keep it rather than make one per
        message. `on_failure` (default: the client's) is called for each message that failed and
        whose receipt was thrown away unread, as `connect` says.
        """
        from fasti.client.producer import Producer
        from fasti.client.sharded_producer import ShardedProducer

        self._check_open()
        make = Producer if self.transport.shard_count == 1 else ShardedProducer
        made = make(
            self.transport,
            topic,
            self.owner if owner is None else owner,
            limits=self.limits,
            max_block=max_block,
            deadline=deadline,
            buffer_rows=buffer_rows,
            buffer_bytes=buffer_bytes,
            on_failure=on_failure or self._on_failure,
            reports=self.failure_reports,
        )
        keep(self._producers, made)
        # What it has sent still goes when it is thrown away, and `close` waits for it.
        gone = weakref.finalize(made, self._thrown_away.add, made.outbox)
        gone.atexit = False
        return made

    def _boxes(self, topic: str | None = None) -> list[Outbox | Outboxes]:
        """Where sends may be under way: of producers in use, and of those thrown away."""
        boxes = [*(producer.outbox for producer in self._producers), *self._thrown_away]
        return [box for box in boxes if topic is None or box.topic == topic]

    def consumer(
        self,
        topic: str,
        *,
        name: str | None = None,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        group: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> Consumer:
        """A consumer: iterate over it for messages, each at its moment, under a lease.

            for message in client.consumer("emails", name="worker-1"):
                handle(message.payload)
                message.ack()

        `name` is its identity: one that comes back under its name gets its live leases again, and
        ends an older session of that name (`fenced`). The default is unique. With `timeout` the
        iteration ends after that long without a message. Leases renew themselves, for a message
        that your code has held for `time_limit` no longer. `on_failure` (default: the
        client's) is called for each ack, nack or release that failed and was not waited for, as
        `connect` says.

        At most `prefetch` messages are here unfinished. Without it the number adapts: it grows while
        messages are finished within milliseconds, and falls to what is being worked on when they
        take long, so that nothing waits here that another consumer could begin with.

        Of a log, `group` consumes: its consumers share the rows, and each row is acked once for the
        group. A group that is not there is made, and begins at the earliest row.
        """
        from fasti.client.consumer import Consumer

        self._check_open()
        made = Consumer(
            self.transport,
            topic,
            name=name,
            prefetch=prefetch,
            timeout=timeout,
            time_limit=time_limit,
            limits=self.limits,
            group=group,
            on_failure=on_failure or self._on_failure,
            reports=self.failure_reports,
        )
        keep(self._consumers, made)
        self.look_after(made.session)
        return made

    def look_after(self, session: Session | Sessions) -> None:
        """Has `close` end a session that is still open."""
        self._sessions.add(session)

    def reader(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Reader:
        """A reader of a log: rows in the order of their offsets; nothing is leased or acked.

            for message in client.reader("events", start="earliest"): ...
            for message in client.reader("events", start="latest", follow=True): ...

        `start` is `"earliest"`, `"latest"`, an aware datetime, an offset (of `partition`, or of the
        only one), or offsets by partition, such as another reader's `position`. Without `follow` it
        reads what is there when it begins; with it, it goes on with what is appended, and ends when
        nothing came for `timeout`.
        """
        from fasti.client.reader import Reader

        self._check_open()
        made = Reader(
            self.transport,
            topic,
            start=start,
            partition=partition,
            follow=follow,
            timeout=timeout,
        )
        keep(self._readers, made)
        return made

    def messages(self, topic: str, *, owner: str | None = None) -> Messages:
        """The pending messages of a topic: read, move, cancel, update, count."""
        from fasti.client.messages import Messages

        self._check_open()
        name = self.owner if owner is None else owner
        return Messages(self.transport, topic, name, self._flushing(topic))

    def _flushing(self, topic: str) -> Callable[[], None]:
        def flush() -> None:
            for box in self._boxes(topic):
                box.flush(self._timeout_s)
            for session in self._sessions:
                if session.topic == topic:
                    session.flush(self._timeout_s)

        return flush

    def call(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout: Duration = "5s",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        owner: str | None = None,
        **columns: Any,
    ) -> Answer:
        """Sends a request and waits for its answer: its `payload`, `headers`, `content_type`.

            answer = client.call("prices", b"...", timeout="5s")

        A consumer of the topic answers by `message.reply(...)`; it has the request under a lease
        like any message, so if it dies another one answers. `columns` are others of
        `Producer.send`, such as `priority` and `subject`. Any number of threads may call at once:
        all answers come by one session of this client.

        Raises `timed_out` when no answer came in time: a request that no consumer had taken is withdrawn
        then, and a reply that comes later is dead, with its reason. `not_found` if there is no such
        topic, `rows_failed` if the request was not taken (`key` is in use), `unknown` if this
        client's inbox was deleted meanwhile, `closed`, and what `Producer.send` raises.
        """
        self._check_open()
        given = {"key": key, "content_type": content_type, **columns}
        return self.calls.call(topic, payload, timeout, owner, headers, **given)

    @property
    def calls(self) -> Calls:
        """What calls of this client share; for the asyncio client, which waits in another manner."""
        from fasti.client.calls import Calls

        with self._lock:
            if self._calls is None:
                self._calls = Calls(self)
            return self._calls

    def transaction(self) -> Transaction:
        """Several changes that happen whole or not at all.

        with client.transaction() as tx:
            tx.ack(message)
            tx.send("receipts", b"...", delay="1d")
        """
        from fasti.client.transaction import Transaction

        self._check_open()
        return Transaction(self.transport, self.owner, self._flush_all)

    def _flush_all(self) -> None:
        for box in self._boxes():
            box.flush(self._timeout_s)

    def changes(
        self,
        *,
        start: Any = "earliest",
        topic: str | None = None,
        key: str | None = None,
        id: int | Sequence[int] | None = None,
        payload: bool = False,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Changes:
        """Everything that happened to every message, in order, as Arrow tables.

            for table in client.changes(topic="emails"): ...
            for table in client.changes(topic="emails", key="user-7"): ...    # the life of one

        `topic`, `key` and `id` (one or several) choose, on the broker's side: a `key` means all
        messages that come to have it while reading, and the one that has it now; an `id` is of any
        topic unless one is named.

        `start` is `"earliest"`, `"latest"`, an aware datetime, or a position as `changes.position`
        gives it (or its text). Without `follow` it ends with what has happened by now; with it, it
        goes on, and ends when nothing happened for `timeout`. The columns stand in the guide to the
        change feed; `payload` comes only if asked for.
        """
        from fasti.client.changes import Changes

        self._check_open()
        made = Changes(
            self.transport,
            start=start,
            topic=topic,
            key=key,
            id=id,
            payload=payload,
            follow=follow,
            timeout=timeout,
        )
        keep(self._changes, made)
        return made

    def sink(
        self,
        topic: str,
        sink_id: str,
        operation: str = "produce",
        on_conflict: str = "fail",
        *,
        owner: str | None = None,
    ) -> Sink:
        """Batches of rows that take effect exactly once, however often they are sent.

            sink = client.sink("emails", "nightly-import")
            with sink.stage(batch=7, partition=0, attempt=0) as stage:
                stage.write(record_batch)
            sink.publish(7, [stage.staged.name])

        `operation` is `produce`, `append` (logs), `update`, `move`, `cancel` or `put` (key-value
        topics). `on_conflict`, for `produce`: with `fail` one taken key refuses the whole batch, with
        `skip` those rows are left out.
        """
        from fasti.client.sinks import Sink

        self._check_open()
        return Sink(
            self.transport,
            topic,
            sink_id,
            operation=operation,
            on_conflict=on_conflict,
            owner=self.owner if owner is None else owner,
            limits=self.limits,
        )

    def close(self, timeout: Duration | None = "30s") -> None:
        """Flushes producers, gives back what was not started, and disconnects.

        Raises `rows_failed` if sends or acks failed and their outcome was not read, `timed_out`.
        Everything is closed even then; again: nothing happens.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        readers, changes, watches = self._readers.end(), self._changes.end(), self._watches.end()
        following: list[Reader | Changes | Watch] = [*readers, *changes, *watches]
        for follower in following:
            follower.close()
        if self._calls is not None:
            self._calls.close(timeout)
        problems: list[FastiError] = []
        opened: list[Consumer | Producer] = [*self._consumers.end(), *self._producers.end()]
        for worker in opened:
            try:
                worker.close(timeout=timeout)
            except FastiError as problem:
                problems.append(problem)
        problems += self._thrown_away.close(seconds(timeout))
        for session in self._sessions.end():
            with suppress(FastiError):
                session.close(seconds(timeout))
        self.transport.close()
        self.failure_reports.close()
        _clients.discard(self)
        if problems:
            raise problems[0]

    def __repr__(self) -> str:
        return f"<Client of {self.transport}>"


_LIMITS = set(Limits.__dataclass_fields__)


def _close_at_exit() -> None:
    """Closes the clients that are still open, so that what they have taken is sent."""
    for client in list(_clients):
        with suppress(Exception):
            client.close(timeout="5s")


atexit.register(_close_at_exit)
