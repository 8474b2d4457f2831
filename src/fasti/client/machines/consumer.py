"""A consumer's session with the broker, without I/O: leases in, returns out, over lost connections.

The shell calls `poll` whenever it was woken or its wait is over, and does what the `Step` says: wait,
connect, write, begin a new session, end. What the broker writes goes into `receive`, a lost connection
into `lose`, what user code does into the other methods; after each call the shell looks at `work`,
`answered` and `holding.changed`, wakes who waits for that and clears it.

At most one gathered request is under way at a time, so single acks travel together; batches may have
several. After a reconnection the broker hands the consumer's live leases out again, under new tokens.
What user code has in its hands is not given to it a second time: the message learns its new token.
What was held here unstarted is dropped and comes again. Nothing is returned before all of that is
known: a credit of nothing, which takes the name, and a heartbeat behind it are written, and the
heartbeat's reply comes behind the leases.

A broker ends sessions from which nothing comes. One that has nothing to say asks for the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fasti.client.machines.credit import Credit
from fasti.client.machines.holding import Custody, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.returns import Gathering, Header, Request, Requests, Return
from fasti.client.machines.run import Run
from fasti.client.pauses import PASSING, Pauses
from fasti.errors import FastiError, IllegalTransition
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_from_json

_PAUSE_MAX_S = 2.0
# Leases are renewed after a third of their length.
_BEAT_S_PER_LEASE_US = 1 / 3_000_000
# So often within the silence that the broker tolerates, something is written.
_WRITES_PER_SILENCE = 5

Write = tuple[Header, Return | None]


@dataclass(slots=True)
class Step:
    """What the shell does next.

    `resume`: leases were not renewed in time, so a new session has to say what is still ours.
    """

    action: Literal["wait", "connect", "write", "resume", "end"]
    wait_s: float = 0.0
    # In this order; the rows of a return are encoded by the shell, outside of its lock.
    writes: list[Write] = field(default_factory=list)
    # How many messages user code has held for longer than the time limit, to be logged.
    overlong: int = 0


class ConsumerMachine:
    """What one consumer has with the broker. For one caller at a time.

    `life` is a name that no other consumer has; `draw` gives random numbers from 0 to 1. Where acks
    do not `linger`, they are sent as soon as user code waits for a message.
    """

    def __init__(
        self,
        topic: str,
        consumer: str,
        life: str,
        *,
        prefetch: int | None,
        time_limit_us: int | None,
        limits: Limits,
        draw: Callable[[], float],
        on_network: bool,
        linger: bool = True,
        credit: Credit | None = None,
    ) -> None:
        self._topic, self._linger, self._on_network = topic, linger, on_network
        self._time_limit_us = time_limit_us
        self._rows_max = limits.batch_rows_max
        # How long nothing is written at most, and when something is to be next.
        self._speak_every_s = limits.session_silence_us / _WRITES_PER_SILENCE / 1_000_000
        self._speak_at = math.inf
        self.settings = TopicSettings()
        self.credit = credit or Credit(prefetch, limits.credit_max)
        self.holding = Holding(self._ran_out, self._release)
        self.custody = Custody()
        self.gathering = Gathering(self.credit.share)
        # There is something for `poll`; something was answered, or the end came.
        self.work = self.answered = False
        # Connections are numbered, and the broker is given the number with the consumer's `life`: one
        # that reaches it late is not taken for the newer.
        self.stream_number = 0
        self._identity = {"consumer": consumer, "life": life}
        self._connected = False
        # All leases have the tokens that the broker knows.
        self.known = False
        self.reconnections = 0
        self.closing = self.over = self._draining = False
        self._requests = Requests()
        # The request whose reply comes behind all leases that the consumer has.
        self._heartbeat_number = 0
        # When each heartbeat that has no reply yet was written, on the broker's clock.
        self._beats: deque[int] = deque()
        self._beat_at = self._retry_at = 0.0
        self._pauses = Pauses(draw)
        # `poll` will look soon whether what came is opened.
        self._watching = False

    # User code

    def give_back(self, returned: Return, *, finished: bool = False) -> bool:
        """Takes what is to be sent about rows; False if the session is over and the shell sends it.

        Rows are finished together with being in the books as returned: a connection that is lost at
        this moment finds them in one place or the other, and they learn their new tokens. With
        `finished` the caller has finished them before.
        Raises `illegal_transition` if one was finished before, otherwise.
        """
        if returned.op != "extend" and not finished:
            if any(run.any_finished(rows) for run, rows in returned.segments):
                raise IllegalTransition(f"a message of {self._topic!r} was finished already")
            for run, rows in returned.segments:
                run.finish(rows)
        if not self.over:
            self._requests.add(returned)
            self.work = True
        return not self.over

    def send_acks(self) -> list[Return]:
        """Acks were gathered and should not wait. If the session is over, the shell sends them."""
        self.gathering.wake()
        self.work = True
        return self.gathering.take() if self.over else []

    def finish_elsewhere(self, run: Run, row: int) -> None:
        """A transaction or a reply finished a message: its place is free."""
        run.finished[row] = 1
        self.custody.leave(run, [row])
        self.work = True

    def put_in_hand(self, run: Run, row: int, *, lost: bool) -> None:
        """What was to finish a message was refused: it is user code's as before.

        If its lease is `lost` user code may do with it what it likes, but its place is free.
        """
        run.finished[row] = 0
        if lost:
            self.custody.leave(run, [row])
            self.work = True

    def want(self, rows: int, *, batches: bool = False) -> None:
        """User code works on so many at once; with `batches` it shall not wait for the next ones."""
        window = self.credit.window
        if batches:
            window.want_batches(rows)
        else:
            window.want(rows)
        self.gathering.fit(self.credit.share)
        self.work = True

    def urge(self) -> None:
        """Acks that wait for others are sent now, and void leases seen to."""
        if self.gathering.urge() or self.holding.void:
            self.work = True

    def mark(self) -> int:
        """Has what user code returned so far go; `is_answered` tells when all of it is answered."""
        self.urge()
        if not self.over:
            for returned in self.gathering.take():
                self._requests.add(returned)
                self.work = True
        return self._requests.added

    def is_answered(self, mark: int | None) -> bool:
        """Whether everything that was returned before the mark is answered; without one, all."""
        if self.over:
            return True
        if mark is not None:
            return self._requests.answered_to(mark)
        return self._requests.all_answered and not any(run.acks for run in self.gathering.runs)

    def drain(self) -> None:
        """Takes no more and gives back what was not started; what is in hand stays leased."""
        if not self._draining and not self.closing:
            self._draining = True
            self.holding.end()
            for run in self.custody:
                self._release_unstarted(run)

    def close(self) -> bool:
        """Hands out nothing more. False if that was so before."""
        first, self.closing = not self.closing, True
        self.holding.end()
        self.work = True
        return first

    def end(self) -> list[Return]:
        """The session is over. Gives what was never answered, for the shell to try once more."""
        self.over = self.work = self.answered = True
        return self._requests.take_unanswered() + self.gathering.take()

    def abandon(self, error: FastiError) -> None:
        """In a forked process: name, leases and all that is on its way are the parent's."""
        self._requests.take_unanswered()
        self.gathering.take()
        self.closing = self.over = True
        self._connected = False
        self.stream_number += 1
        self.holding.fail(error)

    def _release(self, run: Run, rows: NDArray[np.intp]) -> None:
        """Rows that user code will not begin. Those that expired the broker makes dead."""
        run.finish(rows)
        self._requests.add(Return("release", None, [(run, rows)], quiet=True))
        self.work = True

    def _release_unstarted(self, run: Run, count: int | None = None) -> None:
        """Its last `count` rows that user code has not begun; without it, all."""
        begin = run.next if count is None else max(run.next, run.rows - count)
        rows = run.unfinished(begin, run.rows)
        run.rows = begin
        if len(rows):
            self._release(run, rows)
            if count is not None:
                # Their places are free.
                self.custody.leave(run, rows)

    def _ran_out(self) -> None:
        """Nothing is left here. Acks bring credit; with enough of it they may wait."""
        at_once = self.credit.ran_out() or not self._linger
        if self.credit.count <= 0 and self.credit.window.adapts:
            self.work = True  # It may be that more is wanted in hand.
        if at_once or self.holding.void:
            self.urge()

    # The connection

    def poll(self, now: Now) -> Step:
        """What to do now. A thread that waits by it polls again when it is woken."""
        self.work = self.gathering.eager = self._watching = False
        if self.over:
            return Step("end")
        if not self._connected:
            pause_s = self._retry_at - now.s
            return Step("wait", pause_s) if pause_s > 0 else Step("connect")
        if self.holding.void:
            return Step("resume")
        while (wait_s := self._wait_s(now)) > 0:
            self.gathering.eager = self.known and not self.gathering.runs
            if not self.gathering.eager or not self.gathering.runs:
                return Step("wait", wait_s)
            # An ack came in between, and found nothing eager: look again.
        return self._write(now)

    def connect(self) -> tuple[int, Header]:
        """Begins to connect: the connection's number, and who connects, for the broker."""
        self.stream_number += 1
        self.known = False
        self.credit.begin()
        self._heartbeat_number = self._requests.next_number()
        self._beats.clear()
        return self.stream_number, {**self._identity, "attempt": self.stream_number}

    def open(self, number: int, now: Now) -> list[Write] | None:
        """A connection was made: what is written first. None if it is not wanted any more."""
        if number != self.stream_number or self.over:
            return None
        self._connected = True
        self._beat_at = now.s + self.settings.lease_us * _BEAT_S_PER_LEASE_US
        self._speak_at = now.s + self._speak_every_s
        self._beats.append(now.us)
        return [
            ({"op": "credit", "count": 0}, None),
            ({"op": "heartbeat", "request": self._heartbeat_number}, None),
        ]

    def lose(self, error: FastiError, now: Now) -> list[Return] | None:
        """The connection is lost, or could not be made.

        None: connect again. Otherwise the session is over, and these returns have failed.
        """
        self._connected = False
        self.answered = True
        if self.over:
            return []
        self.stream_number += 1
        self.known = False
        self.reconnections += 1
        self.work = True
        self._retry_at = now.s + self._pauses.next_s(error)
        self.custody.take_back(self._requests.retry_all())
        self.holding.drop_all()
        if error.code in PASSING:
            return None
        self.over = True
        self.holding.fail(error)
        return self._requests.take_unanswered() + self.gathering.take()

    # What is written

    def _wait_s(self, now: Now) -> float:
        """How long until there is something to write; 0 or less if there is."""
        if not self.known:
            return math.inf
        if self.credit.shared and self.credit.to_withdraw:
            return 0.0
        wait_s = min(self._beat_at, self._speak_at) - now.s
        stall_s = self._stall_s(now)
        if min(wait_s, stall_s) <= 0:
            return 0.0
        self._watching = stall_s < wait_s
        wait_s = min(wait_s, stall_s)
        unsent = self.gathering.runs or self._requests.waiting
        if self.holding.takers and not unsent and not self.holding.holds_any:
            # A taker waits although all that came is in hand: so there are more hands.
            self.credit.reach(self.custody.unfinished)
            self.gathering.fit(self.credit.share)
        if now.s < self._retry_at:
            return min(wait_s, self._retry_at - now.s)
        if self._requests.waiting and self._requests.has_room:
            return 0.0
        if self._requests.idle:
            if self.gathering.due(now.s, self.closing):
                return 0.0
            if self.takes and self.credit.wanted(self.custody.unfinished, now.s) > 0:
                return 0.0
            if self.gathering.runs:
                wait_s = min(wait_s, self.gathering.wait_s(now.s))
            return min(wait_s, self.credit.look_at - now.s)
        return wait_s

    def _write(self, now: Now) -> Step:
        step = Step("write")
        returns: list[Return] = []
        if self.known:
            returns = self._requests.take_waiting()
            if self._requests.has_room:
                returns += self.gathering.take()
        if self._stall_s(now) <= 0:
            returns += self.credit.stall(self.custody)
            self.gathering.fit(self.credit.share)
        beat = self.known and now.s >= self._beat_at
        if beat:
            self._beat_at = now.s + self.settings.lease_us * _BEAT_S_PER_LEASE_US
            # What was due here a lease ago and is not opened, other consumers may have.
            returns += self.custody.overdue(now.us - self.settings.lease_us)
            if self._time_limit_us is not None:
                limit_us = now.us - self._time_limit_us
                step.overlong, renewals = self.custody.renewals(limit_us, self.settings.lease_us)
                returns += renewals
            beat = not step.overlong and self.custody.unfinished > 0
            if beat:
                self._beats.append(now.us)
        pieces = [piece for returned in returns for piece in returned.pieces(self._rows_max)]
        requests = [self._request(piece, now) for piece in pieces]
        withdrawal = self._requests.next_number() if self.known and self.credit.to_withdraw else 0
        if withdrawal:
            self.credit.withdraw(withdrawal)
        # The credit goes with the first request, if there is one.
        credit = self.credit.ask(self.custody.unfinished, now.s) if self.takes else 0
        for request in requests:
            header = {**request.returned.fields(), "request": request.number}
            if credit:
                header["credit"] = request.credit = credit
                self.credit.under_way += credit
                credit = 0
            step.writes.append((header, request.returned))
        if credit:
            step.writes.append(({"op": "credit", "count": credit}, None))
        if withdrawal:
            step.writes.append(({"op": "withdraw", "request": withdrawal}, None))
        if beat:
            step.writes.append(({"op": "heartbeat", "request": 0}, None))
        if not step.writes and now.s >= self._speak_at and self._on_network:
            step.writes.append(({"op": "clock", "request": self._requests.next_number()}, None))
        if step.writes or now.s >= self._speak_at:
            self._speak_at = now.s + self._speak_every_s
        return step

    def _request(self, returned: Return, now: Now) -> Request:
        if returned.op != "extend" and not returned.again:
            for run, rows in returned.segments:
                self.custody.leave(run, rows)
            if not returned.quiet:
                self.credit.measure(returned.segments[-1], now.us)
                self.gathering.fit(self.credit.share)
        return self._requests.begin(returned, now.us)

    def _stall_s(self, now: Now) -> float:
        if self._draining or self.closing:
            return math.inf
        return self.credit.stall_s(self.holding, now)

    @property
    def takes(self) -> bool:
        """Whether messages may be asked for."""
        return self.known and not self.closing and not self._draining

    # What the broker writes

    def ends_session(self, header: Header) -> bool:
        """Whether an error is no reply to a request, but the end of the session."""
        request = header.get("request")
        return request is None or (not self.known and request == self._heartbeat_number)

    def lease(self, run: Run) -> None:
        """Messages came."""
        if self.known:
            self.credit.spend(run.rows)
        run = self.custody.add(run)
        if not run.rows or self.closing:
            return
        if self._draining:
            # By credit that the broker had before.
            self._release_unstarted(run)
            return
        if self.credit.window.adapts and not self._watching:
            # One that a taker waits for will be opened, unless another came before it.
            first = self.holding.takers > 0 and not self.holding.holds_any
            if run.rows > 1 or not first:
                self.work = True
        self.holding.add(run)
        if self.credit.shared and (surplus := self.credit.surplus()):
            # By credit that stood at a shard while those of others took the places.
            self._release_unstarted(run, surplus)

    def receive(self, header: Header, now: Now) -> tuple[Return, FastiError | None] | None:
        """A reply came. If it settles a return, that, and the error that refused it."""
        kind = header.get("kind")
        if kind == "heartbeat":
            self._receive_heartbeat(header)
        elif kind == "withdrawn":
            self.credit.end_withdrawal(header["request"], done=True)
            self.work = True
        elif kind == "outcomes":
            self.work = True
            request = self._requests.answer(header["request"])
            if request is not None:
                self.credit.under_way -= request.credit
                if request.returned.renews:
                    self.custody.renew(request.sent_us, int(header["now_us"]), self.settings)
                return request.returned, None
        elif kind == "error":
            return self._receive_error(header, now)
        return None

    def _receive_heartbeat(self, header: Header) -> None:
        if self._beats:
            self.custody.renew(self._beats.popleft(), int(header["now_us"]), self.settings)
        if not self.known and header.get("request") == self._heartbeat_number:
            # Everything that was ours has come again by now.
            self.known = self.work = self.answered = True
            self._pauses.well()
            self.custody.end_resuming()

    def _receive_error(self, header: Header, now: Now) -> tuple[Return, FastiError | None] | None:
        error, number = error_from_json(header["error"]), header["request"]
        self.work = True
        if not number and self._beats:
            self._beats.popleft()
        self.credit.end_withdrawal(number, done=False)
        request = self._requests.answer(number)
        if request is None:
            return None
        if request.credit:
            # What was not taken is asked for again.
            self.credit.under_way -= request.credit
            self.credit.restore(request.credit, header.get("credit", 0))
        if error.code not in PASSING:
            return request.returned, error
        self._requests.retry(request.returned)
        pause_s = (error.retry_after_us or 50_000) / 1_000_000
        self._retry_at = now.s + min(pause_s, _PAUSE_MAX_S)
        return None
