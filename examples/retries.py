"""Retries: a failed message comes back after a growing delay, and is dead after its last attempt.

python examples/retries.py
"""

import tempfile

import numpy as np

from fasti.broker.session import Delivery
from fasti.broker.shard import Shard
from fasti.core.commands import Ack, Count, CreateTopic, Nack, Produce, Redrive, When
from fasti.core.keys import Rows
from fasti.model import RetryPolicy, TopicSettings
from fasti.storage.files import LocalFiles

SETTINGS = TopicSettings(
    max_attempts=3,
    retry=RetryPolicy(base_us=50_000, factor=2.0, limit_us=1_000_000, jitter=0.0),
)
REPAIRED: list[bool] = []


def handle(payload: bytes, attempt: int) -> None:
    """Works at the second attempt for one message, and for the other not before it is repaired."""
    if payload == b"flaky" and attempt < 2:
        raise ConnectionError("try again")
    if payload == b"broken" and not REPAIRED:
        raise ValueError("no such address")


def work(shard: Shard, delivery: Delivery) -> None:
    """One message: an ack when it is done, a nack with the reason when it failed."""
    leased = delivery.leased
    payload = delivery.payloads.column("payload")[0].as_py()
    attempt = int(leased.attempts[0])
    token = np.array([leased.token])
    try:
        handle(payload, attempt)
    except Exception as error:
        print(f"{payload.decode()}: attempt {attempt} failed: {error}")
        shard.call(Nack("jobs", leased.ids, token, reason=str(error)))
    else:
        print(f"{payload.decode()}: attempt {attempt} worked")
        shard.call(Ack("jobs", leased.ids, token))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        shard = Shard(LocalFiles(directory))
        shard.call(CreateTopic("jobs", SETTINGS))
        sent = shard.call(Produce("jobs", Rows.of([b"flaky", b"broken"]), When(delay_us=0)))

        session = shard.open_session()
        while shard.call(Count("jobs")).states["dead"] < 1:
            session.lease("jobs", "worker", count=1)
            delivery = session.receive(timeout=2.0)
            assert delivery is not None, "something is left until one is dead"
            work(shard, delivery)

        print("dead:", shard.call(Count("jobs")).states["dead"])
        REPAIRED.append(True)
        shard.call(Redrive("jobs", sent.ids[1:]))
        session.lease("jobs", "worker", count=1)
        delivery = session.receive(timeout=2.0)
        assert delivery is not None, "it was redriven"
        work(shard, delivery)
        print("done:", shard.call(Count("jobs")).states["done"])
        session.close()
        shard.close()


if __name__ == "__main__":
    main()
