"""Written by `make aio` from `fasti/client/dead_letters.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any

    from fasti.aio.home import Home
    from fasti.client.arguments import ArrowTable, Integers, Moment
    from fasti.client.bulk import Progress
    from fasti.client.dead import DeadOutcomes
    from fasti.client.dead_letters import DeadLetters as SyncDeadLetters
    from fasti.client.durations import Duration
    from fasti.client.outcomes import Outcome, Outcomes


class DeadLetters:
    """What `Messages` can do with those that failed for good. As `fasti.Messages`, with `await`."""

    _home: Home
    _sync: SyncDeadLetters

    async def dead(
        self,
        *,
        reason: str | None = None,
        key_prefix: str | None = None,
        died_from: Any = None,
        died_to: Any = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
    ) -> ArrowTable:
        """Those that failed for good, with their `reason` and when they died, `died_us`.

        As `fasti.Messages.dead`.
        """
        return await self._home.run(
            self._sync.dead,
            reason=reason,
            key_prefix=key_prefix,
            died_from=died_from,
            died_to=died_to,
            after=after,
            limit=limit,
            payload=payload,
        )

    @overload
    async def redrive(
        self,
        id: int,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcome: ...

    @overload
    async def redrive(
        self,
        id: Integers,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcomes: ...

    @overload
    async def redrive(
        self,
        id: int | Integers,
        *,
        to: str,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> DeadOutcomes: ...

    @overload
    async def redrive(
        self,
        id: None = ...,
        *,
        to: str | None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def redrive(
        self,
        id: int | Integers | None = None,
        *,
        to: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Makes dead messages live again, now or later (`delay`, `at`, `due`), with no attempts counted.

        As `fasti.Messages.redrive`; `progress` is called in the client's loop.
        """
        call: Callable[..., Any] = self._sync.redrive
        return await self._home.run(
            call,
            id,
            to=to,
            delay=delay,
            at=at,
            due=due,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
            progress=self._home.in_loop(progress),
        )

    @overload
    async def purge(self, id: int) -> Outcome: ...

    @overload
    async def purge(self, id: Integers) -> Outcomes: ...

    @overload
    async def purge(
        self,
        id: None = ...,
        *,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def purge(
        self,
        id: int | Integers | None = None,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Removes dead messages for good; without `id` all that fit the filters of `redrive`.

        As `fasti.Messages.purge`; `progress` is called in the client's loop.
        """
        call: Callable[..., Any] = self._sync.purge
        return await self._home.run(
            call,
            id,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
            progress=self._home.in_loop(progress),
        )

    async def dead_counts(
        self,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
    ) -> dict[str, int]:
        """How many are dead of which reason, the most frequent first; a thousand reasons at most."""
        return await self._home.run(
            self._sync.dead_counts,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
        )
