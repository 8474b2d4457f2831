"""A consumer's session with the broker: leases in, returns out, over lost connections.

One thread per consumer connects, writes and keeps leases alive; the stream's reading thread brings
what the broker writes; user threads hand in what they finished. At most one gathered request is
under way at a time, so single acks travel together; batches may have several.

After a reconnection the broker hands the consumer's live leases out again, under new tokens. What
user code has in its hands is not given to it a second time: the message learns its new token. What
was held here unstarted is dropped and comes again. Nothing is returned before all of that is known:
a credit of nothing, which takes the name, and a heartbeat behind it are written, and the heartbeat's
answer comes behind the leases.

A broker ends sessions from which nothing comes. One that has nothing to say asks for the time.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pyarrow as pa

from fasti.client import forking
from fasti.client.absence import absence_of
from fasti.client.credit import Credit
from fasti.client.custody import Custody
from fasti.client.durations import Duration, duration_us
from fasti.client.failures import Failures
from fasti.client.gathering import Gathering
from fasti.client.holding import Holding
from fasti.client.outcomes import Outcomes
from fasti.client.pauses import PASSING, Pauses
from fasti.client.replies import Replies
from fasti.client.returns import Request, Return, Waiter, merged, no_answer
from fasti.client.run import Run, prepare
from fasti.client.settling import Settling
from fasti.client.topics import check_consumable
from fasti.client.transport import Header, Stream, Transport
from fasti.client.window import Window
from fasti.errors import Closed, FastiError, IllegalTransition, TimedOut, Unavailable
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_from_json

logger = logging.getLogger("fasti.client")

_PAUSE_MAX_S = 2.0
_REQUESTS_MAX = 8
# So often within the silence that the broker puts up with, something is written.
_SPEAKS = 5
_LAST_WORD_S = 1.0
_CLOSE_S = 30.0
# What has no answer when the time to close is over is tried once more, for so long.
_LAST_TRY_S = 1.0


class Session:
    """What one consumer has with the broker. Threads as said above."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        consumer: str,
        *,
        prefetch: int | None,
        time_limit_us: int | None,
        limits: Limits,
        group: str = "",
        failures: Failures | None = None,
    ) -> None:
        self.topic = topic
        # Where actions find what is leased here.
        self.header: Header = {"topic": topic, "group": group} if group else {"topic": topic}
        self.group = group
        self.consumer = consumer
        self.credit = Credit(prefetch, limits.credit_max)
        # How long nothing is written at most, and when something is to be next.
        self._speak_every = limits.session_silence_us / _SPEAKS / 1_000_000
        self._speak_at = math.inf
        self.reason_bytes_max = limits.reason_bytes_max
        self.failures = failures or Failures(topic)
        self._rows_max = limits.batch_rows_max
        self.settling = Settling(transport, self.header, self.failures, self._rows_max)
        self.lock = threading.Lock()
        self.holding = Holding(self.lock, transport.clock)
        self.holding.ran_out = self._ran_out
        self.holding.lapsed = self._lapsed
        self.gathering = Gathering(self.window.size)
        self._transport = transport
        self.payload_bytes_max = limits.payload_bytes_max
        # Answers to requests go beside the session, with the acks of what they answer.
        self.replies = Replies(self, transport, self._replied)
        self._time_limit_us = time_limit_us
        self._settings = TopicSettings()
        self._work = threading.Condition(self.lock)
        self._answered = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._stream: Stream | None = None
        # Connections are numbered, and the broker is told, under a name that nobody else has: one
        # that reaches it late is not taken for the newer.
        self._stream_number = 0
        self._life = secrets.token_hex(8)
        self._absence = absence_of(transport)
        self._known = False
        self._custody = Custody()
        # The session's thread will look soon whether what came is opened.
        self._watching = False
        # What comes of a priority topic follows on what was due and came before. Reading thread's.
        self._after_us = 0
        self._returns: list[Return] = []
        self._requests: dict[int, Request] = {}
        self._request_number = 0
        self._heartbeat_number = 0
        # When each heartbeat that has no answer yet was written, on the broker's clock.
        self._beats: deque[int] = deque()
        self._beat_at = 0.0
        self._retry_at = 0.0
        self._pauses = Pauses()
        self._closing = self._over = self._draining = False
        # Answers that are taken from the books, and whose failures are not in theirs yet.
        self._telling = 0
        self._closed = threading.Event()
        self.reconnections = 0
        forking.register(self)

    def start(self) -> None:
        """Connects, once. Raises `not_found` if there is no such topic, `invalid_argument` if it is
        of a kind that can't be consumed.
        """
        if self._started():
            return
        prepare()
        header, _ = self._transport.call("topic", {"topic": self.topic})
        settings = TopicSettings.from_dict(header["settings"])
        check_consumable(self.topic, settings.kind, self.group)
        with self.lock:
            if self._thread is None and not self._closing:
                self._settings = settings
                self._stop_listening = self._transport.clock.listen(self.holding.wake)
                self._thread = threading.Thread(
                    target=self._run, name=f"fasti-consume-{self.topic}", daemon=True
                )
                self._thread.start()

    @property
    def attempts_max(self) -> int:
        """The topic's `max_attempts`; 0 for no bound."""
        return self._settings.max_attempts

    def _started(self) -> bool:
        with self.lock:
            return self._thread is not None or self._closing

    # Forks, see `forking.py`

    def _fork_locks(self) -> list[forking.Lock]:
        """The session's, and that of its replies."""
        return [self.lock, *self.replies._fork_locks()]

    def _forked(self) -> None:
        """In a child process: name, leases and all that is on its way are the parent's."""
        with self.lock:
            self.gathering.take()
            self._requests.clear()
            self._returns = []
            self._closing = self._over = True
            self._thread = self._stream = None
            self._stream_number += 1
            self._telling = 0
            self._closed = threading.Event()
            self._closed.set()
            self._stop_listening = lambda: None
            self.holding.fail(forking.made_before())
        self.replies._forked()

    # User threads

    def limit_s(self, timeout: Duration | None) -> float:
        """How long to wait for an answer."""
        return self._transport.timeout_s if timeout is None else duration_us(timeout) / 1_000_000

    def acked(self, run: Run) -> None:
        """A run has gathered acks."""
        if self.gathering.put(run) or self._over:
            with self.lock:
                self.gathering.told()
                self._work.notify()
                left = self.gathering.take() if self._over else []
            if left:
                self._return_afterwards(left)

    def give_back(
        self,
        returned: Return,
        wait: bool = False,
        timeout: Duration | None = None,
        *,
        finished: bool = False,
    ) -> Outcomes | None:
        """Sends what is to be told about rows; waits for the outcomes if asked to.

        Rows are finished together with being in the books as returned: a connection that is lost at
        this moment finds them in one place or the other, and they learn their new tokens. With
        `finished` the caller has finished them before, otherwise.
        Raises `illegal_transition` if another thread was faster, `timed_out`, and with `wait` the
        error that refused it.
        """
        waiter = None
        if wait:
            returned.waiter = waiter = Waiter()
        with self.lock:
            over = self._over
            if returned.op != "extend" and not finished:
                if any(run.any_finished(rows) for run, rows in returned.segments):
                    raise IllegalTransition(f"a message of {self.topic!r} was finished already")
                for run, rows in returned.segments:
                    run.finish(rows)
            if not over:
                self._returns.append(returned)
                self._work.notify()
        if over:
            self._return_afterwards([returned])
        if waiter is None:
            return None
        limit_s = self.limit_s(timeout)
        outcomes = waiter.wait(limit_s)
        if outcomes is None:
            raise no_answer(returned.op, limit_s)
        if returned.op == "extend" or outcomes.all_ok:
            return outcomes
        self.failures.counted(len(outcomes.failed))
        return outcomes

    def finished_elsewhere(self, run: Run, row: int) -> None:
        """A transaction finished a message: its place is free."""
        with self.lock:
            run.finished[row] = 1
            self._custody.leave(run, [row])
            self._work.notify()

    def in_hand_again(self, run: Run, row: int, *, lost: bool) -> None:
        """What was to finish a message was refused: it is user code's as before.

        With the lock: who takes stock of what nobody finished, and then of what is under way, finds
        it in one of the two. If its lease is `lost` user code may do with it what it likes, but its
        place is free.
        """
        with self.lock:
            run.finished[row] = 0
            if lost:
                self._custody.leave(run, [row])
                self._work.notify()

    @property
    def tokens_known(self) -> bool:
        """Whether all leases have the tokens that the broker knows: not while it reconnects."""
        return self._known or self._over

    def await_tokens(self, timeout: float) -> bool:
        """Waits until they are known; False if they are not in time."""
        with self.lock:
            return self._answered.wait_for(lambda: self.tokens_known, timeout)

    def _replied(self) -> None:
        with self.lock:
            self._answered.notify_all()

    @property
    def window(self) -> Window:
        """How many messages may be here."""
        return self.credit.window

    def want(self, count: int) -> None:
        """User code works on so many messages at once."""
        if not self.window.adapts or count <= self.window.least:
            return  # As known before: every `take` passes here.
        with self.lock:
            self.window.want(count)
            self._resized()

    def want_batches(self, rows: int) -> None:
        """User code works on so many rows at once, and shall not wait for the next."""
        with self.lock:
            self.window.want_batches(rows)
            self._resized()

    def _resized(self) -> None:
        self.gathering.fit(self.window.size)
        self._work.notify()

    def drain(self) -> None:
        """Takes no more and gives back what was not started; what is in hand stays leased."""
        with self.lock:
            if self._draining or self._closing:
                return
            self._draining = True
            self.holding.end()
            for run in self._custody:
                self._give_back_unstarted(run)

    def _give_back_unstarted(self, run: Run) -> None:
        rows = run.unfinished(run.next, run.rows)
        run.rows = run.next
        if len(rows):
            run.finish(rows)
            self._returns.append(Return("release", None, [(run, rows)], quiet=True))
            self._work.notify()

    def _lapsed(self, run: Run, row: int) -> None:
        """With the lock: nobody began a message in time. The broker knows that, and makes it dead."""
        rows = np.array([row])
        run.finish(rows)
        self._returns.append(Return("release", None, [(run, rows)], quiet=True))
        self._work.notify()

    def flush(self, timeout: float | None) -> None:
        """Waits until everything that was returned is answered. Raises `timed_out`."""
        with self.lock:
            self._urge()
            if not self._answered.wait_for(self._all_answered, timeout):
                raise TimedOut(f"not everything returned to {self.topic!r} was answered in time")

    def _ran_out(self) -> None:
        """With the lock: nothing is left here. Acks bring credit; with enough of it they may wait."""
        at_once = self.credit.ran_out()
        if self.credit.count <= 0 and self.window.adapts:
            self._work.notify()  # It may be that more is wanted in hand.
        if at_once or self.holding.void:
            self._urge()

    def _urge(self) -> None:
        """With the lock: acks that wait for others are sent now, and void leases seen to."""
        if self.holding.void:
            self._work.notify()
        if self.gathering.urge():
            self._work.notify()

    def _all_answered(self) -> bool:
        if self._telling:
            return False
        if self._over or self._thread is None:
            return not self.replies.busy
        quiet = all(request.returned.quiet for request in self._requests.values())
        waiting = self._returns or self.replies.busy or any(run.acks for run in self.gathering.runs)
        return quiet and not waiting

    def close(self, timeout: float | None) -> None:
        """Waits for answers, ends the session, gives back what was not started."""
        with self.lock:
            first, self._closing = not self._closing, True
            self.holding.end()
            self._work.notify()
        if not first:
            # Somebody else is at it.
            self._closed.wait(timeout)
            return
        try:
            self._close(timeout)
        finally:
            self._closed.set()

    def close_aside(self) -> None:
        """Closes without anybody to wait for it: the consumer was thrown away."""
        if self._thread is not None and not self._closing:
            threading.Thread(target=self._close_quietly, name="fasti-close", daemon=True).start()

    def _close_quietly(self) -> None:
        try:
            self.close(_CLOSE_S)
        except FastiError as error:
            logger.warning("a consumer of %r was not closed cleanly: %s", self.topic, error)

    def _close(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        problem: FastiError | None = None
        try:
            self.flush(timeout)
        except FastiError as error:
            problem = error
        with self.lock:
            self._over = True
            left = self._left_over()
            self._work.notify()
            self._answered.notify_all()
        self._stop_listening()
        self._absence.left(id(self))
        if self._thread is not None:
            self._thread.join(_left_s(until, 0.1))
        self._end_stream(until)
        self._return_afterwards(left, until)
        self._release_unstarted(until)
        if problem is not None:
            raise problem

    def _end_stream(self, until: float | None) -> None:
        """The broker takes back the credit: nothing more arrives when this has returned."""
        stream = self._stream
        if stream is None:
            return
        stream.finish()
        with self.lock:
            left = _left_s(until, 0.1)
            self._answered.wait_for(lambda: self._stream is None, left)
            self._stream_number += 1
        stream.cancel()

    # After the session

    def _left_over(self) -> list[Return]:
        """What was never answered is tried once more, by itself."""
        left = [each.returned for each in self._requests.values() if not each.returned.quiet]
        for each in left:
            each.again = True
        left += self._returns
        self._requests.clear()
        self._returns = []
        return left + self.gathering.take()

    def _release_unstarted(self, until: float | None) -> None:
        with self.lock:
            found = self._custody.unstarted()
            for run, rows in found:
                run.finish(rows)
        if found:
            self._return_afterwards([Return("release", None, found, quiet=True)], until)

    def _return_afterwards(self, returns: list[Return], until: float | None = None) -> None:
        """Without a session, the same goes as actions."""
        self.settling.send(returns, _left_s(until, _LAST_TRY_S))

    # The session's thread

    def _run(self) -> None:
        while True:
            with self.lock:
                stream, number = self._stream, self._stream_number
                pause = self._retry_at - time.monotonic()
                if self._over:
                    break
                if stream is None and pause > 0:
                    self._work.wait(pause)
                    continue
                void = stream is not None and self.holding.void
            try:
                if void:
                    # A new session is told what is still ours.
                    self._lost(number, Unavailable("leases were not renewed in time"), away=False)
                elif stream is None:
                    self._connect()
                else:
                    self._serve(stream)
            except FastiError as error:
                if stream is not None:
                    self._broke(number, error)
                else:
                    self._lost(None, error)
            except Exception as error:  # The thread must live as long as its consumer.
                logger.exception("the session of %r on %r", self.consumer, self.topic)
                self._lost(None, FastiError(f"{type(error).__name__}: {error}"))

    def _broke(self, number: int, error: FastiError) -> None:
        """A write failed. The end of the session tells more than the write that met it."""
        with self.lock:
            self._work.wait_for(lambda: number != self._stream_number, _LAST_WORD_S)
        self._lost(number, error)

    def _connect(self) -> None:
        with self.lock:
            self._stream_number += 1
            number = self._stream_number
            self._known = False
            self.credit.begin()
            self._request_number += 1
            self._heartbeat_number = self._request_number
            self._beats.clear()
        named = {"consumer": self.consumer, "life": self._life, "attempt": number}
        stream = self._transport.consume(
            {"call": "consume", **self.header, **named},
            lambda header, batch: self._arrived(number, header, batch),
            lambda error: self._ended(number, error),
        )
        with self.lock:
            # Whoever closed it meanwhile could not wait, and doesn't know of this stream.
            useless = number != self._stream_number or self._over
            if not useless:
                self._stream = stream
                self._beat_at = time.monotonic() + self._beat_every()
                self._speak_at = time.monotonic() + self._speak_every
        if useless:
            stream.cancel()
            return
        try:
            stream.send({"op": "credit", "count": 0})
            self._beats.append(self._transport.clock.now_us())
            stream.send({"op": "heartbeat", "request": self._heartbeat_number})
        except FastiError as error:
            self._broke(number, error)

    def _beat_every(self) -> float:
        return self._settings.lease_us / 3_000_000

    def _serve(self, stream: Stream) -> None:
        """Waits until there is something to write, and writes it."""
        with self.lock:
            self._await_work(stream)
            if self._stream is not stream or self._over or self.holding.void:
                return
            returns = self._take_returns()
            if self._stall_s(time.monotonic()) <= 0:
                returns += self.credit.stall(self._custody)
                self.gathering.fit(self.window.size)
            renew = self._known and time.monotonic() >= self._beat_at
            if renew:
                self._beat_at = time.monotonic() + self._beat_every()
                returns += self._custody.overdue(self._overdue_us())
                renewals = self._renewals()
                renew = renewals is None and self._custody.unfinished > 0
                if renew:
                    self._beats.append(self._transport.clock.now_us())
                returns += renewals or []
            pieces = [piece for each in returns for piece in each.pieces(self._rows_max)]
            requests = [self._request(each) for each in pieces]
            withdrawal = self._begin_withdrawal()
            credit = self._take_credit()
            if requests:
                requests[0].credit, credit = credit, 0
            ask = self._must_speak(bool(requests or credit or withdrawal or renew))
        for request in requests:
            fields = {**request.returned.fields(), "request": request.number}
            if request.credit:
                fields["credit"] = request.credit
            stream.send(fields, request.returned.batch())
        if credit:
            stream.send({"op": "credit", "count": credit})
        if withdrawal:
            stream.send({"op": "withdraw", "request": withdrawal})
        if renew:
            stream.send({"op": "heartbeat", "request": 0})
        if ask:
            stream.send({"op": "clock", "request": ask})

    def _must_speak(self, speaks: bool) -> int:
        """The number of a question, if nothing was written for so long that one is to be."""
        now = time.monotonic()
        if not speaks and now < self._speak_at:
            return 0
        self._speak_at = now + self._speak_every
        if speaks or not self._transport.on_network:
            return 0
        self._request_number += 1
        return self._request_number

    def _await_work(self, stream: Stream) -> None:
        gathering = self.gathering
        while self._stream is stream and not self._over and not self.holding.void:
            now, busy = time.monotonic(), len(self._requests)
            wait = None
            if self._known:
                if now >= min(self._beat_at, self._speak_at):
                    return
                wait = min(self._beat_at, self._speak_at) - now
                stall_s = self._stall_s(now)
                if stall_s <= 0:
                    return
                self._watching = stall_s < wait
                wait = min(wait, stall_s)
                self._reach()
                if now < self._retry_at:
                    wait = min(wait, self._retry_at - now)
                elif (self._returns and busy < _REQUESTS_MAX) or (
                    not busy and (gathering.due(now, self._closing) or self._wants_credit())
                ):
                    return
                elif gathering.runs and not busy:
                    wait = min(wait, gathering.wait_s(now))
            gathering.eager = self._known and not gathering.runs
            if gathering.eager and gathering.runs:
                continue  # It came in between, and found nobody eager.
            self._work.wait(wait)
            gathering.eager = self._watching = False

    def _take_returns(self) -> list[Return]:
        if not self._known:
            return []
        taken = merged(self._returns)
        self._returns = []
        if len(self._requests) < _REQUESTS_MAX:
            taken += self.gathering.take()
        return taken

    def _request(self, returned: Return) -> Request:
        self._request_number += 1
        sent_us = self._transport.clock.now_us() if returned.renews else 0
        request = Request(self._request_number, returned, sent_us)
        self._requests[request.number] = request
        if returned.op != "extend" and not returned.again:
            for run, rows in returned.segments:
                self._custody.leave(run, rows)
            if not returned.quiet:
                self.credit.measure(returned.segments[-1], self._transport.clock.now_us())
                self.gathering.fit(self.window.size)
        return request

    # How much may be here

    def _reach(self) -> None:
        """Somebody waits although all that came is in hand: so there are more hands."""
        unsent = self.gathering.runs or self._returns
        if self.holding.awaited and not unsent and not self.holding.holds_any:
            self.credit.reach(self._custody.unfinished)
            self.gathering.fit(self.window.size)

    def _stall_s(self, now: float) -> float:
        if self._draining or self._closing:
            return math.inf
        return self.credit.stall_s(self.holding, now)

    def _begin_withdrawal(self) -> int:
        """The number of a request that takes the credit back, if it is to be."""
        if not self.credit.to_withdraw or not self._known:
            return 0
        self._request_number += 1
        self.credit.withdraw(self._request_number)
        return self._request_number

    def _withdrawn(self, number: int, header: Header) -> None:
        with self.lock:
            if number == self._stream_number:
                self.credit.withdrawn(header["request"], done=True)
                self._work.notify()

    def _wants_credit(self) -> bool:
        return self._takes_credit() and self.credit.wanted(self._custody.unfinished) > 0

    def _takes_credit(self) -> bool:
        return self._known and not self._closing and not self._draining

    def _take_credit(self) -> int:
        return self.credit.take(self._custody.unfinished) if self._takes_credit() else 0

    def _renewals(self) -> list[Return] | None:
        """None for a heartbeat, which renews all. Once user code has held a message for too long,
        the others are renewed by themselves.
        """
        if self._time_limit_us is None:
            return None
        limit_us = self._transport.clock.now_us() - self._time_limit_us
        over, others = self._custody.held_since(limit_us)
        if not over:
            return None
        logger.warning(
            "%d messages of %r are held for longer than their time limit", over, self.topic
        )
        return [Return("extend", self._settings.lease_us, others, quiet=True)] if others else []

    def _overdue_us(self) -> int:
        """What was due here before then, and nobody took, others may have: it is given back."""
        return self._transport.clock.now_us() - self._settings.lease_us

    # The stream's reading thread

    def _arrived(self, number: int, header: Header, batch: pa.RecordBatch | None) -> None:
        kind = header.get("kind")
        if kind == "leased" and batch is not None:
            ranked = bool(header.get("ranked"))
            run = Run(self, int(header["token"]), batch, ranked, self._after_us if ranked else 0)
            run.came_us = int(header["now_us"])
            if ranked:
                self._after_us = max(self._after_us, run.last_due_us())
            run.leased_us = int(header["leased_us"])
            run.until_us = run.leased_us + self._settings.lease_us
            self._leased(number, run)
        elif kind == "outcomes":
            self._outcomes(number, header)
        elif kind == "heartbeat":
            self._heartbeat(number, header)
        elif kind == "withdrawn":
            self._withdrawn(number, header)
        elif kind == "error":
            self._error(number, header)

    def _leased(self, number: int, run: Run) -> None:
        with self.lock:
            if number != self._stream_number:
                return
            if self._known:
                self.credit.came(run.rows)
            run = self._custody.add(run)
            if run.rows:
                if self._draining and not self._closing:
                    # By credit that the broker had before.
                    self._give_back_unstarted(run)
                elif not self._closing:
                    if self.window.adapts and not self._watching:
                        # One that somebody waits for will be opened, unless another came before it.
                        first = self.holding.awaited and not self.holding.holds_any
                        if run.rows > 1 or not first:
                            self._work.notify()
                    self.holding.add(run)

    def _heartbeat(self, number: int, header: Header) -> None:
        with self.lock:
            if number != self._stream_number:
                return
            if self._beats:
                self._custody.renewed(self._beats.popleft(), int(header["now_us"]), self._settings)
            if not self._known and header.get("request") == self._heartbeat_number:
                # Everything that was ours has come again by now.
                self._known = True
                self._pauses.well()
                self._custody.all_known()
                self._work.notify()
                self._answered.notify_all()
        if self._known:
            self._absence.found(id(self))

    def _outcomes(self, number: int, header: Header) -> None:
        with self.lock:
            if number != self._stream_number:
                return
            request = self._requests.pop(header["request"], None)
            if request is not None and request.returned.renews:
                self._custody.renewed(request.sent_us, int(header["now_us"]), self._settings)
            self._work.notify()
            self._telling += 1
        try:
            if request is not None:
                self.settling.succeeded(request.returned, request.returned.outcomes(header))
        finally:
            self._told()

    def _told(self) -> None:
        """Whoever waits until nothing is open finds the failures in their books."""
        with self.lock:
            self._telling -= 1
            self._answered.notify_all()

    def _error(self, number: int, header: Header) -> None:
        error = error_from_json(header["error"])
        asked = header.get("request")
        if asked is None or (not self._known and asked == self._heartbeat_number):
            self._lost(number, error)
            return
        with self.lock:
            if number != self._stream_number:
                return
            if not asked and self._beats:
                self._beats.popleft()
            request = self._requests.pop(header["request"], None)
            self.credit.withdrawn(asked, done=False)
            if request is not None and request.credit:
                # What is not told to be taken was not: it is asked for again.
                self.credit.refused(request.credit, header.get("credit", 0))
            if request is not None and error.code in PASSING:
                request.returned.again = True
                self._returns.append(request.returned)
                pause_s = (error.retry_after_us or 50_000) / 1_000_000
                self._retry_at = time.monotonic() + min(pause_s, _PAUSE_MAX_S)
                request = None
            self._work.notify()
            self._telling += 1
        try:
            if request is not None:
                self.settling.failed(request.returned, error)
        finally:
            self._told()

    def _ended(self, number: int, error: FastiError | None) -> None:
        self._lost(number, error or Closed("the broker ended the session"))

    # Trouble

    def _lost(self, number: int | None, error: FastiError, away: bool = True) -> None:
        """The session is over: connect again, or tell the one who iterates."""
        fatal = error.code not in PASSING
        with self.lock:
            if number is not None and number != self._stream_number:
                return
            stream, self._stream = self._stream, None
            self._answered.notify_all()
            if self._over:
                return
            self._stream_number += 1
            self._known = False
            self.reconnections += 1
            self._retry_at = time.monotonic() + self._pauses.next_s(error)
            self._take_back()
            if fatal:
                self._over = True
                self.holding.fail(error)
            left = self._left_over() if fatal else []
            self._work.notify()
            self._telling += 1
        logger.debug("the session of %r on %r ended: %s", self.consumer, self.topic, error)
        if fatal or self._closing:
            self._absence.left(id(self))
        elif away:
            self._absence.lost(id(self), f"consumer {self.consumer!r} of {self.topic!r}", error)
        try:
            for returned in left:
                self.settling.failed(returned, error)
        finally:
            self._told()
        if stream is not None:
            with suppress(FastiError):
                stream.cancel()

    def _take_back(self) -> None:
        """What was held comes again; what has no answer is asked again, under its new token."""
        for request in self._requests.values():
            if not request.returned.quiet:
                request.returned.again = True
                self._returns.append(request.returned)
        self._requests.clear()
        self._custody.take_back(self._returns)
        # After the rows that nobody has finished: whoever replies lists it here, then finishes it.
        self._custody.remember(self.replies.under_way())
        self.holding.drop_all()


def _left_s(until: float | None, least_s: float) -> float | None:
    return None if until is None else max(least_s, until - time.monotonic())
