"""`fasti.aio.App`: the app in an event loop, beside whatever else the loop does."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.app.app import App
from fasti.app.handler import OnOptions
from fasti.broker.launch import BrokerProcess
from fasti.errors import InvalidArgument, NotFound
from fasti.testing.virtual import VirtualBroker
from tests.integration.serve_rig import SEGMENTS

WAIT_S = 60.0


@dataclass
class Cart:
    id: int


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await story()

    asyncio.run(bounded())


@pytest.fixture
def app(fasti_client: fasti.Client) -> fasti.aio.App:
    return fasti.aio.App(fasti_client, owner="shop")


def test_the_names_are_those_of_the_other_app() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    # What a base does for those that stand on it, and for worker processes.
    inside = {"ensure", "bound", "connected", "last_run", "use", "reach_for_others", "finish"}
    inside |= {"in_worker_process", "reference", "has_ensured"}
    assert names(App) - inside <= names(fasti.aio.App)
    shown = inspect.signature(App.on).parameters.keys() - {"self", "topic"}
    assert shown == OnOptions.__optional_keys__


def test_later_move_and_cancel_are_awaited(app: fasti.aio.App, fasti_broker: VirtualBroker) -> None:
    got: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    @app.on("carts", concurrency=4)
    async def remind(cart: Cart) -> None:
        loops.append(asyncio.get_running_loop())
        got.append(cart.id)
        if cart.id == 1:
            # On the loop, where nothing may block.
            await remind.later(Cart(2), key="cart-2")

    async def story() -> None:
        outcome = await remind.later(Cart(1), delay="1h", key="cart-1")
        assert (outcome.status, outcome.version) == ("ok", 1)
        assert (await remind.later(Cart(1), key="cart-1")).status == "conflict"
        assert (await remind.move(key="cart-1", delay="2h")).ok
        await asyncio.gather(*(remind.later(Cart(n), delay="3h", key=f"c{n}") for n in range(3, 6)))
        assert (await remind.cancel(key="c4")).ok
        with pytest.raises(InvalidArgument, match=r"remind.later: id: expected a valid integer"):
            await remind.later(Cart("7"))  # type: ignore[arg-type]
        async with app:
            for _ in range(3):
                fasti_broker.advance("1h")
                await asyncio.to_thread(fasti_broker.settle)
        assert set(loops) == {asyncio.get_running_loop()}
        assert app.stats()["carts"].handled == 4

    run(story)
    # The last two were sent at once and are due at once, for four at a time.
    assert (got[:2], sorted(got[2:])) == ([1, 2], [3, 5])


def test_a_cancel_may_be_the_first_that_a_broker_hears(app: fasti.aio.App) -> None:
    @app.on("carts")
    async def remind(cart: Cart) -> None: ...

    async def story() -> None:
        assert (await remind.cancel(key="cart-1")).status == "not_found"
        assert (await remind.move(key="cart-1", delay="1h")).status == "not_found"

    run(story)


def test_handlers_of_every_kind_hooks_and_middleware(
    app: fasti.aio.App, fasti_broker: VirtualBroker
) -> None:
    got: list[str] = []

    @app.on_start
    async def begin() -> None:
        got.append(f"start {threading.current_thread() is threading.main_thread()}")

    @app.on_stop
    def end() -> None:
        got.append("stop")

    @app.middleware
    async def around(message: fasti.Message, call_next: Any) -> Any:
        got.append("around")
        return await call_next(message)

    @app.on("tasks")
    async def task(text: str) -> None:
        got.append(text)

    @app.on("threads")
    def thread(text: str) -> None:
        got.append(f"{text} {threading.current_thread() is threading.main_thread()}")

    @app.every("1h")
    async def tick() -> None:
        got.append("tick")

    async def story() -> None:
        async with app:
            await task.later("a task")
            await asyncio.to_thread(fasti_broker.settle)
            await thread.later("a thread")
            await asyncio.to_thread(fasti_broker.settle)
            fasti_broker.advance("1h")
            await asyncio.to_thread(fasti_broker.settle)
        await task("called")

    run(story)
    assert got == [
        "start True",
        "around",
        "a task",
        "a thread False",
        "around",
        "tick",
        "stop",
        "called",
    ]


def test_a_handler_may_end_the_app_and_run_returns(
    app: fasti.aio.App, fasti_client: fasti.Client
) -> None:
    @app.on("jobs")
    async def work(text: str) -> None:
        if text == "exit":
            raise SystemExit
        # It would wait for itself.
        await app.stop()

    async def story() -> None:
        await work.later("stop")
        await app.run()
        assert not app.running
        await work.later("exit")
        await app.run()

    run(story)
    counts = fasti_client.messages("jobs").count()
    assert (counts["done"], counts["ready"]) == (1, 1)


async def cancel_in_the_middle(app: fasti.aio.App, cancelled: Callable[[], None]) -> None:
    """Cancels `run` while a handler works, which ends a moment after `cancelled` was called."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.on("jobs")
    async def work(text: str) -> None:
        begun.set()
        await may_end.wait()

    await work.later("a")
    running = asyncio.create_task(app.run())
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    cancelled()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not app.running


