"""Answers to requests on their way to the broker: each goes with the ack of its request.

A request is a message with the headers `reply_to`, where the answer goes, `correlation_id`, by which
the caller knows it again, and `deadline_us`, until when the caller waits on the broker's clock.

Replies of one consumer are gathered like acks: the first goes at once, what comes while it is under
way goes together as the next. A thread of their own sends them; it ends when there is nothing to
send for a while. Any thread may add one. What can be tried again is: a request that was answered
before says so, and then the first answer counts.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.client.columns import as_bytes, as_headers
from fasti.client.machines.returns import Listener, Return, Segment
from fasti.client.outcomes import Outcomes
from fasti.client.transport import Header, Transport
from fasti.errors import FastiError, InvalidArgument
from fasti.model import Outcome as Code
from fasti.protocol.schemas import REPLIED, RETURNED

if TYPE_CHECKING:
    from fasti.client.machines.run import Run
    from fasti.client.session import Session

logger = logging.getLogger("fasti.client")

REPLY_TO, CORRELATION_ID, DEADLINE = "reply_to", "correlation_id", "deadline_us"
RESERVED = (REPLY_TO, CORRELATION_ID, DEADLINE)

_AGAIN = {"overloaded", "storage_full", "unknown", "unavailable", "timed_out", "moved"}
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 2.0
# For so long one is tried again while the broker is full or away.
_TRIED_S = 120.0
_ROWS_MAX, _BYTES_MAX = 1_000, 8 << 20
# A thread with nothing to send ends after this long.
_IDLE_S = 1.0
# Of one that may have been carried out before: what shows that it was.
_HAD_HAPPENED = (Code.DONE, Code.GONE)


@dataclass(slots=True, eq=False)
class Reply:
    """One answer, and the request that it ends."""

    run: Run
    row: int
    to: str
    deadline_us: int | None
    payload: bytes
    headers: list[tuple[str, str]]
    content_type: str | None
    # Whether the request is acked with it.
    ack: bool
    waiter: Listener | None = None
    again: bool = False
    token: int = 0
    give_up_at: float = 0.0

    @property
    def segment(self) -> Segment:
        """Its place in the run that it came with."""
        return self.run, np.array([self.row])


def asked(headers: Mapping[str, str]) -> tuple[str, int | None]:
    """Where the answer to a request goes, and until when it is waited for.

    Raises `invalid_argument` if no caller waits for one.
    """
    to = headers.get(REPLY_TO)
    if not to:
        raise InvalidArgument(
            "the message has no header reply_to: no caller waits for a reply", field=REPLY_TO
        )
    deadline = headers.get(DEADLINE)
    try:
        return to, None if deadline is None else int(deadline)
    except ValueError:
        raise InvalidArgument(f"{deadline!r} is not a deadline_us", field=DEADLINE) from None


def answer_headers(
    request: Mapping[str, str], given: Mapping[str, str] | None
) -> list[tuple[str, str]]:
    """The headers of an answer: those given, and the name by which the caller knows it."""
    pairs = [] if given is None else as_headers(given)
    for name, _ in pairs:
        if name in RESERVED:
            raise InvalidArgument(f"the header {name!r} is set by reply itself", field="headers")
    known = request.get(CORRELATION_ID)
    return pairs if known is None else [*pairs, (CORRELATION_ID, known)]


def checked_payload(payload: Any, bytes_max: int) -> bytes:
    """A payload that the broker will take: one that it refuses would hold up others."""
    data = as_bytes(payload)
    if len(data) > bytes_max:
        raise InvalidArgument(
            f"payload has {len(data)} bytes, the limit is {bytes_max}",
            field="payload",
            limit=bytes_max,
        )
    return data


class Replies:
    """The answers of one consumer. `settled` is called, without a lock, after each batch."""

    def __init__(self, session: Session, transport: Transport, settled: Callable[[], None]) -> None:
        self._session = session
        self._transport = transport
        self._settled = settled
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: list[Reply] = []
        # What has no answer yet, whether it was written or not.
        self._open: dict[Reply, None] = {}
        self._thread: threading.Thread | None = None

    def send(self, reply: Reply) -> None:
        """Takes one; it is sent at once, or with others that wait."""
        reply.give_up_at = time.monotonic() + _TRIED_S
        with self._lock:
            self._open[reply] = None
            if reply.ack:
                reply.run.finished[reply.row] = 1
            self._queue.append(reply)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"fasti-replies-{self._session.topic}", daemon=True
                )
                self._thread.start()
            self._work.notify()

    def _fork_locks(self) -> list[threading.Lock]:
        """Taken before the process forks."""
        return [self._lock]

    def _forked(self) -> None:
        """In a child process: what is on its way is the parent's."""
        self._work = threading.Condition(self._lock)
        self._queue, self._open, self._thread = [], {}, None

    @property
    def busy(self) -> bool:
        """Whether one has no answer yet."""
        return bool(self._open)

    def under_way(self) -> list[Return]:
        """The requests that are being answered, as the session's books have returns."""
        with self._lock:
            return [Return("ack", None, [reply.segment]) for reply in self._open if reply.ack]

    # The thread

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._lock:
                if pause:
                    self._work.wait(pause)
                elif not self._queue and not self._work.wait(_IDLE_S) and not self._queue:
                    self._thread = None
                    return
                taken = self._take()
            pause = self._carry_out(taken) if taken else 0.0

    def _take(self) -> list[Reply]:
        """As many as travel together: all acked with their requests, or none."""
        size_bytes = count = 0
        for reply in self._queue[:_ROWS_MAX]:
            size_bytes += len(reply.payload)
            if reply.ack != self._queue[0].ack or (count and size_bytes > _BYTES_MAX):
                break
            count += 1
        taken = self._queue[:count]
        del self._queue[:count]
        return taken

    def _carry_out(self, replies: list[Reply]) -> float:
        """Sends them; returns how long to wait before the next try."""
        for reply in replies:
            reply.token = reply.run.token_of(reply.row)
        try:
            header, _ = self._transport.call("reply", self._header(replies), _parts(replies))
            outcomes = Outcomes.of_reply(header)
        except FastiError as error:
            return self._failed(replies, error)
        except Exception as error:  # The thread must live as long as there are replies.
            logger.exception("replies of %r", self._session.topic)
            return self._failed(replies, FastiError(f"{type(error).__name__}: {error}"))
        pause = 0.0
        for row, reply in enumerate(replies):
            code = int(outcomes.codes[row])
            if code == Code.STALE_LEASE and self._has_other_token(reply):
                pause = _PAUSE_FIRST_S
                with self._lock:
                    self._queue.append(reply)
            elif reply.again and code in _HAD_HAPPENED:
                self._settle(reply, outcomes.only(row, ok=True))
            else:
                self._settle(reply, outcomes.only(row))
        self._settled()
        return pause

    def _has_other_token(self, reply: Reply) -> bool:
        """Whether the lease goes on under another token, or may: the session reconnects."""
        if time.monotonic() >= reply.give_up_at:
            return False
        known = self._session.tokens_known
        return not known or reply.run.token_of(reply.row) != reply.token

    def _header(self, replies: list[Reply]) -> Header:
        return self._session.header if replies[0].ack else {}

    def _failed(self, replies: list[Reply], error: FastiError) -> float:
        now = time.monotonic()
        if error.code not in _AGAIN and len(replies) > 1:
            # One of them is refused: each by itself.
            for reply in replies:
                reply.again = True
                self._carry_out([reply])
            return 0.0
        late = [r for r in replies if error.code not in _AGAIN or now >= r.give_up_at]
        for reply in late:
            self._settle(reply, None, error)
        again = [reply for reply in replies if reply not in late]
        for reply in again:
            reply.again = True
        with self._lock:
            self._queue[:0] = again
        self._settled()
        if not again:
            return 0.0
        retry_s = (error.retry_after_us or 0) / 1_000_000
        return max(_PAUSE_FIRST_S, min(retry_s, _PAUSE_MAX_S)) * random.uniform(0.8, 1.2)

    def _settle(
        self, reply: Reply, outcomes: Outcomes | None, error: FastiError | None = None
    ) -> None:
        session = self._session
        answered = outcomes is not None and outcomes.codes[0] in (Code.OK, Code.DEAD)
        if reply.ack and answered:
            session.finished_elsewhere(reply.run, reply.row)
        if reply.waiter is not None:
            if reply.ack and not answered:
                # Refused for its lease, it is not ours any more.
                session.in_hand_again(reply.run, reply.row, lost=outcomes is not None)
            reply.waiter.settle(outcomes, error)
        elif not answered:
            self._let_go(reply, outcomes, error)
        elif outcomes is not None and not outcomes.all_ok:
            logger.info("a reply to %r came too late: %s", reply.to, outcomes[0].reason)
        # Last: a thread that waits until nothing is open finds all of this done.
        with self._lock:
            self._open.pop(reply, None)

    def _let_go(self, reply: Reply, outcomes: Outcomes | None, error: FastiError | None) -> None:
        """It failed and was not waited for: that is counted, and the request is free."""
        if reply.ack:
            if error is not None:
                # The broker would not have it, and others may do better.
                why = f"its reply was refused: {error.message}"
                why = why.encode()[: self._session.reason_bytes_max].decode(errors="ignore")
                self._session.give_back(Return("nack", why, [reply.segment]), finished=True)
            else:
                self._session.finished_elsewhere(reply.run, reply.row)
        told: dict[str, Any] = {
            "id": reply.run.id_list()[reply.row],
            "key": reply.run.key(reply.row),
        }
        if error is not None:
            told |= {"status": error.code, "message": error.message}
        elif outcomes is not None:
            told |= outcomes[0].to_dict()
        self._session.failures.counted()
        self._session.failures.add("reply", [told])


def _parts(replies: list[Reply]) -> list[pa.RecordBatch]:
    answers = pa.RecordBatch.from_arrays(
        [
            pa.array([reply.to for reply in replies], type=pa.string()),
            pa.array([reply.deadline_us for reply in replies], type=pa.int64()),
            pa.array([reply.payload for reply in replies], type=pa.binary()),
            pa.array([reply.headers or None for reply in replies], type=REPLIED.field(3).type),
            pa.array([reply.content_type for reply in replies], type=pa.string()),
        ],
        schema=REPLIED,
    )
    if not replies[0].ack:
        return [answers]
    requests = pa.RecordBatch.from_arrays(
        [
            pa.array([reply.run.id_list()[reply.row] for reply in replies], type=pa.int64()),
            pa.array([reply.token for reply in replies], type=pa.int64()),
            pa.array([reply.run.started[reply.row] for reply in replies], type=pa.int64()),
            pa.nulls(len(replies), pa.int64()),
        ],
        schema=RETURNED,
    )
    return [answers, requests]
