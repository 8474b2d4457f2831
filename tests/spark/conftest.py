"""One Spark session for all tests, one broker for those that only add topics of their own.

A session takes seconds to start and a gigabyte, so tests share it and never stop it; what they
set in it they set back. Tests that kill a driver run one in a process of its own.
"""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fasti
import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client

# Small and quick to start: one compiler, one collector, no page, hardly any partitions.
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


# They end what hangs; nothing is judged by them. The first test of a process starts the session or
# the broker, on a machine that may be slow and busy.
TIMEOUT_S, SPARK_TIMEOUT_S = 180, 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        with_spark = "spark" in getattr(item, "fixturenames", ())
        if with_spark:
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S if with_spark else TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Java stays where it was started, wherever tests go: relative paths must not lead into our tree.
    with warnings.catch_warnings(), contextlib.chdir(tmp_path_factory.mktemp("java")):
        # Spark warns of its own use of other packages; that is not about us.
        warnings.simplefilter("ignore")
        session = fasti.spark.session("local[2]", "tests", **QUICK)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A real one, for the whole suite: take topics of your own from it, see `topic`."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(broker.address) as connected:
        yield connected


_numbers = itertools.count(1)


@pytest.fixture
def topic(client: Client) -> Callable[..., str]:
    """Makes a new topic with a name of its own, with the settings given."""

    def make(**settings: object) -> str:
        name = f"topic-{next(_numbers)}"
        client.create_topic(name, **settings)  # type: ignore[arg-type]
        return name

    return make
