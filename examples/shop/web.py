"""The shop's API. Run it by `uvicorn web:web`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from tasks import REMIND_AFTER, Cart, Order, app, charge, remind


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    await app.client()  # connected before the first request comes
    yield
    await app.close()


web = FastAPI(lifespan=lifespan)


class CartIn(BaseModel):
    email: str
    items: dict[int, int]


class Payment(BaseModel):
    email: str
    card: str
    total: Decimal


@web.put("/carts/{cart_id}")
async def put_cart(cart_id: str, given: CartIn) -> dict[str, int]:
    """Every change of a cart puts its reminder off; a day late it would only annoy."""
    cart = Cart(cart_id, given.email, given.items)
    outcome = await remind.later(
        cart, key=cart_id, delay=REMIND_AFTER, expires="1d", on_conflict="replace"
    )
    return {"version": outcome.version}


@web.post("/carts/{cart_id}/checkout", status_code=202)
async def check_out(cart_id: str, payment: Payment) -> dict[str, str]:
    """Durable when it answers: the order will be charged, once."""
    order = Order(cart_id, payment.email, payment.card, payment.total)
    outcome = await charge.later(order, key=cart_id)
    if not outcome.ok:
        raise HTTPException(409, "this order is being charged")
    reminder = await remind.cancel(key=cart_id)
    return {"order": cart_id, "reminder": reminder.status}


@web.delete("/orders/{order_id}")
async def cancel_order(order_id: str) -> dict[str, str]:
    """After a 200 it is never charged; a 409 says why it is too late."""
    outcome = await charge.cancel(key=order_id)
    if outcome.status == "not_found":
        raise HTTPException(404, "no such order is pending")
    if not outcome.ok:
        raise HTTPException(409, outcome.status)
    return {"order": order_id, "charge": "cancelled"}
