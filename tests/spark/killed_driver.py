"""A driver for tests to kill, in a process of its own: what it shall do comes as JSON.

    python -m tests.spark.killed_driver JSON

It copies the log `log` into the timeline `topic`, in micro-batches of `rows`, to the end of what is
there. Every row has a part that is another one whenever it is computed.
"""

import json
import os
import sys

from pyspark.sql import functions as F

import fasti.spark
from tests.spark import weak_source

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # So that a task has several batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
}


def main(told: dict[str, str]) -> None:
    # Its workers kill it by this.
    os.environ["DRIVER_GROUP"] = str(os.getpgid(0))
    # With the 4 tasks that fail are run again.
    spark = fasti.spark.session("local[2,4]", "killed", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    weak_source.register(spark)
    broker = {"address": told["address"]}
    rows = (
        spark.readStream.format("fasti")
        .options(**broker, view="log", topic=told["log"], maxOffsetsPerTrigger=told["rows"])
        .load()
    )
    due = F.timestamp_seconds(F.lit(4_102_444_800) + F.col("payload").cast("string").cast("long"))
    query = (
        rows.select(
            "key", due.alias("due"), F.expr("concat(payload, ' ', uuid())").alias("payload")
        )
        .writeStream.format("fasti-weak")
        .options(**broker, topic=told["topic"], checkpointLocation=told["checkpoint"])
        .option("weak", told["weak"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
