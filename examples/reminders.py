"""Reminders: put a message at a moment, move it, cancel it, and get the rest on time.

    python examples/reminders.py

The key is the application's own name for a reminder, so nobody has to keep ids. Every change is
answered with what became of it; a cancel that answered `ok` is never delivered.
"""

from datetime import UTC, datetime, timedelta

from connection import connected

TOPIC = "example-reminders"


def main() -> None:
    with connected(owner="calendar") as client:
        client.create_topic(TOPIC)
        with client.producer(TOPIC) as producer:
            producer.send(b"the tea is ready", key="tea", delay="100ms")
            producer.send(b"call mother", key="call", delay=timedelta(milliseconds=200))
            producer.send(b"put the bins out", key="bins", delay="300ms")
            producer.send(b"go to bed", key="bed", at=datetime.now(UTC) + timedelta(seconds=0.4))

        reminders = client.messages(TOPIC)
        print("move tea:", reminders.move(key="tea", delay="600ms").status)
        print("cancel bins:", reminders.cancel(key="bins").status)
        print("cancel gym:", reminders.cancel(key="gym").status)
        counts = reminders.count()
        print("pending:", counts["scheduled"] + counts["ready"])

        with client.consumer(TOPIC) as consumer:
            for message in consumer:
                assert message.started_us >= message.due_us, "never early"
                print("reminder:", message.payload.decode())
                message.ack()
                if message.key == "tea":
                    break

        late = reminders.cancel(key="call")
        print("cancel call afterwards:", late.status)
        assert late.at is not None, "a finished message says when it was finished"


if __name__ == "__main__":
    main()
