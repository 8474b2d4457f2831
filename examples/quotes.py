"""Requests and replies: ask for a quote, with somebody who falls silent in the middle.

    python examples/quotes.py

Two workers answer requests. The first takes one and never comes back: its lease ends, the second
gets the request, and the caller has its answer all the same. Then both stop, a caller waits in vain,
and its request is withdrawn. Last a worker answers too late, and is told so.
"""

import threading

import fasti
from connection import connected

TOPIC = "example-quotes"


def work(client: fasti.Client, name: str, silent: bool, done: threading.Event) -> None:
    """Answers requests until it is told to stop; a silent one takes the first and leaves."""
    consumer = client.consumer(TOPIC, name=name, prefetch=1, timeout="100ms")
    while not done.is_set():
        for message in consumer:
            if silent:
                print(f"{name} takes the request and falls silent")
                consumer.close()
                return
            message.reply(f"{len(message.payload) * 3} EUR, says {name}".encode())
    consumer.close()


def main(client: fasti.Client) -> None:
    """The story."""
    client.create_topic(TOPIC, lease="3s", lookahead=0)
    done = threading.Event()
    first = threading.Thread(target=work, args=(client, "anna", True, done))
    first.start()
    asked = threading.Thread(
        target=lambda: print("answer:", client.call(TOPIC, b"a teapot", timeout="1m").payload)
    )
    asked.start()
    first.join()
    second = threading.Thread(target=work, args=(client, "ben", False, done))
    second.start()
    asked.join()
    print("requests done:", client.messages(TOPIC).count()["done"])
    done.set()
    second.join()

    try:
        client.call(TOPIC, b"a cup", timeout="1s")
    except fasti.errors.TimedOut as late:
        print("nobody there:", late.details["status"], "-", "withdrawn" in late.message)

    caller = threading.Thread(target=ask_briefly, args=(client,))
    caller.start()
    with client.consumer(TOPIC) as consumer:
        message = next(consumer)
        caller.join()
        outcome = message.reply(b"9 EUR")
    print("the reply is", outcome.status, "-", outcome.reason)


def ask_briefly(client: fasti.Client) -> None:
    """A caller without patience."""
    try:
        client.call(TOPIC, b"a spoon", timeout="4s")
    except fasti.errors.TimedOut:
        print("gave up in time")


if __name__ == "__main__":
    with connected() as connection:
        main(connection)
