"""Messages in the hands of user code, under their leases, and what becomes of them.

Each is for the thread that got it, or one that it was given to; acks may come from any thread. What
a message says is read from the columns it came in when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, overload

import numpy as np

from fasti.client.durations import Duration, as_datetime, duration_us
from fasti.client.machines.returns import DueAt, Return, Segment, due_again, release_argument
from fasti.client.machines.run import Run
from fasti.client.outcomes import Outcome
from fasti.client.replies import REPLY_TO, Reply, answer_headers, asked, checked_payload
from fasti.client.settling import Waiter, no_answer
from fasti.errors import IllegalTransition, InvalidArgument
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK


class LeasedRow:
    """What a message says, and where it is among those that it came with."""

    __slots__ = ("_row", "_run")

    def __init__(self, run: Run, row: int) -> None:
        self._run = run
        self._row = row

    # What it says

    @property
    def id(self) -> int:
        """The broker's name for it."""
        return self._run.id_list()[self._row]

    @property
    def topic(self) -> str:
        """Where it comes from."""
        return self._run.topic

    @property
    def payload(self) -> bytes:
        """What was sent."""
        return self._run.payload(self._row)

    @property
    def key(self) -> str | None:
        """The application's own name for it."""
        return self._run.value("key", self._row)

    @property
    def headers(self) -> dict[str, str]:
        """Its headers; empty if it has none."""
        return dict(self._run.value("headers", self._row) or ())

    @property
    def content_type(self) -> str | None:
        """What kind of payload it is."""
        return self._run.value("content_type", self._row)

    @property
    def group(self) -> str:
        """The group that it was handed to; empty if its topic is no log."""
        return self._run.session.group

    @property
    def partition(self) -> int:
        """The partition that it is in."""
        return self.id >> SEQUENCE_BITS

    @property
    def offset(self) -> int:
        """Of a log's message: its place in the partition."""
        return (self.id & SEQUENCE_MASK) - 1

    @property
    def priority(self) -> int:
        """How urgent it is, 0 first; 0 if its topic has no priorities."""
        return self._run.value("priority", self._row)

    @property
    def subject(self) -> str | None:
        """What it is about, if it was sent with a subject."""
        return self._run.value("subject", self._row)

    @property
    def reply_to(self) -> str | None:
        """The inbox of the caller that waits for an answer; None if none does."""
        headers = self._run.value("headers", self._row)
        return dict(headers).get(REPLY_TO) if headers else None

    @property
    def due_us(self) -> int:
        """When it was due, in microseconds."""
        return self._run.due_list()[self._row]

    @property
    def due(self) -> datetime:
        """When it was due."""
        return as_datetime(self.due_us)

    @property
    def started_us(self) -> int:
        """When it was handed to user code, on the broker's clock; never before `due_us`."""
        return self._run.started[self._row]

    @property
    def created(self) -> datetime:
        """When it was sent."""
        return as_datetime(self._run.value("created_us", self._row))

    @property
    def attempts(self) -> int:
        """How often it was handed out, this time included."""
        return self._run.value("attempts", self._row)

    @property
    def attempts_max(self) -> int:
        """After how many attempts it is dead, by the topic's settings when the consumer began.

        0: after none. `message.attempts == message.attempts_max` is the last one.
        """
        return self._run.session.attempts_max

    @property
    def last_reason(self) -> str | None:
        """Why it last came back: what a nack said, or that its lease expired; None if it never did.

        The groups of a log don't keep it.
        """
        return self._run.value("last_reason", self._row)

    @property
    def expires(self) -> datetime | None:
        """By when it had to be begun; None if it is no matter."""
        at_us = self._run.value("expires_us", self._row)
        return None if at_us is None else as_datetime(at_us)

    @property
    def version(self) -> int:
        """How often it was changed."""
        return self._run.value("version", self._row)

    @property
    def token(self) -> int:
        """The fencing token of its lease; another one after a reconnection."""
        return self._run.token_of(self._row)

    @property
    def finished(self) -> bool:
        """Whether it was acked, nacked, rejected or released here."""
        return bool(self._run.finished[self._row])

    # For transactions

    @property
    def segment(self) -> Segment:
        """Its place in the run that it came with."""
        return self._run, np.array([self._row])

    @property
    def place(self) -> dict[str, Any]:
        """Its topic, and the group that consumes it, as the protocol names them."""
        return self._run.session.header

    @property
    def reason_bytes_max(self) -> int:
        """How long the reason of a nack may be."""
        return self._run.session.reason_bytes_max

    def known_token(self, timeout: float) -> int:
        """Its token; while the consumer connects again it waits for the new one."""
        self._run.session.await_tokens(timeout)
        return self.token

    def same_as(self, other: LeasedRow) -> bool:
        """Whether both are the same delivery."""
        return self._run is other._run and self._row == other._row

    def finished_elsewhere(self) -> None:
        """A transaction finished it."""
        self._run.session.finished_elsewhere(self._run, self._row)


