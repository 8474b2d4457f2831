"""A front for Spark Declarative Pipelines: the steps of a pipeline as flows, tables and views.

In a file that `spark-pipelines` loads:

    from fasti.pipeline.declarative import define
    from shop.reminders import pipeline

    define(pipeline)

Spark then runs the steps, in its own order and with its own checkpoints, on a Spark Connect server:

| step | becomes |
| --- | --- |
| a stream into a topic, a log or a key-value topic | a sink and a flow that appends to it |
| a stream into a table | a streaming table |
| no stream, into a table with `overwrite=True` | a materialized view |

A function is called once and gets the streams themselves, as with `stateful=True`; static sources are
read when a run is planned. Rows come into topics exactly once here too: the sink goes by the query's
id. Tables are Spark's, in its catalog, under the last part of their path. What Declarative Pipelines
have no word for, batch steps into topics and sinks of one's own, is refused: `Pipeline.run` does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fasti.errors import InvalidArgument
from fasti.pipeline.ends import Place, TableEnd, TopicSink, TopicSource, texts
from fasti.pipeline.user import Pipeline, Step

Query = Callable[[], DataFrame]


def define(pipeline: Pipeline, *, address: str | None = None) -> list[str]:
    """Defines what the pipeline has in the one that Spark is loading. Returns the names.

    Raises `invalid_argument` for a step that can't be declared so, before anything is defined.
    """
    place = pipeline.place(address)
    defining = [
        (_name(step, name), definition(step, name, place))
        for step in pipeline.steps
        for name in step.sinks
    ]
    for _, define_one in defining:
        define_one()
    return [name for name, _ in defining]


def definition(step: Step, sink: str, place: Place) -> Callable[[], None]:
    """What defines one sink of a step."""
    end, name = step.sinks[sink], _name(step, sink)
    query = _query(step, sink, place)
    options = sink_options(end, place)
    if options is not None and step.streamed:
        return lambda: _define_flow(name, options, query)
    if isinstance(end, TableEnd) and step.streamed and not end.overwrite:
        return lambda: _define_table(name, end, query)
    if isinstance(end, TableEnd) and not step.streamed and end.overwrite:
        return lambda: _define_view(name, end, query)
    raise InvalidArgument(
        f"step {step.name!r} can't be part of a declarative pipeline: streams go into topics and "
        "tables, batch steps into tables with overwrite=True",
        field=step.name,
    )


def sink_options(end: Any, place: Place) -> dict[str, str] | None:
    """The options of a sink `fasti`; None for what is no topic."""
    if isinstance(end, TopicSink):
        return {**place.options(), "topic": end.topic, **texts(end.options)}
    if isinstance(end, TopicSource) and end.topic:
        operation = "put" if end.view == "kv" else "produce"
        options = {"operation": operation, **texts(end.options)}
        return {**place.options(), "topic": end.topic, **options}
    return None


def _query(step: Step, sink: str, place: Place) -> Query:
    def query() -> DataFrame:
        spark = SparkSession.active()
        frames = {name: source.read(spark, place) for name, source in step.sources.items()}
        return step.call(frames)[sink]

    return query


def _name(step: Step, sink: str) -> str:
    end = step.sinks[sink]
    if isinstance(end, TableEnd):
        return re.sub(r"\W", "_", Path(end.path).name)
    return re.sub(r"\W", "_", f"{step.name}_{sink}" if sink else step.name)


def _define_flow(name: str, options: dict[str, str], query: Query) -> None:
    target = f"{name}_sink"
    _words().create_sink(target, "fasti", options)
    _words().append_flow(target=target, name=name)(query)


def _define_table(name: str, end: TableEnd, query: Query) -> None:
    columns = list(end.partition_by) or None
    _words().table(name=name, format="parquet", partition_cols=columns)(query)


def _define_view(name: str, end: TableEnd, query: Query) -> None:
    columns = list(end.partition_by) or None
    _words().materialized_view(name=name, format="parquet", partition_cols=columns)(query)


def _words() -> Any:
    """Spark's own; imported late, because it needs Spark Connect. Its types leave `format` out."""
    from pyspark import pipelines

    return pipelines
