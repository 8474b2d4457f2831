"""What users read when a send can't be, or was refused and nothing read it: what to do next."""

from __future__ import annotations

from typing import Literal

import pytest

import fasti


@pytest.mark.parametrize(
    ("kind", "instead"), [("cron", "fasti schedules put"), ("kv", "fasti kv put")]
)
def test_a_send_to_what_takes_no_messages(
    fasti_client: fasti.Client, kind: Literal["cron", "kv"], instead: str
) -> None:
    fasti_client.create_topic("nightly", kind=kind)
    with pytest.raises(fasti.errors.InvalidArgument, match=instead):
        fasti_client.producer("nightly").send(b"x").result()


def test_unread_failures_of_a_flush(fasti_client: fasti.Client) -> None:
    fasti_client.create_topic("carts")
    producer = fasti_client.producer("carts")
    assert producer.send(b"1", key="cart-7", delay="1h").result().ok
    producer.send(b"2", key="cart-7", delay="1h")
    with pytest.raises(fasti.errors.RowsFailed) as caught:
        producer.flush()
    assert caught.value.message == (
        "1 message of 'carts' failed, and the outcome was not read; "
        "the first: send: conflict (key 'cart-7', id 1)"
    )
