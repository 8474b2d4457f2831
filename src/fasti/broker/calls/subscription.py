"""A consumer's session on the wire: credits and returns in, leased messages and answers out.

Two threads: one calls `take` with what the consumer wrote, another `next` for what to write back.
Payloads are joined in the second, never in the broker's own threads. What waits to be written is
bounded by the consumer's credit and by `_REQUESTS_MAX`; beyond it `take` waits, and nothing more is
read from the wire.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.hearing import Hearing
from fasti.broker.reading import MOVED
from fasti.broker.session import Delivery, Shown
from fasti.core.commands import Detach, Heartbeat, Lease, Withdraw
from fasti.core.replies import ConsumerReplaced, Deliver, Reply
from fasti.errors import Closed, FastiError, Fenced, InvalidArgument, OutcomeUnknown
from fasti.protocol import outcomes
from fasti.protocol.problems import error_to_json
from fasti.protocol.schemas import CONTENT_NAMES, LEASED
from fasti.storage.stored_rows import SmallFrame

if TYPE_CHECKING:
    from fasti.broker.committer import Commit
    from fasti.broker.service import Service

_log = logging.getLogger("fasti.broker")

_REQUESTS_MAX = 1024
CREDIT_MAX = 1 << 20

Header = dict[str, Any]
# A header alone, with a batch, or with the payload of the one message in it.
Written = tuple[Header, pa.RecordBatch | bytes | None]


@dataclass(slots=True)
class _Answered:
    """A request of the consumer's that is durable, or failed."""

    op: str
    request: int | None
    # How many more messages were asked for with it, and how many of them by its last command.
    credit: int
    granted: int
    answer: Future[list[Any]]


@dataclass(slots=True)
class _Outgoing:
    """A word that needs no engine. With `last`, the session ends behind it."""

    header: Header
    last: bool = False
    # It answers what the consumer wrote, so it counts towards what may wait.
    answer: bool = False


