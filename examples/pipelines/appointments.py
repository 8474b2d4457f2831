"""Reminders an hour before each appointment, kept in step with a log of what happens to appointments.

    fasti serve
    python examples/pipelines/appointments.py             # some appointments, and one run
    cd examples/pipelines && fasti pipeline user appointments:pipeline     # goes on until Ctrl-C

Of each micro-batch the last word on an appointment counts: booked, moved, or called off. A reminder
has the appointment's name as its key, so it is made once, moved, or cancelled.
"""

import json
from datetime import UTC, datetime

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import fasti
import fasti.spark
from fasti.pipeline import Pipeline, log, topic

EVENTS, REMINDERS = "example-appointments", "example-reminders"
pipeline = Pipeline("example-appointments")


@pipeline.step(
    {
        "made": topic(REMINDERS, onConflict="skip"),
        "moved": topic(REMINDERS, "move"),
        "called_off": topic(REMINDERS, "cancel"),
    },
    every="2s",
    events=log(EVENTS),
)
def remind(events: DataFrame) -> dict[str, DataFrame]:
    """The last word on each appointment as reminders that are made, moved or cancelled."""
    last = last_words(events)
    kept = last.where("at is not null").select(
        "key", (F.col("at") - F.expr("interval 1 hour")).alias("due")
    )
    return {
        "made": kept.withColumn("payload", F.concat(F.lit("in an hour: "), "key")),
        "moved": kept,
        "called_off": last.where("at is null").select("key"),
    }


def last_words(events: DataFrame) -> DataFrame:
    """A row for each appointment: when it is by now, null if it is called off."""
    latest_first = Window.partitionBy("key").orderBy(F.desc("offset"))
    at = F.get_json_object(F.col("payload").cast("string"), "$.at").cast("timestamp")
    return (
        events.withColumn("number", F.row_number().over(latest_first))
        .where("number = 1")
        .select("key", at.alias("at"))
    )


def say(client: fasti.Client, name: str, at: str | None) -> None:
    """Something happens to an appointment."""
    client.producer(EVENTS).send(json.dumps({"at": at}).encode(), key=name).result()


def show(client: fasti.Client) -> None:
    """The reminders that are scheduled."""
    for row in client.messages(REMINDERS).list(payload=True).sort_by("due_us").to_pylist():
        due = datetime.fromtimestamp(row["due_us"] / 1e6, UTC)
        print(f"{due:%d %b %H:%M} {row['payload'].decode()}")


def main() -> None:
    """A day of appointments."""
    spark = fasti.spark.session()
    with fasti.connect() as client:
        client.create_topic(EVENTS, kind="log", partitions=2)
        client.create_topic(REMINDERS)
        say(client, "dentist", "2035-01-02T10:00:00Z")
        say(client, "haircut", "2035-01-02T15:00:00Z")
        say(client, "haircut", "2035-01-02T16:00:00Z")
        pipeline.run(spark, once=True)
        show(client)
        say(client, "dentist", "2035-01-03T09:30:00Z")
        say(client, "haircut", None)
        say(client, "lunch", "2035-01-02T12:30:00Z")
        pipeline.run(spark, once=True)
        print("later:")
        show(client)


if __name__ == "__main__":
    main()
