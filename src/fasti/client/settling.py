"""What became of what a consumer gave back: waiters are told, the rest goes to its failures.

Any thread. Beside a session, returns go here as actions, in the caller's thread.
"""

from __future__ import annotations

import logging
import threading

from fasti.client.failures import Failures, described
from fasti.client.machines.returns import Return, merged
from fasti.client.machines.run import FailureCount
from fasti.client.outcomes import Outcomes
from fasti.client.transport import Header, Transport
from fasti.errors import FastiError, TimedOut

logger = logging.getLogger("fasti.client")


class Waiter:
    """A thread's wait for the outcomes of a return or a reply."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._outcomes: Outcomes | None = None
        self._error: FastiError | None = None

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """The answer is here. Any thread may call it, again with the same answer."""
        self._outcomes, self._error = outcomes, error
        self._answered.set()

    def wait(self, timeout: float | None = None) -> Outcomes | None:
        """The outcomes; None if they did not come in time. Raises the error that refused them."""
        if not self._answered.wait(timeout):
            return None
        if self._error is not None:
            raise self._error
        return self._outcomes


def no_answer(op: str, timeout_s: float) -> TimedOut:
    """The error of a wait that took so long."""
    return TimedOut(
        f"no answer to {op} within {timeout_s:g} s; it is still under way, and timeout=... or "
        "connect(timeout=...) waits longer"
    )


def await_outcomes(
    returned: Return, waiter: Waiter, limit_s: float, failures: FailureCount
) -> Outcomes:
    """The outcomes of a return that was given back with this waiter.

    Raises `timed_out`, and the error that refused it.
    """
    outcomes = waiter.wait(limit_s)
    if outcomes is None:
        raise no_answer(returned.op, limit_s)
    if returned.op != "extend" and not outcomes.all_ok:
        failures.counted(len(outcomes.failed))
    return outcomes


class Settling:
    """For one consumer. `header` names its topic, and its group if it has one.

    The broker takes at most `rows_max` rows at a time.
    """

    def __init__(
        self, transport: Transport, header: Header, failures: Failures, rows_max: int
    ) -> None:
        self._transport = transport
        self._header = header
        self._failures = failures
        self._rows_max = rows_max

    def send(self, returns: list[Return], timeout: float | None = None) -> None:
        """Without a session, the same goes as actions, each within `timeout` seconds."""
        for piece in [part for alike in merged(returns) for part in alike.pieces(self._rows_max)]:
            fields = {name: value for name, value in piece.fields().items() if name != "op"}
            try:
                reply, _ = self._transport.call(
                    piece.op, self._header | fields, [piece.batch()], timeout
                )
                outcomes = piece.outcomes(reply)
            except FastiError as error:
                self.failed(piece, error)
            else:
                piece.settle(outcomes)
                if not outcomes.all_ok:
                    self.rows_failed(piece, outcomes)

    def rows_failed(self, returned: Return, outcomes: Outcomes) -> None:
        """It was answered, and not every row is ok."""
        if returned.waiter is not None:
            return
        if returned.quiet:
            logger.info("%s of %r: %s", returned.op, self._header["topic"], outcomes)
            return
        failed = outcomes.failed.tolist()
        self._failures.counted(len(failed))
        keys = returned.keys()
        self._failures.add(
            returned.op, ({"key": keys[row], **outcomes[row].to_dict()} for row in failed)
        )

    def failed(self, returned: Return, error: FastiError) -> None:
        """It was refused as a whole, or will not be answered."""
        returned.settle(None, error)
        if returned.quiet or returned.waiter is not None:
            logger.info("%s of %r: %s", returned.op, self._header["topic"], error)
            return
        self._failures.counted(returned.rows)
        ids = [int(id_) for run, rows in returned.segments for id_ in run.ids[rows]]
        self._failures.add(
            returned.op,
            (
                {"id": id_, "key": key, **described(error)}
                for id_, key in zip(ids, returned.keys(), strict=True)
            ),
        )
