"""Calls: a request is sent, and the consumer that handles it sends the answer back.

A client that calls has an inbox, a topic of its own that is made at the first call and deleted when
the client is closed; one consumer takes the answers of all calls from it, in one thread, and wakes
the callers. If the client dies the broker deletes the inbox after it was unused for ten minutes.

A call that is over is no longer waited for: an answer that comes all the same is dead, with its
reason: in `_replies` if the broker knew that it was too late, else in the inbox. Any thread may
call, a thousand at once.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.client.columns import as_headers
from fasti.client.consumer import Consumer
from fasti.client.durations import Duration, duration_us
from fasti.client.failures import FailureReports
from fasti.client.message import Message
from fasti.client.outcomes import Outcome
from fasti.client.replies import CORRELATION_ID, DEADLINE, REPLY_TO, RESERVED
from fasti.client.transport import BrokerClock, Transport
from fasti.errors import (
    Closed,
    FastiError,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    RowsFailed,
    TimedOut,
)
from fasti.model import MINUTE_US

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.client.producer import Producer


INBOX_PREFIX = "_inbox."
TOO_LATE = "the call ended before its reply came"

_PREFETCH = 1024
_PRODUCERS_MAX = 64
_LOOK_S = 60.0
_WITHDRAW_S = 2.0
_DELETE_S = 2.0
# While a client lives it waits there. What a dead one leaves costs the broker a page of memory each.
_INBOX_IDLE_US = 10 * MINUTE_US


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `payload`, `headers`, `content_type`."""

    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None

    def __bytes__(self) -> bytes:
        return self.payload


class Pending:
    """One call that waits. Settled once, by the thread that takes it out of the book."""

    def __init__(self, deadline_us: int) -> None:
        self.deadline_us = deadline_us
        self.answer: Answer | None = None
        self.error: FastiError | None = None
        self._settled = threading.Event()

    def settle(self, answer: Answer | None, error: FastiError | None = None) -> None:
        """The answer, the reason why there will be none, or neither: the time is over."""
        self.answer, self.error = answer, error
        self._settled.set()

    def wait(self, clock: BrokerClock) -> bool:
        """Waits until it is settled; False once its time is over."""
        while not self._settled.is_set():
            left_s = clock.seconds_until(self.deadline_us)
            if left_s <= 0:
                return False
            self._settled.wait(min(left_s, _LOOK_S))
        return True


class Book:
    """The calls that wait, by their correlation ids. Any thread."""

    def __init__(self, clock: BrokerClock) -> None:
        self._clock = clock
        self._waiting: dict[str, Pending] = {}
        self._lock = threading.Lock()
        self._error: FastiError | None = None

    def add(self, name: str, pending: Pending) -> None:
        """A call begins to wait; after `fail` it is settled at once, with that error."""
        with self._lock:
            error = self._error
            if error is None:
                self._waiting[name] = pending
        if error is not None:
            pending.settle(None, error)

    def take(self, name: str | None) -> Pending | None:
        """Removes the call of this name and returns it, if it still waits."""
        with self._lock:
            return self._waiting.pop(name, None) if name is not None else None

    def fail(self, error: FastiError) -> None:
        """No answer will come any more."""
        with self._lock:
            self._error = self._error or error
            waiting, self._waiting = list(self._waiting.values()), {}
        for pending in waiting:
            pending.settle(None, error)

    def look(self) -> None:
        """The clock has leapt: some calls may be over."""
        now_us = self._clock.now_us()
        with self._lock:
            over = [n for n, p in self._waiting.items() if p.deadline_us <= now_us]
            late = [self._waiting.pop(name) for name in over]
        for pending in late:
            pending.settle(None)

    def arrived(self, message: Message) -> None:
        """Settles the call that an answer belongs to; without one the answer is dead."""
        headers = message.headers
        pending = self.take(headers.get(CORRELATION_ID))
        if pending is None:
            message.reject(TOO_LATE)
            return
        headers.pop(CORRELATION_ID, None)
        pending.settle(Answer(message.payload, headers, message.content_type))
        message.ack()


