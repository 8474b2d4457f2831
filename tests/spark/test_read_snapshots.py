"""One moment for all rows of a query, and the change feed goes on from there."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from pyspark.sql import SparkSession

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark.reading import Reading

MakeTopic = Callable[..., str]
FAR_US = 4_102_444_800_000_000


@pytest.fixture(scope="module")
def read(spark: SparkSession, broker: BrokerProcess) -> Reading:
    return Reading(spark, broker)


@pytest.mark.one_shard
def test_every_query_of_a_dataframe_sees_its_own_moment(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    name = topic()
    messages = read(name)
    assert messages.count() == 0
    client.producer(name).send_batch([b"x"] * 10, due=[FAR_US] * 10)
    assert messages.count() == 10
    assert len(messages.collect()) == 10
    client.messages(name).cancel(id=[1])
    assert len(messages.collect()) == 9


@pytest.mark.one_shard
def test_the_feed_goes_on_where_a_snapshot_ends(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    """While others write: what is in the snapshot, and what happened behind it, is everything."""
    name = topic(partitions=2)
    begun, stop = Event(), Event()

    def write() -> None:
        producer, messages = client.producer(name), client.messages(name)
        while not stop.is_set():
            ids = producer.send_batch([b"x"] * 50, due=[FAR_US] * 50).ids
            messages.cancel(
                id=ids.to_pylist()[:10] if hasattr(ids, "to_pylist") else list(ids)[:10]
            )
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            assert begun.wait(60), writing.result(timeout=0)
            snapshots = [
                read(name, columns="id,shard,snapshot_position", minPartitions=4).collect()
                for _ in range(3)
            ]
        finally:
            stop.set()
        writing.result()
    at_the_end = {row["id"] for row in read(name, columns="id").collect()}
    for rows in snapshots:
        ((shard, position),) = {(row["shard"], row["snapshot_position"]) for row in rows}
        live = Counter(row["id"] for row in rows)
        behind = read(
            name, view="changes", startingOffsets=f'{{"{shard}": {position}}}', columns="op,id"
        )
        for change in behind.collect():
            live[change["id"]] += {"produced": 1, "cancelled": -1}[change["op"]]
        assert {id_ for id_, count in live.items() if count} == at_the_end
        assert set(live.values()) <= {0, 1}


@pytest.mark.one_shard
def test_both_sides_of_a_join_may_be_sorted_and_sampled(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    """A query with several stages reads one snapshot in all of them."""
    name = topic()
    client.producer(name).send_batch([b"x"] * 5000, due=[FAR_US - n for n in range(5000)])
    messages = read(name, columns="id,due,snapshot_position")
    ordered = messages.orderBy("due").collect()
    assert [row["id"] for row in ordered] == list(range(5000, 0, -1))
    assert len({row["snapshot_position"] for row in ordered}) == 1