class Subscription:
    """One session of one consumer on one topic."""

    schema = LEASED
    call = "consume"

    def __init__(self, service: Service, caller: Caller, descriptor: Header) -> None:
        named: Header = {"topic": str, "consumer": str, "group": "", "life": "", "attempt": 0}
        fields = requests.checked(descriptor, **named, rows=False)
        self._service, self.caller = service, caller
        self._topic: str = fields["topic"]
        self._consumer: str = fields["consumer"]
        self._group: str = fields["group"]
        # It takes a message that comes alone without a batch around it.
        self._takes_rows: bool = fields["rows"]
        self.lease_us = service.require_topic(self._topic).lease_us
        self._shard = service.placement.shard_of(self._topic)
        self._engine = self._shard.engine
        self._life = (self._topic, self._group, self._consumer, fields["life"])
        self._attempt: int = fields["attempt"]
        attempts = service.attempts
        self._session = attempts.open(self._life, self._attempt, self._shard.open_session)
        self._changed = service.runtime.condition()
        self._unanswered = 0
        self.hearing = Hearing(self._shard, self._session, self._topic, self._consumer, self._group)
        self._writes, self._writing = 0, False
        # Ended: nothing more is written. Closed: the shard was told that nobody waits here.
        self._finishing = self._ended = self._closed = self._detached = False
        self._credit = service.leases.open(caller, self._topic, self._consumer)

    @property
    def number(self) -> int:
        """The shard's name for the session."""
        return self._session.number

    def presence(self) -> Header:
        """Who is there, and how busy."""
        return {
            "peer": self.caller.peer,
            "connected_us": self.hearing.opened_us,
            "active_us": self.hearing.active_us,
            "heard_us": self.hearing.heard_us,
        }

    @property
    def topic(self) -> str:
        """Whose messages come here."""
        return self._topic

    def consumes(self, topic: str, group: str, consumer: str) -> bool:
        """Whether it is that consumer's session."""
        return (self._topic, self._group, self._consumer) == (topic, group, consumer)

    # Silence: the thread of broker/liveness.py

    @property
    def on_network(self) -> bool:
        """Whether its peer can vanish. One in this process can't."""
        return not self.caller.is_local

    @property
    def identity(self) -> Header:
        """Who it is, for the log."""
        return {"topic": self._topic, "consumer": self._consumer, **self.caller.log_fields()}

    @property
    def writes(self) -> tuple[int, bool]:
        """How often something was written, and whether a write is under way."""
        return self._writes, self._writing

    def end_for_silence(self, error: FastiError) -> None:
        """The peer is told if it listens; nothing more is leased here, told or not."""
        self.stop(error)
        with suppress(FastiError):
            self._shard.submit([Detach(self._session.number)])

    # The thread that reads from the wire

    def take(self, metadata: Header, batch: pa.RecordBatch | None) -> None:
        """Carries out what the consumer wrote; the answer comes out of `next`."""
        fields = dict(metadata)
        op, request = fields.pop("op", None), None
        self.hearing.hear(op)
        try:
            request = requests.integer(fields, "request")
            fields.pop("request", None)
            self._carry_out(op, request, fields, batch)
        except FastiError as error:
            known = op if op in requests.RETURNS else "consume"
            self._service.metrics.refused(known, error.code, self.caller.name)
            self._reply(_Outgoing(_problem(request, error), last=request is None, answer=True))

    def _carry_out(
        self, op: Any, request: int | None, fields: Header, batch: pa.RecordBatch | None
    ) -> None:
        if op == "clock":
            requests.checked(fields)
            self._reply(_Outgoing({"kind": "clock", "request": request}, answer=True))
            return
        credit = requests.integer(fields, "credit") or 0
        fields.pop("credit", None)
        if op == "credit":
            credit = requests.checked(fields, count=int)["count"]
            lease = self._lease(credit)
            if lease:
                self._submit(op, request, lease, credit)
            return
        commands: list[Any]
        if op == "heartbeat":
            requests.checked(fields)
            commands = [Heartbeat(self._topic, self._consumer, self._group)]
        elif op == "withdraw":
            requests.checked(fields)
            self._session.consumer = ""
            self._credit.withdraw()
            commands = [Withdraw(self._session.number)]
        elif op in requests.RETURNS:
            if batch is None:
                raise InvalidArgument(f"{op} needs rows", field="op")
            fields = requests.checked(fields, **requests.returned_fields(op))
            fields["group"] = self._group
            limits = self._shard.settings.limits
            commands = [requests.returned(op, self._topic, fields, batch, limits)]
            self._service.note_started(self._topic, commands[0])
        else:
            raise InvalidArgument(f"unknown op {op!r}", field="op")
        if credit:
            commands += self._lease(credit, refused=False)
        self._submit(op, request, commands, credit)

    def _lease(self, count: int, refused: bool = True) -> list[Lease]:
        """None if it has as much credit already as it may have."""
        if not 0 <= count <= CREDIT_MAX:
            raise InvalidArgument(
                f"credit must be 0 to {CREDIT_MAX} at a time", field="count", limit=CREDIT_MAX
            )
        if self._ended:
            # One that was fenced and goes on asking would take the name back.
            raise Closed("the session has ended")
        granted = 0
        if count:
            self._session.consumer = self._consumer
            granted = self._credit.admit(count, refused)
        place = (self._topic, self._session.number, self._consumer)
        # Nothing is what was asked for: that takes the name.
        return [Lease(*place, granted, group=self._group)] if granted or not count else []

    def _submit(self, op: str, request: int | None, commands: list[Any], credit: int) -> None:
        granted = commands[-1].count if isinstance(commands[-1], Lease) else 0
        self._wait_for_room()
        try:
            answer = self._service.submit(self._shard, commands)
        except FastiError:
            self._credit.withdraw(granted)
            self._answered()
            raise
        # Called by the committer's thread, which must not do more than this.
        answer.add_done_callback(
            lambda done: self._write(_Answered(op, request, credit, granted, done))
        )

    def _wait_for_room(self) -> None:
        """One more answer will wait to be written. While there are too many, nothing is read."""
        with self._changed:
            while self._unanswered >= _REQUESTS_MAX and not self._ended:
                self._changed.wait()
            self._unanswered += 1

    def _reply(self, outgoing: _Outgoing) -> None:
        self._wait_for_room()
        self._write(outgoing)

    def _write(self, outgoing: _Outgoing | _Answered) -> None:
        # It is not written any more, and a consumer that writes on would fill the memory.
        if not self._closed:
            self._session.arrived.put(outgoing)

    def finish(self) -> None:
        """The consumer writes no more: what it asked is answered, then `next` says None.

        Its credit is taken back first. What was leased to it before comes before the end, so that
        it can be given back; a lease that nobody hears of would last for its whole length.
        """
        self._session.consumer = ""
        with self._changed:
            self._finishing = True
        try:
            detached = self._shard.submit([Detach(self._session.number)])
        except FastiError:
            self._credit_gone()
        else:
            detached.add_done_callback(lambda _: self._credit_gone())

    def _credit_gone(self) -> None:
        """Nothing more is leased to this session."""
        with self._changed:
            self._detached = True
            if self._unanswered:
                return
        self._session.arrived.put(None)

    def stop(self, error: FastiError) -> None:
        """The broker ends the session, with a reason."""
        self._write(_Outgoing(_problem(None, error), last=True))

    def close(self) -> None:
        """The wire is gone, or done: no more credit. Leases stay."""
        with self._changed:
            if self._closed:
                return
            self._ended = self._closed = True
            self._changed.notify_all()
        self.hearing.close()
        self._session.arrived.put(None)
        self._credit.close()
        self._service.attempts.close(self._life, self._attempt)
        with suppress(FastiError):
            self._session.close()

    # The thread that writes to the wire

    def next(self) -> Written | None:
        """What to write next; None when the session is over."""
        self._writing = False
        try:
            written = self._next()
            self._writes, self._writing = self._writes + 1, written is not None
            return written
        except Exception as error:
            # Told, because a session that says nothing more would be waited for for ever.
            _log.warning("a session of %r on %r ended: %r", self._consumer, self._topic, error)
            self._ended = True
            failure = self._service.failed("consume", error, self._shard, self._engine)
            return self._stamped(_problem(None, failure)), None

    def _next(self) -> Written | None:
        while True:
            if self._ended:
                return None
            if self._session.parts:
                written = self._delivery(self._session.parts.popleft())
                if written is not None:
                    return written
                continue
            item = self._session.arrived.get()
            if self._closed:
                return None
            if isinstance(item, (Shown, _Answered)):
                written = (
                    self._delivery(item.leased, item.commit)
                    if isinstance(item, Shown)
                    else self._answer(item)
                )
                if written is not None:
                    return written
            elif item is not None or not (self._finishing and self._unanswered):
                return self._last_words(item)

    def _last_words(self, item: Any) -> Written | None:
        """A word of the broker's own, or the end of the session and why."""
        if isinstance(item, _Outgoing):
            if item.answer:
                self._answered()
            self._ended = self._ended or item.last
            return self._stamped(item.header), None
        self._ended = True
        if isinstance(item, ConsumerReplaced):
            fenced = Fenced(f"another session took the name {item.consumer!r}")
            error: FastiError = item.error or fenced
        elif self._finishing:
            return None
        else:
            error = self._shard.end_error("the broker no longer knows this session: connect again")
        return self._stamped(_problem(None, error)), None

    def _delivery(self, leased: Deliver, commit: Commit | None = None) -> Written | None:
        """Messages with their payloads, once they are durable; None if they never will be."""
        count = len(leased.ids)
        if commit is not None:
            self._credit.leased(count)
            if count == 1 and self._takes_rows:
                alone = self._session.find_alone(leased)
                if alone is not None:
                    return self._delivery_of_one(leased, commit, alone)
        try:
            delivery = self._session.join(leased)
        except MOVED as error:
            self._ended = True
            return self._stamped(_problem(None, Closed(f"the payloads are gone: {error}"))), None
        leased = delivery.leased
        batch = _leased_batch(delivery)
        ready_us = np.maximum(leased.due_us, batch.column("created_us").to_numpy())
        if commit is not None and not commit.wait():
            # The shard recovers; the end of the session follows.
            self._session.parts.clear()
            return None
        if not len(leased.ids):
            return None  # None of them can be read, or all have ended.
        return self._leased_header(leased, ready_us), batch

    def _delivery_of_one(
        self, leased: Deliver, commit: Commit, alone: SmallFrame
    ) -> Written | None:
        """A message that came alone a short while ago, as its values: they need no gathering."""
        values = alone.values
        assert values is not None
        reasons, priority, expires_us = leased.reasons, leased.priority, leased.expires_us
        row: Header = {
            "id": int(leased.ids[0]),
            "due_us": int(leased.due_us[0]),
            "version": int(leased.version[0]),
            "attempts": int(leased.attempts[0]),
            "priority": 0 if priority is None else int(priority[0]),
            "last_reason": None if reasons is None else reasons[0],
            "expires_us": None if expires_us is None else int(expires_us[0]) or None,
            "created_us": alone.at_us,
        }
        for name, value in values.items():
            if name != "payload":
                row[name] = value.decode()
        ready_us = np.array([max(row["due_us"], alone.at_us)])
        if not commit.wait():
            return None
        header = self._leased_header(leased, ready_us)
        header["row"] = row
        return header, values["payload"]

    def _leased_header(self, leased: Deliver, ready_us: NDArray[np.int64]) -> Header:
        """Of messages that leave now."""
        self.hearing.wrote(leased.token)
        self._note_delivered(leased, ready_us)
        self._service.metrics.delivered(self._topic, len(leased.ids))
        header: Header = {"kind": "leased", "token": leased.token, "leased_us": leased.leased_us}
        if leased.priority is not None:
            header["ranked"] = True
        return self._stamped(header)

    def _note_delivered(self, leased: Deliver, ready_us: Any) -> None:
        if leased.group:
            # A row of a log is due when it is appended; how late one is that comes again, nobody
            # can tell.
            ready_us = np.where(leased.attempts == 1, ready_us, 0)
        self._service.lateness.delivered(leased.token, leased.ids, ready_us)

    def _answer(self, item: _Answered) -> Written | None:
        """The answer to a request; None for a credit that needs none."""
        self._answered()
        replies: list[Any] = []
        try:
            replies = item.answer.result()
            for reply in replies:
                if reply.error is not None:
                    raise reply.error
        except FastiError as error:
            # Without a request nobody would know what failed: that ends the session.
            self._ended = self._ended or item.request is None
            problem = _problem(item.request, error)
            if item.credit and replies and replies[-1].error is None:
                problem["credit"] = item.credit
            else:
                self._credit.withdraw(item.granted)
            return self._stamped(problem), None
        except Exception as error:  # A future that failed in an unknown way is still answered.
            return self._stamped(_problem(item.request, OutcomeUnknown(repr(error)))), None
        reply = replies[0]
        if item.op == "credit":
            return None
        if item.op == "heartbeat":
            header = {"kind": "heartbeat", "request": item.request, "held": reply.value}
            return self._stamped(header), None
        if item.op == "withdraw":
            return self._stamped({"kind": "withdrawn", "request": item.request}), None
        assert isinstance(reply, Reply)
        self._service.metrics.mutated(item.op, self._topic, reply.status)
        header = {
            "kind": "outcomes",
            "request": item.request,
            **outcomes.encode(reply, with_ids=False),
        }
        return self._stamped(header), None

    def _answered(self) -> None:
        with self._changed:
            self._unanswered -= 1
            self._changed.notify_all()
            if self._detached and not self._unanswered:
                self._session.arrived.put(None)

    def _stamped(self, header: Header) -> Header:
        header.update(self._shard.clock.told())
        return header


