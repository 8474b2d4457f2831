"""What a user does, in a session on a cluster or through Spark Connect. A process of its own.

    python -m tests.spark.elsewhere SESSION BROKER PLACE

Reads, streams and writes the topics `t`, `events` and `out`, and prints what came of it as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import fasti.spark
from tests.spark.clusters import ALL_WORKERS

_SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    **ALL_WORKERS,
}


def main(where: str, address: str, place: Path) -> dict[str, Any]:
    spark = fasti.spark.session(where, **({} if where.startswith("sc://") else _SMALL))
    told: dict[str, Any] = {}
    read = spark.read.format("fasti").options(address=address, topic="t", minPartitions="4")
    rows = read.load()
    told["due"] = rows.where("state = 'scheduled'").count()
    told["executors"] = executors(rows)
    told["streamed"] = streamed(spark, address, place)
    written = spark.range(1000).selectExpr(
        "cast(cast(id as string) as binary) payload",
        "concat('k', id) key",
        "current_timestamp() due",
    )
    written.write.format("fasti").options(address=address, topic="out").mode("append").save()
    copied(spark, address, place)
    moved = fasti.spark.apply(rows, "t", "move", shift="1h", address=address)
    told["moved"] = {
        row["status"]: row["count"] for row in moved.groupBy("status").count().collect()
    }
    told["consumed"] = consumed(spark, address)
    spark.stop()
    return told


def executors(rows: DataFrame) -> int:
    """How many processes the rows were read by."""

    def who(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"parent": [os.getppid()], "rows": [batch.num_rows]})

    found = rows.mapInArrow(who, "parent long, rows long").collect()
    return len({row.parent for row in found})


def streamed(spark: SparkSession, address: str, place: Path) -> int:
    for _ in range(2):
        query = (
            spark.readStream.format("fasti")
            .options(address=address, view="log", topic="events", maxOffsetsPerTrigger="600")
            .load()
            .writeStream.format("parquet")
            .option("path", str(place / "rows"))
            .option("checkpointLocation", str(place / "streamed"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = spark.read.parquet(str(place / "rows"))
    return found.select("partition", "offset").distinct().count()


def copied(spark: SparkSession, address: str, place: Path) -> None:
    """A log into a topic, exactly once."""
    query = (
        spark.readStream.format("fasti")
        .options(address=address, view="log", topic="events")
        .load()
        .selectExpr("payload", "current_timestamp() due")
        .writeStream.format("fasti")
        .options(address=address, topic="out", checkpointLocation=str(place / "copied"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def consumed(spark: SparkSession, address: str) -> int:
    counted: list[int] = []

    def handle(rows: DataFrame, batch: int) -> None:
        counted.append(rows.count())

    fasti.spark.consume(spark, "out", handle, address=address, once=True)
    return sum(counted)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