class Inbox:
    """Where the answers to one client's calls come in. Opened once; ends with its thread."""

    def __init__(self, client: Client, book: Book) -> None:
        self.topic = INBOX_PREFIX + os.urandom(16).hex()
        self.book = book
        self._count = 0
        self._lock = threading.Lock()
        self._transport = client.transport
        # An answer comes by the shard of its request: each has a partition of the inbox.
        shards = self._transport.shard_count
        partitions: dict[str, Any] = {} if shards == 1 else {"partitions": shards}
        client.create_topic(
            self.topic,
            lookahead=0,
            max_attempts=1,
            lease="1m",
            idle_age_us=_INBOX_IDLE_US,
            **partitions,
        )
        consumer = Consumer(
            client.transport,
            self.topic,
            prefetch=_PREFETCH,
            limits=client.limits,
            # An answer that came twice, for one, is acked too late: its call has it already.
            reports=FailureReports(logging.DEBUG),
        )
        client.look_after(consumer.session)
        self._consumer = consumer
        self._stop_listening = client.clock.listen(book.look)
        self._broken = threading.Event()
        # The thread must not keep what made it alive: a client may be thrown away.
        self._thread = threading.Thread(
            target=_take_answers,
            args=(consumer, book, self._broken),
            name="fasti-calls",
            daemon=True,
        )
        consumer.session.start()
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether no more answers come in: the topic was deleted, or the client closed."""
        return self._broken.is_set()

    def name(self) -> str:
        """A name for the next call, unique among all clients."""
        with self._lock:
            self._count += 1
            return f"{self.topic[len(INBOX_PREFIX) :]}-{self._count}"

    def stop(self) -> None:
        """Takes no more answers; the broker deletes the topic after its idle age."""
        self._stop_listening()
        self._consumer.stop()

    def stop_aside(self) -> None:
        """The same for the collector of garbage, whose thread may have any lock."""
        threading.Thread(target=self.stop, name="fasti-close", daemon=True).start()

    def close(self, timeout: Duration | None) -> None:
        """Takes no more answers and deletes the topic, if a broker is there to do it."""
        self.stop()
        self._thread.join(_DELETE_S)
        with suppress(FastiError):
            self._consumer.close(timeout=timeout)
        with suppress(FastiError):
            self._transport.call("delete_topic", {"topic": self.topic}, timeout=_DELETE_S)


def _take_answers(consumer: Consumer, book: Book, broken: threading.Event) -> None:
    try:
        for message in consumer:
            book.arrived(message)
    except NotFound:
        broken.set()
        book.fail(
            OutcomeUnknown("this client's inbox was deleted: no answer can come, if there is one")
        )
    except FastiError as error:
        broken.set()
        book.fail(error)
    finally:
        broken.set()
        book.fail(Closed("the client is closed"))


class Calls:
    """All calls of one client. Made by the client at its first call."""

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        self._transport: Transport = client.transport
        self._clock = client.clock
        self._inbox: Inbox | None = None
        self._lock = threading.Lock()
        self._producers: OrderedDict[tuple[str, str], Producer] = OrderedDict()
        self._closed = False

    def inbox(self) -> Inbox:
        """The inbox, made if there is none or if it is gone. Raises what making a topic raises."""
        with self._lock:
            if self._closed:
                raise Closed("the client is closed")
            if self._inbox is None or self._inbox.broken:
                client = self._client()
                assert client is not None, "a client calls"
                self._inbox = Inbox(client, Book(self._clock))
                # A client that is thrown away can't be answered any more.
                gone = weakref.finalize(client, self._inbox.stop_aside)
                gone.atexit = False
            return self._inbox

    def open_inbox(self) -> Inbox | None:
        """The inbox, if it can be had without waiting."""
        inbox = self._inbox
        return None if inbox is None or inbox.broken or self._closed else inbox

    def call(
        self,
        topic: str,
        payload: bytes,
        timeout: Duration,
        owner: str | None,
        headers: Mapping[str, str] | None,
        **given: Any,
    ) -> Answer:
        """Sends a request and waits for its answer."""
        length_us = timeout_us(timeout)
        inbox = self.inbox()
        begun = self.begin(inbox, length_us, headers, Pending)
        try:
            receipt = self.producer(topic, owner).send(payload, headers=begun.headers, **given)
            outcome = self._sent(topic, receipt, begun, timeout)
            begun.pending.wait(self._clock)
        finally:
            # From here on an answer comes too late.
            inbox.book.take(begun.name)
        return self.conclude(begun.pending, topic, outcome, timeout, owner)

    def _sent(self, topic: str, receipt: Any, begun: Begun, timeout: Duration) -> Outcome:
        """What became of the request; while the broker is away it is sent again and again."""
        while not receipt.done:
            left_s = self._clock.seconds_until(begun.pending.deadline_us)
            if left_s <= 0:
                # The caller gets the error here; `flush` and `close` don't raise it again.
                receipt.disown()
                raise not_sent(topic, timeout)
            with suppress(TimedOut):
                receipt.result(min(left_s, 1.0))
        return accepted(topic, receipt.result(0))

    def begin(
        self,
        inbox: Inbox,
        length_us: int,
        headers: Mapping[str, str] | None,
        make: Callable[[int], Pending],
    ) -> Begun:
        """A call's name and the headers of its request; it waits from now on."""
        pairs = [] if headers is None else as_headers(headers)
        for name, _ in pairs:
            if name in RESERVED:
                raise InvalidArgument(f"the header {name!r} is set by call itself", field="headers")
        # A clock that is not known (any more) is asked.
        now_us = self._clock.now_us() or int(self._transport.call("clock")[0]["now_us"])
        deadline_us = now_us + length_us
        name = inbox.name()
        own = ((REPLY_TO, inbox.topic), (CORRELATION_ID, name), (DEADLINE, str(deadline_us)))
        begun = Begun(name, {**dict(pairs), **dict(own)}, make(deadline_us))
        inbox.book.add(name, begun.pending)
        return begun

    def producer(self, topic: str, owner: str | None) -> Producer:
        """The producer of a topic's requests; of many topics the latest are kept."""
        client = self._client()
        if client is None:
            raise Closed("the client is closed")
        name = (topic, client.owner if owner is None else owner)
        with self._lock:
            made = self._producers.get(name)
            if made is None:
                made = self._producers[name] = client.producer(topic, owner=owner)
            self._producers.move_to_end(name)
            if len(self._producers) > _PRODUCERS_MAX:
                # What it has under way is still sent.
                self._producers.popitem(last=False)
        return made

    def conclude(
        self,
        pending: Pending,
        topic: str,
        outcome: Outcome,
        timeout: Duration,
        owner: str | None,
    ) -> Answer:
        """The answer of a call that is settled or over; raises what came instead."""
        if pending.answer is not None:
            return pending.answer
        if pending.error is not None:
            raise pending.error
        raise self._too_late(topic, outcome.id, timeout, owner)

    def _too_late(self, topic: str, id: int, timeout: Duration, owner: str | None) -> TimedOut:
        """Cancels the request unless a consumer has it, and says what became of it."""
        status, by = self.withdraw(topic, id, owner)
        status_text = {
            "ok": "no consumer took the request, which is withdrawn",
            "leased": f"{by or 'a consumer'} has the request; its reply will be dead",
            "done": "the request was acked without a reply",
            "dead": "the request is dead",
        }.get(status, "the request may still be handled; a reply will be dead")
        return TimedOut(
            f"no answer from {topic!r} within {timeout}: {status_text}",
            details={"topic": topic, "request": id, "status": status},
        )

    def withdraw(self, topic: str, id: int, owner: str | None) -> tuple[str, str | None]:
        """Cancels a request unless a consumer has it: its status, and which consumer has it."""
        client = self._client()
        name = (client.owner if client is not None else "") if owner is None else owner
        try:
            part = pa.RecordBatch.from_arrays([pa.array([id], type=pa.int64())], ["id"])
            header, _ = self._transport.call(
                "cancel", {"topic": topic, "owner": name}, [part], timeout=_WITHDRAW_S
            )
            return header["status"][0][0], header.get("by", {}).get("0")
        except FastiError:
            return "unknown", None

    def close(self, timeout: Duration | None) -> None:
        """Calls that wait raise `closed`; the inbox is deleted. Called once, by the client."""
        with self._lock:
            self._closed = True
            inbox = self._inbox
        if inbox is not None:
            inbox.book.fail(Closed("the client is closed"))
            inbox.close(timeout)


@dataclass(slots=True)
class Begun:
    """A call that is about to wait."""

    name: str
    headers: dict[str, str]
    pending: Pending


def timeout_us(timeout: Duration) -> int:
    """How long a call waits. Raises `invalid_argument`."""
    length_us = duration_us(timeout, "timeout")
    if length_us <= 0:
        raise InvalidArgument("the timeout of a call must be positive", field="timeout", limit=0)
    return length_us


def not_sent(topic: str, timeout: Duration) -> TimedOut:
    """The broker has not even taken the request in time."""
    return TimedOut(
        f"no answer from {topic!r} within {timeout}: the request is still on its way",
        details={"topic": topic, "status": "unknown"},
    )


def accepted(topic: str, outcome: Outcome) -> Outcome:
    """The request's outcome. Raises `rows_failed` if it was not taken: a key that is in use."""
    if not outcome.ok:
        raise RowsFailed(
            f"the request to {topic!r} came out as {outcome.status}",
            failures=[{"operation": "call", "topic": topic, **outcome.to_dict()}],
            details={"rows": 1, "topic": topic},
        )
    return outcome