def _problem(request: int | None, error: FastiError) -> Header:
    return {"kind": "error", "request": request, "error": error_to_json(error)}


def _priorities(leased: Deliver) -> pa.Array:
    if leased.priority is None:
        return pa.array(np.zeros(len(leased.ids), dtype=np.int32))
    return pa.array(leased.priority.astype(np.int32))


def _reasons(leased: Deliver) -> pa.Array:
    if leased.reasons is None:
        return pa.nulls(len(leased.ids), pa.string())
    return pa.array(leased.reasons, pa.string())


def _expires(leased: Deliver) -> pa.Array:
    moments = leased.expires_us
    if moments is None:
        return pa.nulls(len(leased.ids), pa.int64())
    return pa.array(moments, mask=moments == 0)


def _leased_batch(delivery: Delivery) -> pa.RecordBatch:
    leased, payloads = delivery.leased, delivery.payloads
    # A row of a log is due when it is appended: for one in a block only the block knows when that was.
    due_us = payloads.column("created_us") if leased.group else pa.array(leased.due_us)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(leased.ids),
            due_us,
            pa.array(leased.version.astype(np.int64)),
            pa.array(leased.attempts.astype(np.int32)),
            _priorities(leased),
            _reasons(leased),
            _expires(leased),
            *(payloads.column(name) for name in CONTENT_NAMES),
        ],
        schema=LEASED,
    )
