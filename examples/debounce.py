"""Debounce: act once a document has been quiet for a while, however often it changes before.

    python examples/debounce.py

Each change replaces the pending message of the document's key and puts its due time off, so there
is never more than one, and it holds the last state.
"""

import time

from connection import connected

TOPIC = "example-index"
QUIET = "300ms"


def main() -> None:
    with connected() as client:
        client.create_topic(TOPIC)
        producer = client.producer(TOPIC)
        for text in ("D", "Dr", "Dra", "Draft"):
            sent = producer.send(text.encode(), key="letter", delay=QUIET, on_conflict="replace")
            outcome = sent.result()
            print(f"typed {text!r}: {outcome.status}, version {outcome.version}")
            time.sleep(0.03)
        counts = client.messages(TOPIC).count()
        print("pending:", counts["scheduled"] + counts["ready"])

        with client.consumer(TOPIC) as consumer:
            message = next(consumer)
            print(f"indexed {message.payload.decode()!r} of version {message.version}")
            message.ack()
        counts = client.messages(TOPIC).count()
        print("indexed in all:", counts["done"], "left:", counts["scheduled"] + counts["ready"])


if __name__ == "__main__":
    main()
