"""Written by `make aio` from `fasti/client/log.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from fasti.aio.home import Home
    from fasti.client.log import Log as SyncLog
    from fasti.client.log import LogPartition


class Log:
    """One log. As `fasti.Log`, with `await`."""

    _sync: SyncLog

    def __init__(self, home: Home, sync: SyncLog) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def describe(self) -> list[LogPartition]:
        """Each partition: its earliest offset, its end, bytes, segments."""
        return await self._home.run(self._sync.describe)

    async def offset_at(self, moment: Any, partition: int | None = None) -> Any:
        """The first offset that was appended at the moment or later, or the end.

        As `fasti.Log.offset_at`.
        """
        return await self._home.run(self._sync.offset_at, moment, partition)

    async def truncate(
        self, before: int | datetime | str, *, partition: int | None = None
    ) -> list[LogPartition]:
        """Drops the rows below an offset, before a moment, or all (`"end"`); for good.

        As `fasti.Log.truncate`.
        """
        return await self._home.run(self._sync.truncate, before, partition=partition)

    def __repr__(self) -> str:
        return repr(self._sync)
