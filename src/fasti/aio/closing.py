"""The same as `fasti.client.closing`, for `async with`."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from fasti.client.closing import AFTER_ERROR
from fasti.client.durations import Duration
from fasti.errors import FastiError


class AsyncClosing:
    """What is closed at the end of a block."""

    __slots__ = ()

    async def close(self, timeout: Duration | None = "30s") -> None:
        """Ends it; called at the end of the block."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            with suppress(FastiError):
                await self.close(timeout=AFTER_ERROR)
