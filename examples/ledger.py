"""A ledger of events, read by everybody: a group that works it off, one that fell behind, a rebuild.

    python examples/ledger.py

Events stay in the log. The mailer is a group: each event goes to one of its workers, failures come
again. The balances are a reader's: they can be built anew at any time, from the first event or from
where a saved position says.
"""

import json
from collections import Counter
from typing import Any

import fasti
from connection import connected
from fasti.errors import Gone

TOPIC = "example-ledger"
EVENTS = [
    ("anna", 100),
    ("ben", 50),
    ("anna", -30),
    ("cleo", 20),
    ("ben", -50),
    ("anna", 5),
]


def append(client: fasti.Client) -> None:
    """Events of an account share a partition, so they keep their order."""
    with client.producer(TOPIC) as producer:
        for account, amount in EVENTS:
            event = json.dumps({"account": account, "amount": amount}).encode()
            producer.send(event, key=account, content_type="application/json")


def balances(client: fasti.Client, start: Any, known: Counter[str]) -> dict[int, int]:
    """Adds up what a reader finds; returns where it got to."""
    reader = client.reader(TOPIC, start=start)
    for message in reader:
        event = json.loads(message.payload)
        known[event["account"]] += event["amount"]
    return reader.position


def send_mails(client: fasti.Client) -> Counter[str]:
    """A worker of the group `mailer`. One mail server refuses the first try."""
    sent: Counter[str] = Counter()
    with client.consumer(TOPIC, group="mailer") as consumer:
        for message in consumer:
            event = json.loads(message.payload)
            if event["account"] == "cleo" and message.attempts == 1:
                message.nack("try again later")
                continue
            sent[event["account"]] += 1
            message.ack()
            if sent.total() == len(EVENTS):
                break
    return sent


def main() -> None:
    """Two days of events."""
    with connected() as client:
        tell(client)


def tell(client: fasti.Client) -> None:
    """What happens."""
    client.create_topic(TOPIC, kind="log", partitions=2, retry=fasti.Backoff("50ms"))
    groups = client.groups(TOPIC)
    groups.create("archive")
    append(client)

    known: Counter[str] = Counter()
    position = balances(client, "earliest", known)
    print("balances:", dict(sorted(known.items())))

    print("mails:", dict(sorted(send_mails(client).items())))
    print("lag of the mailer:", groups.lag("mailer"), "of the archive:", groups.lag("archive"))

    append(client)
    balances(client, position, known)
    print("after the second day:", dict(sorted(known.items())))

    # The archive never ran, and the first day is dropped: it is told, and decides.
    for partition, offset in position.items():
        client.log(TOPIC).truncate(offset, partition=partition)
    try:
        next(client.consumer(TOPIC, group="archive"))
    except Gone:
        print("the archive is behind by", groups.describe("archive").behind, "events")
    print("it goes on with", groups.reset("archive", to="earliest").lag)


if __name__ == "__main__":
    main()
