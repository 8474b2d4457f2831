"""Written by `make aio` from `fasti/client/bindings.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.aio.home import Home
    from fasti.client.bindings import Binding
    from fasti.client.bindings import Bindings as SyncBindings


class Bindings:
    """The bindings of one topic. As `fasti.Bindings`, with `await`."""

    _sync: SyncBindings

    def __init__(self, home: Home, sync: SyncBindings) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def add(self, pattern: str, target: str) -> bool:
        """Binds the topic to another one. Again: fine. Gives whether it is new.

        As `fasti.Bindings.add`.
        """
        return await self._home.run(self._sync.add, pattern, target)

    async def remove(self, pattern: str, target: str) -> None:
        """Ends a binding. Raises `not_found` when there is none."""
        await self._home.run(self._sync.remove, pattern, target)

    async def list(self) -> list[Binding]:
        """All of them, in the order in which they were made."""
        return await self._home.run(self._sync.list)

    def __repr__(self) -> str:
        return repr(self._sync)
