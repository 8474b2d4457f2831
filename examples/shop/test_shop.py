"""The shop in virtual time: `pytest` in this directory. No broker, no sleeps."""

import asyncio
from datetime import timedelta
from decimal import Decimal

import bank
import pytest
import tasks
import web
from fastapi import HTTPException

import fasti
from fasti.testing import VirtualBroker

CART = web.CartIn(email="ann@example.org", items={7: 2, 9: 1})


def pay(card: str) -> web.Payment:
    return web.Payment(email="ann@example.org", card=card, total=Decimal("19.90"))


@pytest.fixture(autouse=True)
def shop(fasti_client: fasti.Client) -> None:
    tasks.app.bind(fasti_client)
    tasks.sent.clear()


def test_a_cart_is_reminded_of_three_hours_after_its_last_change(
    fasti_broker: VirtualBroker,
) -> None:
    asyncio.run(web.put_cart("a", CART))
    fasti_broker.run_until_idle(tasks.app, until="2h")
    assert asyncio.run(web.put_cart("a", CART)) == {"version": 2}
    fasti_broker.run_until_idle(tasks.app, until="2h")
    assert tasks.sent == []
    fasti_broker.run_until_idle(tasks.app, until="1h")
    assert tasks.sent == ["ann@example.org: 3 things wait in your cart"]


def test_a_reminder_that_no_worker_took_for_a_day_is_never_sent(
    fasti_broker: VirtualBroker, fasti_client: fasti.Client
) -> None:
    asyncio.run(web.put_cart("a", CART))
    fasti_broker.advance("2d")  # no worker runs
    fasti_broker.run_until_idle(tasks.app)
    assert tasks.sent == []
    dead = fasti_client.messages("cart-reminders").dead()
    assert dead["reason"].to_pylist() == ["expired"]


def test_who_pays_is_charged_and_not_reminded(fasti_broker: VirtualBroker) -> None:
    asyncio.run(web.put_cart("a", CART))
    paid = asyncio.run(web.check_out("a", pay("card-good")))
    assert paid == {"order": "a", "reminder": "ok"}
    with pytest.raises(HTTPException, match="409"):
        asyncio.run(web.check_out("a", pay("card-good")))
    fasti_broker.run_until_idle(tasks.app, until="12h")
    assert tasks.sent == ["ann@example.org: order a: 19.90 EUR, thank you"]


def test_a_busy_bank_is_asked_again_and_a_declined_card_is_not(fasti_broker: VirtualBroker) -> None:
    bank.busy["card-busy"] = 2
    asyncio.run(web.check_out("b", pay("card-busy")))
    asyncio.run(web.check_out("e", pay("card-empty")))
    runs = fasti_broker.run_until_idle(tasks.app, until="1m")
    tries = [run for run in runs if (run.topic, run.key) == ("charges", "b")]
    assert len(tries) == 3
    assert tries[-1].end == "acked"
    assert tries[-1].at - tries[0].at == timedelta(milliseconds=400)
    assert [run.reason for run in runs if run.end == "rejected"] == ["no 19.90 on this card"]
    assert sorted(tasks.sent) == [
        "ann@example.org: order b: 19.90 EUR, thank you",
        "ann@example.org: order e was declined",
    ]


def test_an_order_is_cancelled_or_it_is_too_late(fasti_broker: VirtualBroker) -> None:
    asyncio.run(web.check_out("a", pay("card-good")))
    assert asyncio.run(web.cancel_order("a"))["charge"] == "cancelled"
    fasti_broker.run_until_idle(tasks.app, until="1h")
    assert tasks.sent == []
    with pytest.raises(HTTPException, match="404"):
        asyncio.run(web.cancel_order("nobody's"))


def test_the_boss_hears_of_failures_on_weekdays(fasti_broker: VirtualBroker) -> None:
    asyncio.run(web.check_out("e", pay("card-empty")))
    # From a Wednesday noon: Thursday, Friday and Monday at nine in Paris.
    runs = fasti_broker.run_until_idle(tasks.app, until="5d")
    assert [run.at.day for run in runs if run.topic == "report"] == [7, 8, 11]
    assert tasks.sent[1] == "boss@example.org: 07 March: 1 charges failed"
