"""What the tests of the asyncio SDK share: a broker in virtual time, and a story told in a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import fasti.aio
from fasti.testing.virtual import VirtualBroker

PATIENCE_S = 20.0
_Found = TypeVar("_Found")
Story = Callable[[VirtualBroker, fasti.aio.Client], Awaitable[Any]]


def tell(story: Story) -> None:
    """Runs a story with a client of a fresh broker. Everything ends with it."""

    async def whole() -> None:
        with VirtualBroker() as broker:
            async with fasti.aio.Client(broker.client()) as client:
                await soon(story(broker, client))

    with no_threads_left():
        asyncio.run(whole(), debug=True)


async def soon(waiting: Awaitable[_Found]) -> _Found:
    """What comes to be, or a test that fails."""
    return await asyncio.wait_for(waiting, PATIENCE_S)


async def turns(count: int = 20) -> None:
    """Lets everybody who can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    """Waits until something is so; a test fails if it never is."""
    for _ in range(int(PATIENCE_S * 1000)):
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


async def leased(client: fasti.aio.Client, count: int) -> None:
    """Waits until so many messages of the topic t are in a consumer's hands, or ahead of them."""

    async def so_many() -> bool:
        return (await client.messages("t").count())["leased"] == count

    await until(so_many)


@contextmanager
def no_threads_left() -> Iterator[None]:
    """Whatever was begun in the block ends with it."""
    before = set(threading.enumerate())
    yield
    begun = set(threading.enumerate()) - before
    for each in begun:
        each.join(PATIENCE_S)
    assert [each.name for each in begun if each.is_alive()] == []
