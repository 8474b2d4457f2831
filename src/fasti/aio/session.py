"""A consumer's session whose user code runs in an event loop.

The session is that of the synchronous SDK, with its threads: they renew leases and bring messages
whether the loop is busy or not. What differs is how user code waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fasti.aio.holding import LoopHolding
from fasti.aio.home import Home, settle, within
from fasti.client.durations import Duration
from fasti.client.failures import Failures
from fasti.client.outcomes import Outcomes
from fasti.client.returns import Return, Waiter, no_answer
from fasti.client.session import Session
from fasti.client.transport import Transport
from fasti.errors import Closed, FastiError
from fasti.model import Limits


class LoopSession(Session):
    """`ring` is called when what `held` is asked to watch has happened, by any thread."""

    def __init__(
        self,
        home: Home,
        transport: Transport,
        topic: str,
        consumer: str,
        ring: Callable[[], None],
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
        )
        self.home = home
        self.held = self.holding = LoopHolding(self.lock, transport.clock, ring)
        self.held.ran_out = self._ran_out
        self.held.lapsed = self._lapsed

    def _ran_out(self) -> None:
        super()._ran_out()
        self._urge()

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
            for each in returns:
                self.settling.failed(each, error)


class LoopWaiter(Waiter):
    """A task that waits for the outcomes of a return."""

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
        found = self.wait(0)
        assert found is not None
        return found

    async def _await(self) -> None:
        self._home.check()
        await self._answer