def test_a_cancelled_run_stops_with_grace(app: fasti.aio.App, fasti_client: fasti.Client) -> None:
    run(lambda: cancel_in_the_middle(app, lambda: None))
    assert fasti_client.messages("jobs").count()["done"] == 1


def test_a_run_that_is_cancelled_while_it_starts_stops_with_grace_too(
    app: fasti.aio.App, fasti_client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, start = threading.Event(), app.base.start

    def start_slowly(**options: Any) -> None:
        start(**options)
        assert cancelled.wait(60)

    monkeypatch.setattr(app.base, "start", start_slowly)
    run(lambda: cancel_in_the_middle(app, cancelled.set))
    assert fasti_client.messages("jobs").count()["done"] == 1


def test_what_keeps_it_from_starting_is_raised_and_it_can_be_started_again(
    app: fasti.aio.App, fasti_client: fasti.Client
) -> None:
    @app.on("jobs", create=False)
    async def work(text: str) -> None: ...

    async def story() -> None:
        with pytest.raises(NotFound):
            await app.start()
        with pytest.raises(NotFound):
            await app.run()
        fasti_client.create_topic("jobs")
        async with app:
            assert app.running

    run(story)


def test_an_app_is_used_by_one_loop_after_another(
    app: fasti.aio.App, fasti_client: fasti.Client
) -> None:
    @app.on("jobs")
    async def work(text: str) -> None: ...

    async def story() -> None:
        await work.later("a")

    run(story)
    run(story)
    assert fasti_client.messages("jobs").count()["ready"] == 2


def test_in_virtual_time(app: fasti.aio.App, fasti_broker: VirtualBroker) -> None:
    got: list[int] = []

    @app.on("numbers")
    async def count_down(number: int) -> None:
        got.append(number)
        if number:
            await count_down.later(number - 1, delay="1d")

    async def story() -> None:
        await count_down.later(3)

    run(story)
    runs = fasti_broker.run_until_idle(app, until="10d")
    assert (got, [run.end for run in runs]) == ([3, 2, 1, 0], ["acked"] * 4)


def test_a_receipt_of_a_plain_app_can_be_awaited(fasti_client: fasti.Client) -> None:
    app = fasti.App(fasti_client)

    @app.on("jobs")
    def work(text: str) -> None: ...

    async def story() -> None:
        first = await work.later("a", key="k", delay="1h")
        assert (first.status, first.version) == ("ok", 1)
        assert (await work.later("a", key="k")).status == "conflict"
        receipts = [work.later(str(n), delay="1h") for n in range(100)]
        assert {(await each).status for each in receipts} == {"ok"}
        assert (await receipts[0]).ok

    run(story)
    assert fasti_client.messages("jobs").count()["scheduled"] == 101


def test_a_lifespan_and_a_real_broker(tmp_path: Path) -> None:
    """As FastAPI runs it: requests put messages, and the same process handles them."""
    with BrokerProcess(tmp_path, settings=SEGMENTS) as broker:
        app = fasti.aio.App(broker.address, owner="shop")
        handled = asyncio.Event()

        @app.on("carts")
        async def remind(cart: Cart) -> None:
            handled.set()

        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            async with app:
                yield

        async def story() -> None:
            async with lifespan():
                assert (await remind.later(Cart(7), delay="20ms")).ok
                await handled.wait()
            assert not app.running

        run(story)


PROGRAM = """
import asyncio
import fasti.aio

app = fasti.aio.App(owner="shop")


@app.on("jobs")
async def work(text: str) -> None:
    await done.later(text.upper())


@app.on("done")
async def done(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("way", ["program", "fasti run"])
def test_a_process_of_its_own_ends_by_sigterm(tmp_path: Path, way: str) -> None:
    (tmp_path / "jobs.py").write_text(PROGRAM)
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker:
        command = {
            "program": [sys.executable, "jobs.py"],
            "fasti run": [sys.executable, "-m", "fasti", "run", "jobs:app"],
        }[way]
        environment = {**os.environ, "FASTI_ADDRESS": broker.address}
        with (
            fasti.connect(broker.address) as client,
            subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            try:
                client.create_topic("jobs")
                client.producer("jobs").send(b'"hello"', content_type="application/json").result(60)
                assert process.stdout is not None
                assert process.stdout.readline().strip().endswith("HELLO")
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0
                if way == "program":
                    assert process.stdout.read().strip() == "stopped"
            finally:
                process.kill()
