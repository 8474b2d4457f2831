"""A consumer's session whose user code runs in an event loop.

The session is that of the synchronous SDK, with its threads: they renew leases and bring messages
whether the loop is busy or not. What differs is how user code waits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fasti.aio.home import Home, settle, within
from fasti.aio.waiting import WaitingRoom
from fasti.client.durations import Duration
from fasti.client.failures import Failures
from fasti.client.machines.returns import Return
from fasti.client.outcomes import Outcomes
from fasti.client.session import Session
from fasti.client.sessions import Sessions, ShardSession
from fasti.client.settling import Waiter, no_answer
from fasti.client.transport import Transport
from fasti.errors import Closed, FastiError
from fasti.model import Limits


class LoopReturns(Session):
    """How user code in a loop waits for what it gave back."""

    home: Home

    async def ask(self, returned: Return, waiter: LoopWaiter, timeout: Duration | None) -> Outcomes:
        """The outcomes of a return that was given back with this waiter."""
        outcomes = await waiter.outcomes(returned.op, self.limit_s(timeout))
        if returned.op != "extend" and not outcomes.all_ok:
            self.failures.counted(len(outcomes.failed))
        return outcomes

    def _return_afterwards(self, returns: list[Return], until: float | None = None) -> None:
        """Returns without a session are calls that wait: not in the loop's thread."""
        if not returns:
            return
        if not self.home.is_here:
            super()._return_afterwards(returns, until)
            return
        try:
            self.home.submit(partial(super()._return_afterwards, returns, until))
        except Closed as error:
            for returned in returns:
                self.settling.failed(returned, error)


class LoopSession(LoopReturns):
    """Its takers are tasks, which wait in `room`."""

    def __init__(
        self,
        home: Home,
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
        super().__init__(
            transport,
            topic,
            consumer,
            prefetch=prefetch,
            time_limit_us=time_limit_us,
            limits=limits,
            group=group,
            failures=failures,
            linger=False,
        )
        self.home = home
        self.taking = self.room = WaitingRoom(
            home, transport.runtime, self.lock, self.holding, self.clock, self.wake
        )


class LoopShardSession(LoopReturns, ShardSession):
    """One of several sessions of a consumer."""

    def __init__(self, sessions: LoopSessions, number: int) -> None:
        super().__init__(sessions, number)
        self.home = sessions.home


class LoopSessions(Sessions):
    """A session for each shard of a topic. Their takers are tasks, which wait in one `room`."""

    def __init__(self, home: Home, *given: Any, **named: Any) -> None:
        self.home = home
        super().__init__(*given, linger=False, **named)

    def _make_taking(self) -> WaitingRoom:
        self.room = WaitingRoom(
            self.home, self.transport.runtime, self.lock, self.holding, self.clock, self.wake
        )
        return self.room

    def _make_session(self, number: int) -> LoopShardSession:
        return LoopShardSession(self, number)


class LoopWaiter(Waiter):
    """A task's wait for the outcomes of a return."""

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._answer = home.loop.create_future()

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """The answer is here. Called by the session's threads."""
        super().settle(outcomes, error)
        self._home.post(partial(settle, self._answer))

    async def outcomes(self, op: str, limit_s: float) -> Outcomes:
        """The outcomes. Raises the error that refused them, `timed_out`."""
        await within(
            limit_s,
            self._await(),
            lambda: no_answer(op, limit_s),
        )
        outcomes = self.wait(0)
        assert outcomes is not None
        return outcomes

    async def _await(self) -> None:
        self._home.check()
        await self._answer
