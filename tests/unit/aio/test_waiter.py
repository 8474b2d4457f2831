"""Calls that wait for long: what came is never lost, and nothing keeps a thread or a process."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import fasti.aio
from fasti.aio.home import Home
from fasti.aio.waiter import Waiter
from fasti.client.changes import Changes
from fasti.errors import Closed, Unavailable
from fasti.testing import VirtualBroker
from tests.unit.aio.stories import no_threads_left, soon, tell, turns


def with_waiter(story: Callable[[Waiter], Awaitable[Any]]) -> None:
    async def whole() -> None:
        home = Home()
        waiter = Waiter(home, "this is")
        await soon(story(waiter))
        waiter.close()
        await home.close(lambda: None)

    with no_threads_left():
        asyncio.run(whole(), debug=True)


def test_after_a_call_that_failed_the_next_one_works() -> None:
    async def story(waiter: Waiter) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await waiter.ask(lambda: 1 // 0)
            assert await waiter.ask(lambda: "found") == "found"

    with_waiter(story)


def test_what_comes_after_its_task_was_cancelled_is_for_the_next() -> None:
    async def story(waiter: Waiter) -> None:
        go = threading.Event()
        first = asyncio.ensure_future(waiter.ask(lambda: go.wait(20) and "first"))
        await turns()
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        second = asyncio.ensure_future(waiter.ask(lambda: "second"))
        await turns()
        go.set()
        assert await second == "first"
        assert await waiter.ask(lambda: "third") == "third"

    with_waiter(story)


def test_what_came_in_the_moment_of_the_cancelling_is_not_lost() -> None:
    async def story(waiter: Waiter) -> None:
        go, came = threading.Event(), threading.Event()
        first = asyncio.ensure_future(waiter.ask(lambda: go.wait(20) and "first"))
        await turns()
        assert waiter._waiting is not None
        waiter._waiting.add_done_callback(lambda _: came.set())
        go.set()
        # The loop is held up: the answer is there, and the task has not heard of it.
        assert came.wait(20)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert await waiter.ask(lambda: "second") == "first"

    with_waiter(story)


def test_closing_ends_what_waits_also_what_it_is_told_of_later() -> None:
    async def story(waiter: Waiter) -> None:
        ended, late = threading.Event(), threading.Event()
        waiter.ends(ended.set)
        waiting = asyncio.ensure_future(waiter.ask(lambda: ended.wait(20)))
        await turns()
        waiter.close()
        waiter.close()
        assert await waiting
        waiter.ends(late.set)
        assert late.is_set()
        with pytest.raises(Closed, match="this is closed"):
            await waiter.ask(lambda: None)

    with_waiter(story)


def test_a_result_is_not_kept_while_the_thread_waits_for_the_next_call() -> None:
    class Large:
        alive = 0

        def __init__(self) -> None:
            Large.alive += 1

        def __del__(self) -> None:
            Large.alive -= 1

    async def story(waiter: Waiter) -> None:
        await waiter.ask(Large)
        await waiter.ask(lambda: None)
        gc.collect()
        assert Large.alive == 0

    with_waiter(story)


def test_changes_go_on_after_a_wait_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Unavailable] = [Unavailable("not now")]
    proper = Changes.__next__

    def refusing(changes: Changes) -> Any:
        if refused:
            raise refused.pop()
        return proper(changes)

    async def story(_: VirtualBroker, client: fasti.aio.Client) -> None:
        await client.create_topic("t")
        monkeypatch.setattr(Changes, "__next__", refusing)
        changes = await client.changes()
        with pytest.raises(Unavailable):
            await anext(changes)
        assert (await anext(changes)).column("op").to_pylist() == ["topic_created"]
        await changes.close()

    tell(story)


def test_the_thread_of_one_that_nobody_keeps_ends() -> None:
    async def story(_: VirtualBroker, client: fasti.aio.Client) -> None:
        await client.create_topic("t", kind="kv")
        before = set(threading.enumerate())
        for made in (await client.changes(start="latest", follow=True), client.kv("t").watch()):
            waiting = asyncio.ensure_future(anext(made))
            await turns()
            waiting.cancel()
            await asyncio.wait([waiting])
        del made, waiting
        gc.collect()
        for each in set(threading.enumerate()) - before:
            if each.name == "fasti-aio-wait":
                await asyncio.to_thread(each.join, 20)
                assert not each.is_alive()

    tell(story)
