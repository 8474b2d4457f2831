"""What a stream that follows the change feed costs the broker: its produce rate with and without.

Broker, producer and Spark share the machine's cores, so this says as much about Spark, which takes
what it can get, as about the broker: what that spends itself is in `broker_cpu_us`, for each message.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import fasti
from benchmarks.spark_timing import seconds_of
from benchmarks.wire import broker, run_job
from fasti.broker.launch import BrokerProcess

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
        _produce(process, "warm", rows // 4)
        with _following(spark, process, directory) as query:
            _produce(process, "warm", rows // 4)
            query.processAllAvailable()
        show(f"produce {rows:,} messages without a stream, and with one that follows")
        for _ in range(rounds):
            alone.append(_produce(process, "orders", rows))
            with _following(spark, process, directory) as query:
                query.processAllAvailable()
                beside.append(_produce(process, "orders", rows))
                behind.append(seconds_of(query.processAllAvailable))
    (without, cpu_us), (under, more_us) = (
        [statistics.median(each) for each in zip(*pairs, strict=True)] for pairs in (alone, beside)
    )
    return {
        "following": {
            "rows": rows,
            "produced_per_s": round(without),
            "produced_under_a_stream_per_s": round(under),
            "of_alone": round(under / without, 3),
            "caught_up_s": round(statistics.median(behind), 2),
            "broker_cpu_us": round(cpu_us, 3),
            "broker_cpu_us_under_a_stream": round(more_us, 3),
        }
    }


def _produce(process: BrokerProcess, topic: str, rows: int) -> tuple[float, float]:
    """Messages a second, and the broker's time on a core for each of them."""
    with fasti.connect(process.address) as client:
        client.create_topic(topic)
        before_s = _cpu_s(process.pid)
        told = run_job("produce_batches", process.address, topic=topic, rows=rows)
        cpu_us = (_cpu_s(process.pid) - before_s) * 1e6 / rows
        # What is done with needs no memory, and the next round finds the broker as this one did.
        client.delete_topic(topic)
    return told["messages_per_s"], cpu_us


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _following(
    spark: SparkSession, process: BrokerProcess, directory: Path | None
) -> Iterator[Any]:
    """A stream from now on, as often as Spark can, while the body runs."""
    options = {"address": process.address, "view": "changes", "startingOffsets": "latest"}
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as checkpoint:
        changes = spark.readStream.format("fasti").options(**options).load()
        writer = changes.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()
