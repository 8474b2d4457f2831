"""The front for Spark Declarative Pipelines: what is defined, and a real run of `spark-pipelines`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import MaterializedView, StreamingTable
from pyspark.pipelines.output import Sink as DeclaredSink
from pyspark.sql import DataFrame

import fasti.spark.java
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import InvalidArgument
from fasti.pipeline import Pipeline, Sink, kv, log, messages, table, topic
from fasti.pipeline.declarative import define


class Registry(GraphElementRegistry):
    """Keeps what is defined."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.flows: list[Any] = []

    def register_output(self, output: Any) -> None:
        self.outputs.append(output)

    def register_flow(self, flow: Any) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: Any) -> None:
        raise AssertionError

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError


def defined(pipeline: Pipeline) -> tuple[list[str], Registry]:
    registry = Registry()
    with graph_element_registration_context(registry):
        return define(pipeline, address="somewhere:7170"), registry


def test_steps_become_sinks_tables_and_views() -> None:
    pipeline = Pipeline("shop", token="secret")

    @pipeline.step(topic("reminders", onConflict="skip"), orders=log("orders"))
    def remind(orders: DataFrame) -> DataFrame:
        return orders

    @pipeline.step({"a": kv("profiles"), "b": log("kept")}, orders=log("orders"))
    def split(orders: DataFrame) -> dict[str, DataFrame]:
        return {"a": orders, "b": orders}

    @pipeline.step(table("shop/archive-2", partition_by=["day"]), orders=log("orders"))
    def archive(orders: DataFrame) -> DataFrame:
        return orders

    @pipeline.step(table("shop/now", overwrite=True), there=messages("reminders"))
    def now(there: DataFrame) -> DataFrame:
        return there

    names, registry = defined(pipeline)
    assert names == ["remind", "split_a", "split_b", "archive_2", "now"]
    kinds = {output.name: type(output) for output in registry.outputs}
    assert kinds == {
        "remind_sink": DeclaredSink,
        "split_a_sink": DeclaredSink,
        "split_b_sink": DeclaredSink,
        "archive_2": StreamingTable,
        "now": MaterializedView,
    }
    options = {o.name: o.options for o in registry.outputs if isinstance(o, DeclaredSink)}
    place = {"address": "somewhere:7170", "token": "secret"}
    assert options == {
        "remind_sink": {
            **place, "topic": "reminders", "operation": "produce", "onConflict": "skip"
        },
        "split_a_sink": {**place, "topic": "profiles", "operation": "put"},
        "split_b_sink": {**place, "topic": "kept", "operation": "produce"},
    }  # fmt: skip
    flows = {flow.name: flow.target for flow in registry.flows}
    assert flows["remind"] == "remind_sink"
    assert flows["archive_2"] == "archive_2"


class Own(Sink):
    pass


@pytest.mark.parametrize(
    ("sink", "source"),
    [
        (topic("out"), messages("in")),
        (table("out"), messages("in")),
        (table("out", overwrite=True), log("in")),
        (Own(), log("in")),
    ],
)
def test_what_can_not_be_told_is_refused_and_nothing_is_defined(sink: Any, source: Any) -> None:
    pipeline = Pipeline("shop")
    pipeline.step(topic("first"), name="first", rows=log("in"))(lambda rows: rows)
    pipeline.step(sink, name="second", rows=source)(lambda rows: rows)
    registry = Registry()
    with graph_element_registration_context(registry):
        with pytest.raises(InvalidArgument, match="step 'second' can't be part"):
            define(pipeline)
    assert not registry.outputs
    assert not registry.flows


DEFINITIONS = """
from fasti.pipeline import Pipeline, log, topic
from fasti.pipeline.declarative import define
from pyspark.sql import functions as F

pipeline = Pipeline("declared", address={address!r})

@pipeline.step(topic({target!r}), rows=log({source!r}))
def copied(rows):
    return rows.select("payload", F.expr("interval 1 hour").alias("delay"))

define(pipeline)
"""

SPEC = """
name: declared
storage: file://{place}/storage
libraries:
  - glob:
      include: definitions.py
configuration:
  spark.sql.shuffle.partitions: "2"
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_spark_pipelines_runs_it_and_goes_on(
    broker: BrokerProcess, client: Client, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = topic(kind="log"), topic()
    names = {"address": broker.address, "source": source, "target": target}
    (tmp_path / "definitions.py").write_text(textwrap.dedent(DEFINITIONS).format(**names))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(place=tmp_path))
    home = fasti.spark.java.java_home()
    place = {} if home is None else {"JAVA_HOME": str(home)}
    environment = {**os.environ, **place, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    for number in range(2):
        client.producer(source).send_batch([f"{number}-{each}".encode() for each in range(5)])
        done = subprocess.run(
            [str(Path(sys.executable).parent / "spark-pipelines"), "run"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = client.messages(target).list(payload=True).column("payload").to_pylist()
        expected = [f"{n}-{each}".encode() for n in range(number + 1) for each in range(5)]
        assert sorted(found) == sorted(expected)
