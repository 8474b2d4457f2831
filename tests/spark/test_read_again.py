"""A DataFrame that is read more than once.

Spark keeps what `partitions` answered with the table of a `load()`, and asks again only when a query
has filters to push. So a plan that was made for a filter would serve queries without one, too: that
is why filters are pushed only where the user says that there is one query.
"""

from collections.abc import Callable

from pyspark.sql import SparkSession

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client


def test_what_was_filtered_once_is_whole_again(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    client.producer(name).send_batch([b"a"] * 10, due=[i * 1_000_000 + 10**15 for i in range(10)])
    options = {"address": broker.address, "topic": name}
    messages = spark.read.format("fasti").options(**options).load()
    assert messages.filter("due < timestamp_seconds(1000000003)").count() == 3
    assert messages.count() == 10
    assert messages.count() == 10
