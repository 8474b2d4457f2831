"""What handlers take and give, of apps of either kind, as type checkers see it. Checked, never run.

A `type: ignore` marks what must be refused: both checkers fail if it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

import fasti
import fasti.aio
from fasti.testing import Run, VirtualBroker

app = fasti.App(owner="shop")
loop_app = fasti.aio.App("fasti://127.0.0.1:7170", owner="shop", token="secret")


@dataclass
class Cart:
    id: int


@app.on("carts", concurrency=2)
def remind(cart: Cart) -> int:
    return cart.id


@app.on("both")
async def both(cart: Cart, message: fasti.Message) -> None: ...


@app.on("raw")
def raw(payload: bytes) -> None: ...


@app.on("messages")
def handle(message: fasti.Message) -> None: ...


@app.every("5m", overlap="skip")
def tick() -> None: ...


@app.on("texts")
def read(text: str, mood: str = "good") -> None: ...


@app.cron("0 9 * * *", timezone="Europe/Paris", misfire="skip", max_attempts=3)
def report(at: datetime) -> None: ...


@loop_app.on("carts", concurrency=100)
async def nudge(cart: Cart) -> None: ...


@loop_app.every("1h", payload=Cart(0))
async def sweep(cart: Cart) -> None: ...


def of_threads(levels: dict[str, Any]) -> None:
    assert_type(remind(Cart(1)), int)
    assert_type(remind.later(Cart(1), on_conflict="keep").result(), fasti.Outcome)
    assert_type(both.later(Cart(1)), fasti.Receipt)
    raw.later(b"x")
    handle.later({"any": "thing"})
    tick.later(delay="1h")
    read.later("x")
    read("x", mood="bad")
    report.later(datetime.now())  # noqa: DTZ005
    remind.later({"id": 1})  # type: ignore[arg-type]
    remind.later()  # type: ignore[call-arg]
    remind.later(Cart(1), on_conflict="never")  # type: ignore[arg-type]
    raw.later("x")  # type: ignore[arg-type]
    tick.later(3)  # type: ignore[call-overload]
    app.cron("@daily", overlap="wait")  # type: ignore[arg-type]
    app.every("1h", timzone="UTC")  # type: ignore[call-arg]


async def of_a_loop() -> None:
    assert_type(await nudge.later(Cart(1), delay="1h", key="cart-1"), fasti.Outcome)
    assert_type(await nudge.cancel(key="cart-1"), fasti.Outcome)
    assert_type(await nudge.move(key="cart-1", delay="2h"), fasti.Outcome)
    assert_type(await remind.later(Cart(1)), fasti.Outcome)
    assert_type(await loop_app.client(), fasti.aio.Client)
    await nudge(Cart(1))
    await nudge.later(7)  # type: ignore[arg-type]
    fasti.aio.App(tokn="secret")  # type: ignore[call-arg]


def in_virtual_time(broker: VirtualBroker) -> None:
    assert_type(broker.run_until_idle(app, until="3d"), list[Run])
    assert_type(broker.run_until_idle(loop_app), list[Run])
