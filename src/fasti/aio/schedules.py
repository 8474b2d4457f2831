"""Schedules, from tasks of an event loop. Each call runs in one of the client's threads."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Unpack

from fasti.aio.home import Home
from fasti.client import schedules as sync
from fasti.client.arguments import Moment, ScheduleOptions
from fasti.client.outcomes import Outcome
from fasti.client.schedules import Occurrence, Schedule


class Schedules:
    """Made by `client.schedules(topic)`; as `fasti.client.schedules.Schedules`, awaited."""

    def __init__(self, home: Home, schedules: sync.Schedules) -> None:
        self.topic = schedules.topic
        self._home, self._schedules = home, schedules

    async def put(
        self,
        name: str,
        *,
        target: str,
        version: int | None = None,
        **definition: Unpack[ScheduleOptions],
    ) -> Outcome:
        """Makes a schedule, or changes it; the same again is fine and changes nothing."""
        return await self._home.run(
            self._schedules.put, name, target=target, version=version, **definition
        )

    async def put_many(
        self, schedules: Mapping[str, Mapping[str, Any]], *, version: int | None = None
    ) -> builtins.list[Outcome]:
        """Many at once: for each name what `put` is given. An outcome for each, in their order."""
        return await self._home.run(self._schedules.put_many, schedules, version=version)

    async def get(self, name: str) -> Schedule:
        """One schedule. Raises `not_found`."""
        return await self._home.run(self._schedules.get, name)

    async def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return await self._home.run(self._schedules.list)

    async def preview(
        self,
        name: str | None = None,
        count: int = 10,
        *,
        after: Moment | None = None,
        **definition: Unpack[ScheduleOptions],
    ) -> builtins.list[Occurrence]:
        """The next occurrences, of a schedule or of what `put` would be given."""
        return await self._home.run(self._schedules.preview, name, count, after=after, **definition)

    async def pause(self, name: str) -> bool:
        """It rests until it is resumed; what it has emitted ahead is taken back."""
        return await self._home.run(self._schedules.pause, name)

    async def resume(self, name: str) -> bool:
        """It goes on; what it missed while it rested is not made up for."""
        return await self._home.run(self._schedules.resume, name)

    async def run_now(self, name: str) -> Outcome:
        """One message now, beside the occurrences: its `id` in the target topic."""
        return await self._home.run(self._schedules.run_now, name)

    async def delete(self, name: str) -> None:
        """It is gone, and so is what it has emitted ahead. Raises `not_found`."""
        await self._home.run(self._schedules.delete, name)

    def __repr__(self) -> str:
        return f"<Schedules of {self.topic!r}>"
