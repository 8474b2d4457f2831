"""Messages and batches of messages in the hands of tasks, under their leases.

As in the synchronous SDK, finishing one takes effect at once and is gathered with others: `ack()`
needs no `await`, and may be called by any thread. Awaiting it does no harm. With `wait=True` the
`await` is for the broker's answer, and for tasks of the client's loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from datetime import datetime
from typing import Any, Literal, cast, overload

import numpy as np
from numpy.typing import NDArray

from fasti.aio.session import LoopReturns, LoopWaiter
from fasti.client import batch as sync_batch
from fasti.client import message as sync
from fasti.client.durations import Duration, duration_us
from fasti.client.machines.returns import DueAt, Return, due_again, release_argument
from fasti.client.outcomes import Outcome, Outcomes


class _NothingToAwait:
    """What to await when there is nothing to wait for."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_NOTHING = _NothingToAwait()


class Message(sync.Message):
    """One message, leased to this consumer; it says what `fasti.Message` says.

    Finish it with `ack`, `nack`, `reject` or `release`, once. Those take effect at once, without
    `await`; if one fails (`stale_lease`: the lease is over) that is counted, logged, given to the
    consumer's `on_failure` and raised by its `flush` or `close`.
    `await message.ack(wait=True)` waits for the broker and gives an `Outcome`.
    """

    __slots__ = ()

    @overload  # type: ignore[override]
    def ack(self, *, wait: Literal[True], timeout: Duration | None = ...) -> Awaitable[Outcome]: ...

    @overload
    def ack(
        self, *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Awaitable[Outcome | None]: ...

    def ack(
        self, *, wait: bool = False, timeout: Duration | None = None
    ) -> Awaitable[Outcome | None]:
        """Done. Raises `illegal_transition` if it was finished before."""
        if wait:
            return self._finished("ack", None, True, timeout)
        super().ack()
        return _NOTHING

    @overload  # type: ignore[override]
    def nack(
        self,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome]: ...

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
    ) -> Awaitable[Outcome | None]: ...

    def nack(
        self,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcome | None]:
        """Failed: due again after the topic's retry delay, dead after its last attempt.

        With `delay`, or `at` (`due`), it is due again then. The next delivery has the reason as its
        `last_reason`.
        """
        return self._finished("nack", reason, wait, timeout, due_again(delay, at, due))

    @overload  # type: ignore[override]
    def reject(
        self, reason: str = ..., *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Awaitable[Outcome]: ...

    @overload
    def reject(
        self, reason: str = ..., *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Awaitable[Outcome | None]: ...

    def reject(
        self, reason: str = "", *, wait: bool = False, timeout: Duration | None = None
    ) -> Awaitable[Outcome | None]:
        """Failed for good: dead, until it is redriven."""
        return self._finished("reject", reason, wait, timeout)

    @overload  # type: ignore[override]
    def release(
        self,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome]: ...

    @overload
    def release(
        self,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome | None]: ...

    def release(
        self,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcome | None]:
        """Gives it back: due again at once, after `delay`, or `at` (`due`), whatever its due time was.

        The attempt doesn't count.
        """
        return self._finished("release", release_argument(delay, at, due), wait, timeout)

    @overload  # type: ignore[override]
    def extend(
        self, length: Duration, *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Awaitable[Outcome]: ...

    @overload
    def extend(
        self, length: Duration, *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Awaitable[Outcome | None]: ...

    def extend(
        self, length: Duration, *, wait: bool = False, timeout: Duration | None = None
    ) -> Awaitable[Outcome | None]:
        """Has the lease last `length` from now. Mostly not needed: leases renew themselves."""
        return self._return("extend", duration_us(length, "length"), wait, timeout)

    @overload  # type: ignore[override]
    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = ...,
        content_type: str | None = ...,
        ack: bool = ...,
        wait: Literal[True] = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome]: ...

    @overload
    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = ...,
        content_type: str | None = ...,
        ack: bool = ...,
        wait: bool,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcome | None]: ...

    def reply(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        ack: bool = True,
        wait: bool = True,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcome | None]:
        """Answers the caller that sent it by `client.call`, and acks it: both or neither.

        It is sent at once; the `await` is for the outcome, which says what `fasti.Message.reply`
        says. With `wait=False` there is nothing to wait for.
        """
        reply = self._replying(payload, headers, content_type, ack)
        session = cast(LoopReturns, self._run.session)
        if not wait:
            session.replies.send(reply)
            return _NOTHING
        session.home.check()
        reply.waiter = waiter = LoopWaiter(session.home)
        session.replies.send(reply)
        return _first(waiter.outcomes("the reply", session.limit_s(timeout)))

    def _finished(
        self,
        op: str,
        argument: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Awaitable[Outcome | None]:
        return cast(Awaitable[Outcome | None], self._finish(op, argument, wait, timeout, when))

    def _return(  # type: ignore[override]
        self,
        op: str,
        argument: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Awaitable[Outcome | None]:
        returned = Return(op, argument, [(self._run, np.array([self._row]))], when=when)
        outcomes = _give_back(returned, wait, timeout)
        return _NOTHING if outcomes is None else _first(outcomes)


class Batch(sync_batch.Batch):
    """Many messages at once, in columns: `table` has id, due_us, version, attempts, key, payload, ...

    async for batch in client.consumer("emails").batches(10_000):
        good = check(batch.table)              # a boolean for each row
        batch.nack(~good, "no address")
        batch.ack()                            # the rest
    """

    __slots__ = ()

    @property
    def messages(self) -> list[Message]:  # type: ignore[override]
        """The rows one by one."""
        return [Message(run, row) for run, rows in self._segments for row in rows.tolist()]

    @overload  # type: ignore[override]
    def ack(
        self, mask: Any = ..., *, wait: Literal[True], timeout: Duration | None = ...
    ) -> Awaitable[Outcomes]: ...

    @overload
    def ack(
        self, mask: Any = ..., *, wait: bool = ..., timeout: Duration | None = ...
    ) -> Awaitable[Outcomes | None]: ...

    def ack(
        self, mask: Any = None, *, wait: bool = False, timeout: Duration | None = None
    ) -> Awaitable[Outcomes | None]:
        """Done: the rows where `mask` is true, or all that are not finished yet."""
        return self._finish("ack", None, mask, wait, timeout)

    @overload  # type: ignore[override]
    def nack(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes]: ...

    @overload
    def nack(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes | None]: ...

    def nack(
        self,
        mask: Any = None,
        reason: str = "",
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcomes | None]:
        """Failed: due again after the topic's retry delay, after `delay` or `at` (`due`), or dead."""
        return self._finish("nack", reason, mask, wait, timeout, due_again(delay, at, due))

    @overload  # type: ignore[override]
    def reject(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes]: ...

    @overload
    def reject(
        self,
        mask: Any = ...,
        reason: str = ...,
        *,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes | None]: ...

    def reject(
        self,
        mask: Any = None,
        reason: str = "",
        *,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcomes | None]:
        """Failed for good."""
        return self._finish("reject", reason, mask, wait, timeout)

    @overload  # type: ignore[override]
    def release(
        self,
        mask: Any = ...,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes]: ...

    @overload
    def release(
        self,
        mask: Any = ...,
        delay: Duration | None = ...,
        *,
        at: datetime | None = ...,
        due: int | datetime | None = ...,
        wait: bool = ...,
        timeout: Duration | None = ...,
    ) -> Awaitable[Outcomes | None]: ...

    def release(
        self,
        mask: Any = None,
        delay: Duration | None = None,
        *,
        at: datetime | None = None,
        due: int | datetime | None = None,
        wait: bool = False,
        timeout: Duration | None = None,
    ) -> Awaitable[Outcomes | None]:
        """Given back: due again at once, after `delay`, or `at` (`due`)."""
        return self._finish("release", release_argument(delay, at, due), mask, wait, timeout)

    def _finish(  # type: ignore[override]
        self,
        op: str,
        argument: Any,
        mask: Any,
        wait: bool,
        timeout: Duration | None,
        when: int | DueAt | None = None,
    ) -> Awaitable[Outcomes | None]:
        outcomes = super()._finish(op, argument, mask, wait, timeout, when)
        return cast(Awaitable[Outcomes | None], outcomes)

    def _give_back(  # type: ignore[override]
        self, returned: Return, wait: bool, timeout: Duration | None
    ) -> Awaitable[Outcomes | None]:
        return _give_back(returned, wait, timeout) or _NOTHING

    def _nothing(self, wait: bool) -> Awaitable[Outcomes | None]:  # type: ignore[override]
        return _none() if wait else _NOTHING


def _give_back(
    returned: Return, wait: bool, timeout: Duration | None
) -> Awaitable[Outcomes] | None:
    """Sends it; what to await for the outcomes, if the caller waits."""
    if not returned.of_one_session:
        parts, places = sync_batch.split(returned)
        awaited = [answer for part in parts if (answer := _give_back(part, wait, timeout))]
        return _placed(awaited, places) if wait else None
    session = cast(LoopReturns, returned.segments[0][0].session)
    if not wait:
        session.give_back(returned)
        return None
    session.home.check()
    returned.waiter = waiter = LoopWaiter(session.home)
    session.give_back(returned)
    return session.ask(returned, waiter, timeout)


async def _first(outcomes: Awaitable[Outcomes]) -> Outcome:
    return (await outcomes)[0]


async def _placed(awaited: list[Awaitable[Outcomes]], places: NDArray[np.intp]) -> Outcomes:
    """The outcomes of several shards, in the order of the rows."""
    return Outcomes.joined(await asyncio.gather(*awaited)).placed(places)


async def _none() -> Outcomes:
    return Outcomes.joined([])
