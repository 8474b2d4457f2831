"""A log as a whole, from tasks of an event loop. Each call runs in one of the client's threads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fasti.aio.home import Home
from fasti.client import log as sync
from fasti.client.log import LogPartition


class Log:
    """Made by `client.log(topic)`; as `fasti.client.log.Log`, awaited."""

    def __init__(self, home: Home, log: sync.Log) -> None:
        self.topic = log.topic
        self._home, self._log = home, log

    async def describe(self) -> list[LogPartition]:
        """Each partition: its earliest offset, its end, bytes, segments."""
        return await self._home.run(self._log.describe)

    async def offset_at(self, moment: Any, partition: int | None = None) -> Any:
        """The first offset that was appended at the moment or later, or the end.

        A number for a partition, else a dict of them by partition.
        """
        return await self._home.run(self._log.offset_at, moment, partition)

    async def truncate(
        self, before: int | datetime | str, *, partition: int | None = None
    ) -> list[LogPartition]:
        """Drops the rows below an offset, before a moment, or all (`"end"`); for good."""
        return await self._home.run(self._log.truncate, before, partition=partition)

    def __repr__(self) -> str:
        return f"<Log {self.topic!r}>"
