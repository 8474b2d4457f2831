"""What a stream that follows the change feed costs the broker: its produce rate with and without."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import fasti
from fasti.bench.spark_timing import seconds_of
from fasti.bench.wire import broker, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]

PHASES = 2


def measure(
    spark: SparkSession, directory: Path | None, rows: int, rounds: int, show: Show
) -> Figures:
    """Batches of 5,000 by a client of its own; the stream reads all columns of every transition."""
    alone, beside, behind = [], [], []
    with broker(directory) as process:
        show("produce without a stream, and with one that follows: warming up")
        _produce(process.address, "warm", rows // 4)
        with _following(spark, process.address, directory) as query:
            _produce(process.address, "warm", rows // 4)
            query.processAllAvailable()
        show(f"produce {rows:,} messages without a stream, and with one that follows")
        for _ in range(rounds):
            alone.append(_produce(process.address, "orders", rows))
            with _following(spark, process.address, directory) as query:
                query.processAllAvailable()
                beside.append(_produce(process.address, "orders", rows))
                behind.append(seconds_of(query.processAllAvailable))
    without, under = statistics.median(alone), statistics.median(beside)
    return {
        "following": {
            "rows": rows,
            "produced_per_s": round(without),
            "produced_under_a_stream_per_s": round(under),
            "of_alone": round(under / without, 3),
            "caught_up_s": round(statistics.median(behind), 2),
        }
    }


def _produce(address: str, topic: str, rows: int) -> float:
    with fasti.connect(address) as client:
        client.create_topic(topic)
        rate: float = run_job("produce_batches", address, topic=topic, rows=rows)["messages_per_s"]
        # What is done with needs no memory, and the next round finds the broker as this one did.
        client.delete_topic(topic)
    return rate


@contextmanager
def _following(spark: SparkSession, address: str, directory: Path | None) -> Iterator[Any]:
    """A stream from now on, as often as Spark can, while the body runs."""
    options = {"address": address, "view": "changes", "startingOffsets": "latest"}
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as checkpoint:
        changes = spark.readStream.format("fasti").options(**options).load()
        writer = changes.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()
