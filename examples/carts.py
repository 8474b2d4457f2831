"""Expiring carts: a cart lives on while somebody uses it, expires otherwise, or is checked out.

    python examples/carts.py

The pending message *is* the cart's expiry. Activity moves it, checking out cancels it. The answer of
the cancel decides the race between a checkout and the expiry: exactly one of them wins, and both
sides know which, without a lock or a flag in a database.
"""

import threading
import time

import fasti
from connection import connected

TOPIC = "example-carts"
CARTS = [f"cart-{number}" for number in range(200)]


class Shop:
    """What the shop's web servers do."""

    def __init__(self, client: fasti.Client) -> None:
        self.expiries = client.messages(TOPIC)
        self.producer = client.producer(TOPIC)
        self.ordered: set[str] = set()

    def open(self, cart: str, lifetime: str) -> None:
        """Somebody begins a cart."""
        self.producer.send(b"", key=cart, delay=lifetime)

    def touch(self, cart: str, lifetime: str) -> str:
        """Somebody puts something into it: it lives on."""
        return self.expiries.move(key=cart, delay=lifetime).status

    def check_out(self, cart: str) -> str:
        """Somebody pays. Whether there is still a cart is the broker's answer."""
        outcome = self.expiries.cancel(key=cart)
        if outcome.ok:
            self.ordered.add(cart)
            return "ordered"
        # leased: it is being cleared right now; done: it was.
        assert outcome.status in ("leased", "done"), outcome
        return "too late, the cart has expired"


def clear(consumer: fasti.Consumer, expired: set[str]) -> None:
    """The worker that clears carts when their time has come, until its consumer is closed."""
    for message in consumer:
        assert message.key is not None
        expired.add(message.key)
        message.ack()


def main() -> None:
    with connected(owner="shop") as client:
        client.create_topic(TOPIC)
        shop = Shop(client)
        expired: set[str] = set()
        consumer = client.consumer(TOPIC)
        worker = threading.Thread(target=clear, args=(consumer, expired))

        shop.open("anna", "100ms")
        print("anna goes on shopping:", shop.touch("anna", "1h"))
        print("anna pays:", shop.check_out("anna"))
        shop.open("ben", "10ms")
        for cart in CARTS:
            shop.open(cart, "400ms")
        worker.start()

        # Two hundred customers pay in the very moment in which their carts expire.
        time.sleep(0.25)
        for cart in CARTS:
            shop.check_out(cart)
        while any(shop.expiries.count()[state] for state in ("scheduled", "ready", "leased")):
            time.sleep(0.01)
        consumer.close()
        worker.join()
        print("ben pays:", shop.check_out("ben"))

        carts = {*CARTS, "anna", "ben"}
        both, neither = shop.ordered & expired, carts - shop.ordered - expired
        print(f"{len(shop.ordered)} ordered, {len(expired)} expired")
        print(f"both: {len(both)}, neither: {len(neither)}")


if __name__ == "__main__":
    main()
