"""Retries: a failed message comes back after a growing delay, and is dead after its last attempt.

    python examples/retries.py

`nack` means "try again": the topic's backoff says when. `reject` means "never try again". Both keep
the reason. The dead wait, with their payloads, until somebody redrives or purges them.
"""

import fasti
from connection import connected

TOPIC = "example-jobs"
repaired = False


class NoSuchAddress(Exception):
    """Trying again would not help."""


def handle(payload: bytes, attempt: int) -> None:
    """Fails in three ways: for a moment, for a while, for ever."""
    if payload == b"flaky" and attempt == 1:
        raise ConnectionError("connection reset")
    if payload == b"broken" and not repaired:
        raise ConnectionError("host is down")
    if payload == b"wrong":
        raise NoSuchAddress("no such address")


def work(client: fasti.Client) -> None:
    """Works until nothing is left to do."""
    with client.consumer(TOPIC, timeout="200ms") as consumer:
        while open_jobs(client):
            for message in consumer:
                attempt(message)


def open_jobs(client: fasti.Client) -> int:
    """Those that will be tried, now or later."""
    counts = client.messages(TOPIC).count()
    return counts["scheduled"] + counts["ready"] + counts["leased"]


def attempt(message: fasti.Message) -> None:
    """One try, and what is said of it."""
    told = f"{message.payload.decode()}: attempt {message.attempts}"
    try:
        handle(message.payload, message.attempts)
    except NoSuchAddress as error:
        print(f"{told} failed for good: {error}")
        message.reject(str(error))
    except Exception as error:
        print(f"{told} failed: {error}")
        message.nack(str(error))
    else:
        print(f"{told} worked")
        message.ack()


def main() -> None:
    global repaired
    with connected() as client:
        # 50 ms after the first failure, 100 ms after the second, ...
        backoff = fasti.Backoff("50ms", factor=2, limit="1s", jitter=0)
        client.create_topic(TOPIC, max_attempts=3, retry=backoff)
        with client.producer(TOPIC) as producer:
            for payload in (b"flaky", b"broken", b"wrong"):
                producer.send(payload)
        work(client)

        jobs = client.messages(TOPIC)
        dead = jobs.dead(payload=True)
        for payload, reason in zip(dead["payload"], dead["reason"], strict=True):
            print(f"dead: {payload.as_py().decode()}: {reason}")

        repaired = True
        worth_it = [row["id"] for row in dead.to_pylist() if row["reason"] == "host is down"]
        print("redrive:", jobs.redrive(worth_it).counts())
        work(client)
        print("purge:", jobs.purge().counts())
        counts = jobs.count()
        print("done:", counts["done"], "dead:", counts["dead"])


if __name__ == "__main__":
    main()
