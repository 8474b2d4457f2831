"""What the tests of reads share."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fasti.broker.launch import BrokerProcess


class Reading:
    """`spark.read` of one broker, options by name."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess) -> None:
        self._spark, self._broker = spark, broker

    def __call__(self, topic: str | None = None, **options: Any) -> DataFrame:
        if topic is not None:
            options["topic"] = topic
        found = {name: str(value) for name, value in options.items()}
        return (
            self._spark.read.format("fasti").options(address=self._broker.address, **found).load()
        )


def why(error: BaseException) -> str:
    """The line of an error of Spark's that a user looks for."""
    lines = [line for line in str(error).splitlines() if "[FASTI." in line]
    assert lines, str(error)
    return lines[-1].strip()
