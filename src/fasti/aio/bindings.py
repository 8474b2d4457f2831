"""Bindings between topics, from tasks of an event loop. Made by `client.bindings(topic)`."""

from __future__ import annotations

from fasti.aio.home import Home
from fasti.client import bindings as sync
from fasti.client.bindings import Binding


class Bindings:
    """The bindings of one topic.

    orders = client.bindings("orders")
    await orders.add("orders.*.created", "emails")
    await orders.list()
    """

    def __init__(self, home: Home, bindings: sync.Bindings) -> None:
        self.topic = bindings.topic
        self._home = home
        self._bindings = bindings

    async def add(self, pattern: str, target: str) -> bool:
        """Binds the topic to another one. Again: fine. Gives whether it is new."""
        return await self._home.run(self._bindings.add, pattern, target)

    async def remove(self, pattern: str, target: str) -> None:
        """Ends a binding. Raises `not_found` when there is none."""
        await self._home.run(self._bindings.remove, pattern, target)

    async def list(self) -> list[Binding]:
        """All of them, in the order in which they were made."""
        return await self._home.run(self._bindings.list)
