"""One Spark session for all tests, one broker for those that only add topics of their own.

A session takes seconds to start and a gigabyte, so tests share it and never stop it; what they
set in it they set back. Tests that kill a driver run one in a process of its own.
"""

import contextlib
import itertools
import re
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import fasti
import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark.clusters import INTERPRETED

# Small and quick to start: one compiler, one collector, no page, hardly any partitions.
QUICK = {
    **INTERPRETED,
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends what Java does for a test that takes too long, some time before the test is ended.

    Java would go on, and whoever is interrupted while waiting for its answer leaves it to the next
    one who asks: all tests behind would hang, or fail with answers to what others had asked.
    """
    limit = item.get_closest_marker("timeout")
    # Asked of all tests, wherever they are.
    if limit is None or Path(__file__).parent not in item.path.parents:
        return (yield)
    watch = threading.Timer(0.8 * limit.args[0], _end_what_java_does)
    watch.start()
    try:
        return (yield)
    finally:
        watch.cancel()


def _end_what_java_does() -> None:
    context, session = SparkContext._active_spark_context, SparkSession._instantiatedSession
    if context is not None and session is not None:
        context.cancelAllJobs()
        for query in session.streams.active:
            query.stop()


def unpacked(place: Path) -> Path:
    """A home of Spark that has its Python as plain files.

    Its workers import pyspark from a zip, so each compiles it anew, most of a second long; and for
    the process of a stream Spark waits ten seconds, on a busy machine too.
    """
    real = Path(pyspark.__file__).parent
    for each in real.iterdir():
        if each.name != "python":
            (place / each.name).symlink_to(each)
    for packed in (real / "python" / "lib").glob("*.zip"):
        folder = place / "python" / "lib" / packed.name
        folder.mkdir(parents=True)
        module = import_module(re.match(r"[a-z0-9]+", packed.name)[0])  # type: ignore[index]
        (folder / module.__name__).symlink_to(Path(str(module.__file__)).parent)
    return place


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = unpacked(tmp_path_factory.mktemp("spark"))
    # Java stays where it was started, wherever tests go: relative paths must not lead into our tree.
    with (
        warnings.catch_warnings(),
        contextlib.chdir(tmp_path_factory.mktemp("java")),
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("SPARK_HOME", str(home))
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
