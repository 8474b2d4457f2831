"""Where a client lives: one wake-up for many posts, calls that leave the loop, an end to all."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fasti.aio.home import Home, within
from fasti.errors import Closed, InvalidArgument, TimedOut
from tests.unit.aio.stories import no_threads_left, soon, until


def test_the_loop_is_woken_once_for_all_that_was_posted_before_it_looked() -> None:
    async def story() -> None:
        home = Home()
        called: list[int] = []
        wakings: list[object] = []
        ring = home.loop.call_soon_threadsafe
        home.loop.call_soon_threadsafe = lambda call: (wakings.append(call), ring(call))  # type: ignore[assignment]

        def post_many(first: int) -> None:
            for number in range(first, first + 1000):
                home.post(lambda n=number: called.append(n))

        thread = threading.Thread(target=post_many, args=(0,))
        thread.start()
        thread.join()  # The loop is held up meanwhile.
        assert called == []
        await asyncio.sleep(0)
        assert called == list(range(1000))
        post_many(1000)
        await asyncio.sleep(0)
        assert called == list(range(2000))
        assert len(wakings) == 2
        await home.close(lambda: None)

    asyncio.run(story())


def test_calls_run_elsewhere_and_what_they_raise_is_raised_here() -> None:
    async def story() -> None:
        home = Home()
        assert await home.run(threading.get_ident) != threading.get_ident()
        assert home.is_here
        assert not await home.run(lambda: home.is_here)
        with pytest.raises(ZeroDivisionError):
            await home.run(divmod, 1, 0)
        await home.close(lambda: None)
        with pytest.raises(Closed):
            await home.run(threading.get_ident)

    with no_threads_left():
        asyncio.run(story())


def test_no_more_than_a_few_calls_at_once_and_one_that_has_not_begun_can_be_cancelled() -> None:
    async def story() -> None:
        home = Home()
        gate = threading.Event()
        begun: list[int] = []

        def call(number: int) -> None:
            begun.append(number)
            gate.wait(20)

        calls = [asyncio.create_task(home.run(call, n)) for n in range(20)]
        await until(lambda: len(begun) == 8)
        calls[19].cancel()
        await asyncio.sleep(0.01)
        assert len(begun) == 8
        gate.set()
        await soon(asyncio.gather(*calls[:19]))
        assert 19 not in begun
        await home.close(lambda: None)

    asyncio.run(story())


def test_closing_waits_for_calls_and_tells_the_first_what_went_wrong() -> None:
    async def story() -> None:
        home = Home()
        gate = threading.Event()
        call = asyncio.create_task(home.run(gate.wait, 20))
        await asyncio.sleep(0)

        def last() -> None:
            raise InvalidArgument("it can't be closed")

        closing = [asyncio.create_task(home.close(last)) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert home.closing
        assert not any(each.done() for each in closing)
        gate.set()
        assert await call
        with pytest.raises(InvalidArgument):
            await closing[0]
        await closing[1]

    with no_threads_left():
        asyncio.run(story())


def test_a_turn_for_others_now_and_then() -> None:
    async def story() -> None:
        home = Home()
        order: list[str] = []
        other = asyncio.create_task(_note(order))
        await home.breathe()
        order.append("we")
        await other
        assert order == ["other", "we"]
        other = asyncio.create_task(_note(order))
        home.breathe_at = float("inf")
        await home.breathe()
        order.append("we again")
        await other
        assert order[2:] == ["we again", "other"]
        await home.close(lambda: None)

    asyncio.run(story())


async def _note(order: list[str]) -> None:
    order.append("other")


def test_waiting_within_a_time() -> None:
    async def story() -> None:
        async def answer() -> int:
            return 7

        def late() -> TimedOut:
            return TimedOut("late")

        assert await within(None, answer(), late) == 7
        assert await within("1h", answer(), late) == 7
        with pytest.raises(TimedOut, match="late"):
            await within(0.01, asyncio.Event().wait(), late)
        with pytest.raises(InvalidArgument):
            await within("soon", answer(), late)

    asyncio.run(story())
