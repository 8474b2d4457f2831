"""Blocks of `with` around what has a `close`.

The error of a block is raised, not one that follows from it.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from fasti.client.durations import Duration
from fasti.errors import FastiError

# How long a block that failed waits for what is under way.
AFTER_ERROR: Duration = "10s"


class Closing:
    """What is closed at the end of a block."""

    __slots__ = ()

    def close(self, timeout: Duration | None = "30s") -> None:
        """Ends it; called at the end of the block."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(FastiError):
                self.close(timeout=AFTER_ERROR)
