"""Written by `make aio` from `fasti/client/broker_calls.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from fasti.aio.home import Home
    from fasti.client.broker_calls import BrokerCalls as SyncBrokerCalls
    from fasti.client.changes import FeedBounds
    from fasti.client.clock_info import ClockInfo
    from fasti.client.durations import Duration
    from fasti.client.sinks import SinkState
    from fasti.storage.tools.backup import Backup


class BrokerCalls:
    """The part of `Client` that is about the broker. As `fasti.Client`, with `await`."""

    _home: Home
    _client: SyncBrokerCalls

    async def health(self) -> dict[str, Any]:
        """`ready` and `state`: serving, stopping or failed."""
        return await self._home.run(self._client.health)

    async def metrics(self) -> str:
        """The broker's metrics in Prometheus' text format."""
        return await self._home.run(self._client.metrics)

    async def clock_info(self) -> ClockInfo:
        """What the broker's clock shows, what its machine's does, and how it goes by that."""
        return await self._home.run(self._client.clock_info)

    async def accept_clock(self) -> bool:
        """The broker shall believe its machine's clock that leapt ahead: did it doubt that?

        As `fasti.Client.accept_clock`.
        """
        return await self._home.run(self._client.accept_clock)

    async def checkpoint(self, timeout: Duration | None = None) -> None:
        """Has the broker write what it holds to runs now; returns when that is done.

        As `fasti.Client.checkpoint`.
        """
        await self._home.run(self._client.checkpoint, timeout)

    async def backup(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
        rate: int = 0,
    ) -> Backup:
        """Takes a backup of all that the broker holds, while it runs, into a directory of this machine.

        As `fasti.Client.backup`; `progress` is called in another thread.
        """
        return await self._home.run(self._client.backup, path, progress=progress, rate=rate)

    async def scrub(self, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Has the broker read everything that it stores, to find damage; returns when that is done.

        As `fasti.Client.scrub`; `progress` is called in another thread.
        """
        return await self._home.run(self._client.scrub, progress)

    async def feed(self) -> FeedBounds:
        """Where the change feed begins and ends now."""
        return await self._home.run(self._client.feed)

    async def publish(self, stage: str, *, skip_conflicts: bool = False) -> tuple[int, list[int]]:
        """Makes staged messages live: how many, and the ids that were skipped."""
        return await self._home.run(self._client.publish, stage, skip_conflicts=skip_conflicts)

    async def drop_stage(self, stage: str) -> int:
        """Drops staged messages: how many."""
        return await self._home.run(self._client.drop_stage, stage)

    async def sinks(self) -> list[SinkState]:
        """All sinks that the broker remembers, by name."""
        return await self._home.run(self._client.sinks)
