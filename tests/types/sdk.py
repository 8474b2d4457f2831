"""What the SDK's calls give and take, as type checkers see it. Checked, never run.

A `type: ignore` marks what must be refused: both checkers fail if it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import fasti
import fasti.aio
from fasti.client.arguments import MessageMetadata, PendingMessage, Status


def connecting() -> None:
    assert_type(
        fasti.connect("fasti://127.0.0.1:7170", owner="billing", timeout="5s"), fasti.Client
    )
    assert_type(fasti.connect("embedded:./data", durability="interval"), fasti.Client)
    fasti.connect("embedded:./data", durability="sometimes")  # type: ignore[arg-type]
    fasti.connect(adress="fasti://127.0.0.1:7170")  # type: ignore[call-arg]
    fasti.App("fasti://127.0.0.1:7170", token="secret", grace="10s")
    fasti.App(tokn="secret")  # type: ignore[call-arg]


def topics(client: fasti.Client) -> None:
    assert_type(client.create_topic("emails", lease="30s", max_attempts=5), fasti.Topic)
    client.create_topic("emails", retry=fasti.Backoff("1s"), kind="priority")
    client.create_topic("emails", kind="queue")  # type: ignore[arg-type]
    client.create_topic("emails", max_atempts=5)  # type: ignore[call-arg]
    client.change_topic("emails", partitions=4)  # type: ignore[call-arg]


def schedules(client: fasti.Client) -> None:
    reports = client.schedules("reports")
    assert_type(reports.put("daily", cron="@daily", target="t", misfire="skip"), fasti.Outcome)
    reports.put("daily", cron="@daily", target="t", misfire="never")  # type: ignore[arg-type]
    reports.preview(every="5m", fold="third")  # type: ignore[arg-type]


def messages(client: fasti.Client) -> None:
    emails = client.messages("emails")
    assert_type(emails.cancel(key="user-7"), fasti.Outcome)
    assert_type(emails.cancel(key="user-7").status, Status)
    assert_type(emails.cancel(id=[1, 2, 3]), fasti.Outcomes)
    assert_type(emails.move(id=7, delay="1h"), fasti.Outcome)
    assert_type(emails.move(key=["a", "b"], delay="1h").status, list[Status])
    assert_type(emails.update(key="user-7", payload=b""), fasti.Outcome)
    assert_type(emails.get(key="user-7"), PendingMessage | None)
    assert_type(emails.get(id=7, payload=False), MessageMetadata | None)
    assert_type(emails.count(), dict[str, int])
    assert_type(emails.redrive(17), fasti.Outcome)
    assert_type(emails.redrive(reason="refused"), fasti.DeadOutcomes)
    assert_type(emails.purge([1, 2]), fasti.Outcomes)
    emails.list(state="pending")  # type: ignore[arg-type]
    emails.move(key=7, delay="1h")  # type: ignore[call-overload]
    if emails.cancel(key="user-7").status == "canceled":  # type: ignore[comparison-overlap]
        pass


async def messages_of_a_loop(client: fasti.aio.Client) -> None:
    emails = client.messages("emails")
    assert_type(await emails.cancel(key="user-7"), fasti.Outcome)
    assert_type(await emails.move(id=[1, 2], delay="1h"), fasti.Outcomes)
    assert_type(await emails.get(key="user-7"), PendingMessage | None)
    assert_type(await client.create_topic("emails", kind="log"), fasti.Topic)
    await client.create_topic("emails", kind="queue")  # type: ignore[arg-type]


@dataclass
class Cart:
    id: int


app = fasti.App()


@app.on("carts")
def remind(cart: Cart) -> None: ...


def handlers() -> None:
    assert_type(remind.later(Cart(7), delay="1h", key="cart-7"), fasti.Receipt)
    assert_type(remind.later(Cart(7)).result(), fasti.Outcome)
    assert_type(remind.cancel(key="cart-7"), fasti.Outcome)
    remind.later(7)  # type: ignore[arg-type]
    remind.later(Cart(7), dely="1h")  # type: ignore[call-arg]


def finishing(client: fasti.Client) -> None:
    for message in client.consumer("emails"):
        assert_type(message.ack(wait=True), fasti.Outcome)
        assert_type(message.nack("why", delay="5m", wait=True).status, Status)
        assert_type(message.release(delay="1m"), fasti.Outcome | None)
    for batch in client.consumer("emails").batches(10_000):
        assert_type(batch.ack(wait=True), fasti.Outcomes)


async def finishing_in_a_loop(client: fasti.aio.Client) -> None:
    async for message in client.consumer("emails"):
        assert_type(await message.ack(wait=True), fasti.Outcome)
        assert_type(await message.reject("why", wait=True), fasti.Outcome)
