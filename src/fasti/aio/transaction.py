"""Transactions: several changes that happen whole or not at all, from a task of an event loop."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from fasti.aio.home import Home
from fasti.client import transaction as sync
from fasti.client.outcomes import Outcomes
from fasti.client.transport import Transport
from fasti.errors import IllegalTransition


class Transaction(sync.Transaction):
    """Made by `client.transaction()`; for one task.

        async with client.transaction() as tx:
            tx.ack(message)
            tx.send("receipts", b"...", delay="1d")
            tx.cancel("reminders", key="user-7")
        tx.outcomes                                # of each call, in order

    The calls only write down what is to happen. Everything is sent at the end of the block, as one.
    If a row is not ok nothing happened, and `aborted` is raised, which names those rows; messages
    that were to be acked are still yours. If the block raises, nothing is sent. If the task is
    cancelled while it is sent, it may or may not have happened.
    """

    def __init__(
        self,
        home: Home,
        transport: Transport,
        owner: str,
        flush: Callable[[], None],
    ) -> None:
        super().__init__(transport, owner, flush)
        self._home = home

    async def commit(self) -> list[Outcomes]:  # type: ignore[override]
        """Sends it all; called at the end of the block.

        Raises `aborted` when a row was not ok, what refused a command otherwise, and `unknown` when
        it can't be told whether it happened.
        """
        if self._done:
            raise IllegalTransition("the transaction is over")
        return await self._home.run(super().commit)

    def __enter__(self) -> NoReturn:
        raise TypeError("write: async with client.transaction() as tx")

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None and not self._done:
                await self.commit()
        finally:
            self._done = True
