"""Machines that lack something: no Java, no PySpark, a session that somebody else made."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client

MakeTopic = Callable[..., str]

# A session by session(), or one that PySpark made by itself and that finds the source by its name.
SMALL = """
import os, sys
address, topic, how = sys.argv[1:]
if how == "ours":
    import fasti.spark
    spark = fasti.spark.session("local[1]", **{"spark.driver.memory": "512m"})
else:
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
found = spark.read.format("fasti").options(address=address, topic=topic, columns="payload").load()
print("read", [bytes(row[0]) for row in found.where("payload is not null").collect()])
print("java", os.environ.get("JAVA_HOME"))
spark.stop()
"""


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        | environment,
    )


@pytest.fixture
def hello(client: Client, topic: MakeTopic) -> str:
    name = topic()
    client.producer(name).send(b"hello", delay="1h").result(timeout=10)
    return name


# The demo's test runs on the packaged one as well.
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_machine_without_java_reads_with_the_packaged_one(
    broker: BrokerProcess, hello: str, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "env", "ps", "uname", "cat", "rm", "ls"):
        found = next((p for p in (Path("/bin"), Path("/usr/bin")) if (p / name).exists()), None)
        if found is not None:
            (tools / name).symlink_to(found / name)
    done = run(
        SMALL,
        broker.address,
        hello,
        "ours",
        PATH=str(tools),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert "read [b'hello']" in done.stdout
    assert f"java {tmp_path / 'cache'}" in done.stdout
    # Spark's log says nothing; a line of Java's own may be there.
    assert len(done.stderr.splitlines()) < 3, done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_session_that_somebody_else_made_finds_the_source(
    broker: BrokerProcess, hello: str
) -> None:
    done = run(
        SMALL,
        broker.address,
        hello,
        "theirs",
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
    )
    assert done.returncode == 0, done.stderr
    assert "read [b'hello']" in done.stdout


def test_without_pyspark_it_is_said_what_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None\nimport fasti\nimport fasti.spark"
    done = run(code)
    assert done.returncode == 1
    assert "fasti.spark needs pyspark" in done.stderr
    assert "pip install 'fasti[spark]'" in done.stderr
