"""Schedules: a report every morning in Paris, and a job that must not overtake itself.

    python examples/reports.py

First what an expression means around the day on which the clock changes. Then a schedule of every
200 ms whose worker takes twice as long: with `overlap="skip"` it never has two at once, and what is
passed over is counted. Last it rests, runs once because somebody wants it, and is deleted.
"""

import time
from datetime import UTC, datetime
from itertools import islice

import fasti
from connection import connected

JOBS, SCHEDULES = "example-jobs", "example-schedules"


def main(client: fasti.Client) -> None:
    """The story."""
    client.create_topic(JOBS)
    client.create_topic(SCHEDULES, kind="cron")
    schedules = client.schedules(SCHEDULES)

    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    paris = {"cron": "30 2 * * *", "timezone": "Europe/Paris", "fold": "both"}
    for occurrence in schedules.preview(count=3, after=before, **paris):
        print(f"{occurrence.at:%d %b %H:%M} UTC is {occurrence.local:%d %b %H:%M %z} in Paris")

    schedules.put("job", every="200ms", target=JOBS, overlap="skip", payload=b"tidy up")
    with client.consumer(JOBS) as consumer:
        for _ in range(3):
            message = next(consumer)
            print(f"{message.headers['fasti-schedule']}: {message.payload.decode()}")
            time.sleep(0.4)
            message.ack(wait=True)
    schedules.pause("job")
    job = schedules.get("job")
    left = client.messages(JOBS).count()["ready"]
    print("never two at once:", left <= 1)
    print("some passed over:", job.skipped >= 2)

    with client.consumer(JOBS) as consumer:
        for message in islice(consumer, left):
            message.ack(wait=True)
    print("run now:", schedules.run_now("job").status)
    print("again, though it is not finished:", schedules.run_now("job").status)
    schedules.delete("job")
    print("schedules left:", len(schedules.list()))


if __name__ == "__main__":
    with connected() as client:
        main(client)
