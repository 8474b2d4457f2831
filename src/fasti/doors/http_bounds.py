"""What a connection to the HTTP port may do: send a request in time, and not too many at once.

uvicorn waits for ever for a request that comes in single bytes, or whose body never ends, and takes
every connection. Headers are bounded by its parser (64 KiB), and bodies are not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
CONNECTIONS_MAX = 500


class BoundedProtocol(H11Protocol):
    """One connection, in the event loop's thread."""

    # Those of this process that have no request under way, the oldest first.
    waiting: dict[BoundedProtocol, None] = {}  # noqa: RUF012
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """By asyncio, once."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX and self.waiting:
            next(iter(self.waiting))._end()

    def data_received(self, data: bytes) -> None:
        """By asyncio."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and not self.cycle.response_complete:
            self._work()

    def on_response_complete(self) -> None:
        """By uvicorn, after each response; the next request may have come already."""
        self._wait()
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:
            self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        """By asyncio, once."""
        self._work()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._work()
        self.waiting[self] = None
        self._timer = self.loop.call_later(REQUEST_S, self._end)

    def _work(self) -> None:
        self.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._work()
        self.transport.abort()
