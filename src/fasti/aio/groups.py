"""Written by `make aio` from `fasti/client/groups.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any

    from fasti.aio.home import Home
    from fasti.client.arguments import ArrowTable, Integers, Moment
    from fasti.client.bulk import Progress
    from fasti.client.dead import DeadOutcomes
    from fasti.client.durations import Duration
    from fasti.client.groups import Group
    from fasti.client.groups import Groups as SyncGroups
    from fasti.client.log_place import Start
    from fasti.client.outcomes import Outcome, Outcomes


class Groups:
    """The groups of one log. As `fasti.Groups`, with `await`."""

    _sync: SyncGroups

    def __init__(self, home: Home, sync: SyncGroups) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def list(self) -> builtins.list[Group]:
        """All groups, by name."""
        return await self._home.run(self._sync.list)

    async def describe(self, group: str) -> Group:
        """One group. Raises `not_found`."""
        return await self._home.run(self._sync.describe, group)

    async def lag(self, group: str) -> int:
        """How many rows the group has not finished. Raises `not_found`."""
        return await self._home.run(self._sync.lag, group)

    async def create(
        self, group: str, *, start: Start = "earliest", ordered: bool = False
    ) -> Group:
        """Makes a group that begins at `start`; a consumer's first lease would at the earliest.

        As `fasti.Groups.create`.
        """
        return await self._home.run(self._sync.create, group, start=start, ordered=ordered)

    async def reset(self, group: str, to: Start, *, partition: int | None = None) -> Group:
        """Has the group go on elsewhere: `to` as `start` above, or an offset of one partition.

        As `fasti.Groups.reset`.
        """
        return await self._home.run(self._sync.reset, group, to, partition=partition)

    async def delete(self, group: str) -> None:
        """Forgets a group. Raises `not_found`."""
        await self._home.run(self._sync.delete, group)

    async def dead(
        self,
        group: str,
        *,
        reason: str | None = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
    ) -> ArrowTable:
        """Rows that failed for good in this group, by id, with their `reason` and `attempts`.

        As `fasti.Groups.dead`.
        """
        return await self._home.run(
            self._sync.dead, group, reason=reason, after=after, limit=limit, payload=payload
        )

    @overload
    async def redrive(
        self,
        group: str,
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
        group: str,
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
        group: str,
        id: None = ...,
        *,
        to: str | None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
        reason: str | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def redrive(
        self,
        group: str,
        id: int | Integers | None = None,
        *,
        to: str | None = None,
        reason: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Has the group get dead rows again, now or later, with no attempts counted.

        As `fasti.Groups.redrive`; `progress` is called in the client's loop.
        """
        call: Callable[..., Any] = self._sync.redrive
        return await self._home.run(
            call,
            group,
            id,
            to=to,
            reason=reason,
            delay=delay,
            at=at,
            due=due,
            progress=self._home.in_loop(progress),
        )

    @overload
    async def purge(self, group: str, id: int) -> Outcome: ...

    @overload
    async def purge(self, group: str, id: Integers) -> Outcomes: ...

    @overload
    async def purge(
        self,
        group: str,
        id: None = ...,
        *,
        reason: str | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def purge(
        self,
        group: str,
        id: int | Integers | None = None,
        *,
        reason: str | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Forgets dead rows of the group; the log keeps them. Answers as `redrive`.

        As `fasti.Groups.purge`; `progress` is called in the client's loop.
        """
        call: Callable[..., Any] = self._sync.purge
        return await self._home.run(
            call, group, id, reason=reason, progress=self._home.in_loop(progress)
        )

    async def dead_counts(self, group: str, *, reason: str | None = None) -> dict[str, int]:
        """How many rows are dead of which reason, the most frequent first."""
        return await self._home.run(self._sync.dead_counts, group, reason=reason)

    def __repr__(self) -> str:
        return repr(self._sync)
