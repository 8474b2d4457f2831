"""Written by `make aio` from `fasti/client/schedules.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping
    from typing import Any, Unpack

    from fasti.aio.home import Home
    from fasti.client.arguments import Fold, Gap, Misfire, Moment, Overlap, ScheduleOptions
    from fasti.client.durations import Duration
    from fasti.client.outcomes import Outcome
    from fasti.client.schedules import Occurrence, Schedule
    from fasti.client.schedules import Schedules as SyncSchedules


class Schedules:
    """The schedules of one cron topic. As `fasti.Schedules`, with `await`."""

    _sync: SyncSchedules

    def __init__(self, home: Home, sync: SyncSchedules) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def put(
        self,
        name: str,
        *,
        target: str,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        payload: bytes | str = b"",
        template: bool = False,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        subject: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        gap: Gap = "shift",
        fold: Fold = "first",
        misfire: Misfire = "once",
        misfire_max: int = 100,
        misfire_grace: Duration = "10s",
        overlap: Overlap = "allow",
        version: int | None = None,
    ) -> Outcome:
        """Makes a schedule, or changes it; the same again is fine and changes nothing.

        As `fasti.Schedules.put`.
        """
        return await self._home.run(
            self._sync.put,
            name,
            target=target,
            cron=cron,
            every=every,
            timezone=timezone,
            payload=payload,
            template=template,
            headers=headers,
            content_type=content_type,
            subject=subject,
            priority=priority,
            expires=expires,
            start=start,
            end=end,
            jitter=jitter,
            gap=gap,
            fold=fold,
            misfire=misfire,
            misfire_max=misfire_max,
            misfire_grace=misfire_grace,
            overlap=overlap,
            version=version,
        )

    async def put_many(
        self, schedules: Mapping[str, Mapping[str, Any]], *, version: int | None = None
    ) -> builtins.list[Outcome]:
        """Many at once: for each name what `put` is given. An outcome for each, in their order."""
        return await self._home.run(self._sync.put_many, schedules, version=version)

    async def get(self, name: str) -> Schedule:
        """One schedule. Raises `not_found`."""
        return await self._home.run(self._sync.get, name)

    async def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return await self._home.run(self._sync.list)

    async def preview(
        self,
        name: str | None = None,
        count: int = 10,
        *,
        after: Moment | None = None,
        **definition: Unpack[ScheduleOptions],
    ) -> builtins.list[Occurrence]:
        """The next occurrences, after now or a moment, whether it rests or not.

        As `fasti.Schedules.preview`.
        """
        return await self._home.run(self._sync.preview, name, count, after=after, **definition)

    async def pause(self, name: str) -> bool:
        """It rests until it is resumed; what it has emitted ahead is taken back.

        As `fasti.Schedules.pause`.
        """
        return await self._home.run(self._sync.pause, name)

    async def resume(self, name: str) -> bool:
        """It goes on; what it missed while it rested is not made up for."""
        return await self._home.run(self._sync.resume, name)

    async def run_now(self, name: str) -> Outcome:
        """One message now, beside the occurrences: its `id` in the target topic.

        As `fasti.Schedules.run_now`.
        """
        return await self._home.run(self._sync.run_now, name)

    async def delete(self, name: str) -> None:
        """It is gone, and so is what it has emitted ahead. Raises `not_found`."""
        await self._home.run(self._sync.delete, name)

    def __repr__(self) -> str:
        return repr(self._sync)
