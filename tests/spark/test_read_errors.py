"""What a user reads when something is wrong: the code first, then what and what was expected."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from pyspark.sql import SparkSession

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.doors.credentials import create
from tests.spark.reading import Reading, why

MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def read(spark: SparkSession, broker: BrokerProcess) -> Reading:
    return Reading(spark, broker)


def refused(do: Callable[[], object]) -> str:
    with pytest.raises(Exception, match=r"\[FASTI\.") as info:
        do()
    return why(info.value)


def test_options_are_refused_when_the_dataframe_is_made(read: Reading) -> None:
    told = refused(lambda: read("emails", colums="id"))
    assert told.endswith(
        "[FASTI.invalid_argument] format 'fasti' has no option 'colums': did you mean 'columns'? "
        "(field=colums)"
    )
    assert "'topic' is missing" in refused(read)
    assert "has no column 'duo'" in refused(lambda: read("emails", columns="duo"))


def test_a_topic_that_is_not_there_or_of_another_kind(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    assert "[FASTI.not_found] there is no topic 'nowhere'" in refused(read("nowhere").collect)
    log, entries = topic(kind="log"), topic(kind="kv")
    told = refused(read(log).collect)
    assert f"topic '{log}' is of kind 'log': read it with view 'log', not 'messages'" in told
    assert "read it with view 'kv'" in refused(read(entries, view="log").collect)


@pytest.mark.one_shard
def test_offsets_that_can_not_be(read: Reading, client: Client, topic: MakeTopic) -> None:
    log = topic(kind="log", partitions=2)
    told = refused(read(log, view="log", startingOffsets='{"0": 1}').collect)
    assert "startingOffsets must name every partition" in told
    told = refused(read(log, view="log", startingOffsets='{"0": 0, "1": 7}').collect)
    assert "an offset up to 0" in told
    told = refused(read(view="changes", startingOffsets='{"0.0000000000000000": 5}').collect)
    assert "[FASTI.gone]" in told


def test_a_broker_that_does_not_answer(spark: SparkSession) -> None:
    nobody = spark.read.format("fasti").options(address="127.0.0.1:1", topic="t", timeout="1s")
    assert "[FASTI.unavailable]" in refused(lambda: nobody.load().collect())


def test_tls_and_tokens_which_are_never_shown(spark: SparkSession, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o600)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    token = create(tmp_path / "credentials.toml", "billing")
    settings = {
        "tls_cert": tmp_path / "cert.pem",
        "tls_key": tmp_path / "key.pem",
        "credentials": tmp_path / "credentials.toml",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        address = f"fasti+tls://localhost:1,localhost:{broker.port}"
        authority_file = str(tmp_path / "authority.pem")
        with fasti.connect(address, token=token, tls_ca=authority_file) as client:
            client.create_topic("t")
            client.producer("t").send(b"hello").result(timeout=10)
        reader = spark.read.format("fasti").options(
            address=address, topic="t", tlsCa=authority_file
        )
        assert "[FASTI.unauthenticated]" in refused(lambda: reader.load().collect())
        found = reader.option("token", token).load()
        assert [row["payload"] for row in found.collect()] == [b"hello"]
        plan = found._jdf.queryExecution()  # type: ignore[operator]
        shown = str(plan.toString()) + str(plan.logical().treeString())
        assert token not in shown
        told = refused(lambda: reader.options(token=token, columns="x").load())
        assert token not in told