class Message(LeasedRow):
    """One message, leased to this consumer.

    Finish it with `ack`, `nack`, `reject` or `release`, once. Those return at once and are gathered;
    if one fails (`stale_lease`: the lease is over) that is counted, logged, given to the consumer's
    `on_failure` and raised by its `flush` or `close`. With `wait=True` they wait for the broker and give an `Outcome`.
    """

    __slots__ = ()

    @overload
    def ack(self, *, wait: Literal[True], timeout: Duration | None = ...) -> Outcome: ...

    @overload
    def ack(self, *, wait: bool = ..., timeout: Duration | None = ...) -> Outcome | None: ...

    def ack(self, *, wait: bool = False, timeout: Duration | None = None) -> Outcome | None:
        """Done. Raises `illegal_transition` if it was finished before."""
        run, row = self._run, self._row
        if wait:
            return self._finish("ack", None, True, timeout)
        if run.finished[row]:
            self._refuse()
        # In this order: the thread that takes back what is unfinished finds it in one of the two.
        run.acks.append(row)
        run.finished[row] = 1
        gathering = run.session.gathering
        gathering.unsent += 1
        if not run.listed or gathering.eager or gathering.unsent >= gathering.hurry:
            run.session.acked(run)
        return None

    @overload
    def nack(
        self,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Outcome: ...

    @overload
    def nack(
        self,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Outcome | None: ...

    def nack(
        self,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Outcome | None:
        """Failed: due again after the topic's retry delay, dead after its last attempt.

        With `delay`, or `at` (`due`), it is due again then. The next delivery has the reason as its
        `last_reason`.
        """
        return self._finish("nack", reason, wait, timeout, due_again(delay, at, due))

    @overload
    def reject(
        self, reason: str = ..., *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Outcome: ...

    @overload
    def reject(
        self, reason: str = ..., *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Outcome | None: ...

    def reject(
        self, reason: str = "", *, wait: bool = False, timeout: Duration | None = None
    ) -> Outcome | None:
        """Failed for good: dead, until it is redriven."""
        return self._finish("reject", reason, wait, timeout)

    @overload
    def release(
        self,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Outcome: ...

    @overload
    def release(
        self,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Outcome | None: ...

    def release(
        self,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Outcome | None:
        """Gives it back: due again at once, after `delay`, or `at` (`due`), whatever its due time was.

        The attempt doesn't count.
        """
        return self._finish("release", release_argument(delay, at, due), wait, timeout)

    @overload
    def extend(
        self, length: Duration, *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Outcome: ...

    @overload
    def extend(
        self, length: Duration, *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Outcome | None: ...

    def extend(
        self, length: Duration, *, wait: bool = False, timeout: Duration | None = None
    ) -> Outcome | None:
        """Has the lease last `length` from now. Mostly not needed: leases renew themselves."""
        return self._return("extend", duration_us(length, "length"), wait, timeout)

    @overload
    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = ...,
        content_type: str | None = ...,
        ack: bool = ...,
        wait: Literal[True] = ...,
        timeout: Duration | None = ...,
    ) -> Outcome: ...

    @overload
    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = ...,
        content_type: str | None = ...,
        ack: bool = ...,
        wait: Literal[False],
        timeout: Duration | None = ...,
    ) -> None: ...

    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        ack: bool = True,
        wait: bool = True,
        timeout: Duration | None = None,
    ) -> Outcome | None:
        """Answers the caller that sent it by `client.call`, and acks it: both or neither.

        `ok`: the answer is on its way. `dead`: it came too late, which `reason` tells, and is kept
        in the topic `_replies`; the message is acked all the same. Anything else, such as
        `stale_lease`: nothing happened, and the message comes again. With `ack=False` it stays
        yours: a second answer to one call would find no caller that waits. With `wait=False` it returns
        at once, like `ack`, and a failure is counted, logged and raised by the consumer's `flush` or
        `close`.

        Raises `invalid_argument` if no caller waits for an answer, `illegal_transition` if the message
        was finished before, `timed_out`.
        """
        reply = self._replying(payload, headers, content_type, ack)
        reply.waiter = waiter = Waiter() if wait else None
        self._run.session.replies.send(reply)
        if waiter is None:
            return None
        limit_s = self._run.session.limit_s(timeout)
        outcomes = waiter.wait(limit_s)
        if outcomes is None:
            raise no_answer("the reply", limit_s)
        return outcomes[0]

    def _replying(
        self,
        payload: bytes,
        headers: Mapping[str, str] | None,
        content_type: str | None,
        ack: bool,
    ) -> Reply:
        run, row = self._run, self._row
        request = self.headers
        to, deadline_us = asked(request)
        pairs = answer_headers(request, headers)
        given = checked_payload(payload, run.session.payload_bytes_max)
        if content_type is not None and not isinstance(content_type, str):
            raise InvalidArgument("content_type must be text", field="content_type")
        if run.finished[row]:
            self._refuse()
        return Reply(run, row, to, deadline_us, given, pairs, content_type, ack)

    def _finish(
        self,
        op: str,
        argument: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Outcome | None:
        run, row = self._run, self._row
        if op in ("nack", "reject"):
            check_reason(argument, run.session.reason_bytes_max)
        if run.finished[row]:
            self._refuse()
        return self._return(op, argument, wait, timeout, when)

    def _return(
        self,
        op: str,
        argument: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Outcome | None:
        rows = np.array([self._row])
        returned = Return(op, argument, [(self._run, rows)], when=when)
        outcomes = self._run.session.give_back(returned, wait, timeout)
        return None if outcomes is None else outcomes[0]

    def _refuse(self) -> None:
        raise IllegalTransition(f"message {self.id} of {self.topic!r} was finished already")

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key {self.key!r}"
        return f"<Message {self.id} of {self.topic!r}{key}, attempt {self.attempts}>"


def check_reason(reason: Any, bytes_max: int) -> None:
    """Refuses what a broker would refuse, before it spoils a request of many."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"a reason must be text, not {reason!r}", field="reason")
    if len(reason.encode(errors="surrogatepass")) > bytes_max:
        raise InvalidArgument(
            f"a reason has at most {bytes_max} bytes", field="reason", limit=bytes_max
        )
