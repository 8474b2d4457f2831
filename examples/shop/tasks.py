"""What the shop does later, and by the clock. Workers: `fasti run tasks:app --workers 2`."""

import os
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import bank

import fasti
import fasti.aio

app = fasti.aio.App(owner="shop")  # at FASTI_ADDRESS, or the default address
REMIND_AFTER = os.environ.get("SHOP_REMIND_AFTER", "3h")
sent: list[str] = []


@dataclass
class Cart:
    id: str
    email: str
    items: dict[int, int]  # article: how many


@dataclass
class Order:
    id: str
    email: str
    card: str
    total: Decimal


def mail(to: str, text: str) -> None:
    """Where a real shop would send an email."""
    sent.append(f"{to}: {text}")
    if outbox := os.environ.get("SHOP_OUTBOX"):
        with open(outbox, "a") as file:
            file.write(sent[-1] + "\n")


@app.on("cart-reminders")
async def remind(cart: Cart) -> None:
    mail(cart.email, f"{sum(cart.items.values())} things wait in your cart")


@app.on(
    "charges",
    concurrency=8,
    max_attempts=10,
    retry=fasti.Backoff("1s", factor=2, limit="1h"),
    time_limit="30s",
)
async def charge(order: Order) -> None:
    """Anything else that goes wrong is tried again after a second, two, four, ..."""
    try:
        await bank.charge(order.card, order.total)
    except bank.Busy:
        raise fasti.Retry(delay="200ms", reason="the bank is busy") from None
    except bank.Declined as error:
        mail(order.email, f"order {order.id} was declined")
        raise fasti.Reject(str(error)) from None
    await confirm.later(order, key=order.id)


@app.on("confirmations")
def confirm(order: Order) -> None:
    mail(order.email, f"order {order.id}: {order.total} EUR, thank you")


@app.cron("0 9 * * MON-FRI", timezone="Europe/Paris", overlap="skip")
async def report(at: datetime) -> None:
    dead = (await (await app.messages("charges")).count())["dead"]
    mail("boss@example.org", f"{at:%d %B}: {dead} charges failed")
