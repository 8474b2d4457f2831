"""Steps of a user's pipeline are checked where they are declared. No Spark session is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fasti.errors import InvalidArgument
from fasti.pipeline import Pipeline, Sink, changes, kv, log, messages, table, topic


def same(rows: Any) -> Any:
    return rows


def test_a_function_stays_what_it_is() -> None:
    pipeline = Pipeline("shop")
    decorated = pipeline.step(topic("out"), rows=log("in"))(same)
    assert decorated is same
    (step,) = pipeline.steps
    assert (step.name, step.streamed, step.every_s) == ("same", ["rows"], 10.0)


def test_a_step_may_be_named() -> None:
    pipeline = Pipeline("shop")
    pipeline.step(topic("out"), name="first", rows=log("in"), every="1m")(same)
    pipeline.step(topic("out"), name="second", rows=messages("in"))(same)
    assert [(step.name, step.streamed, step.every_s) for step in pipeline.steps] == [
        ("first", ["rows"], 60.0),
        ("second", [], 10.0),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sink": topic("out")}, "same names"),
        ({"sink": topic("out"), "other": log("in")}, "takes rows, and its sources are other"),
        ({"sink": messages("out"), "rows": log("in")}, "is not a sink: use topic"),
        ({"sink": {}, "rows": log("in")}, "needs a sink"),
        ({"sink": {"a b": topic("x")}, "rows": log("in")}, "'a b' is not a valid name"),
        ({"sink": topic("out"), "rows": topic("in")}, r"source 'rows' is .* use changes\(\)"),
        ({"sink": topic("out"), "rows": "in"}, "source 'rows' is 'in', which is not a source"),
        ({"sink": topic("out"), "rows": kv("in"), "stateful": True}, "needs a stream"),
        (
            {"sink": {"a": topic("x"), "b": topic("y")}, "rows": log("in"), "stateful": True},
            "and one sink",
        ),
        ({"sink": topic("out"), "rows": log("in"), "every": "soon"}, "every"),
        ({"sink": topic("out"), "rows": log("in"), "name": "../up"}, "is not a valid name"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(
    arguments: dict[str, Any], said: str
) -> None:
    pipeline = Pipeline("shop")
    with pytest.raises(InvalidArgument, match=said):
        pipeline.step(arguments.pop("sink"), **arguments)(same)
    assert pipeline.steps == ()


def test_two_streams_need_state() -> None:
    pipeline = Pipeline("shop")

    def joined(left: Any, right: Any) -> Any:
        return left.join(right, "key")

    with pytest.raises(InvalidArgument, match="stateful=True"):
        pipeline.step(topic("out"), left=log("a"), right=changes("b"))(joined)
    pipeline.step(topic("out"), left=log("a"), right=changes("b"), stateful=True)(joined)
    assert pipeline.steps[0].streamed == ["left", "right"]


def test_names_are_taken_once() -> None:
    pipeline = Pipeline("shop")
    pipeline.step(topic("out"), rows=log("in"))(same)
    with pytest.raises(InvalidArgument, match="step 'same' is declared twice"):
        pipeline.step(topic("out"), rows=log("in"))(same)
    with pytest.raises(InvalidArgument, match="no step 'other': there are same"):
        pipeline.run(only=["other"])
    with pytest.raises(InvalidArgument, match="is not a valid name"):
        Pipeline("a/b")


def test_what_a_function_returns_must_fit_its_sinks() -> None:
    pipeline = Pipeline("shop")
    pipeline.step({"good": topic("a"), "bad": topic("b")}, rows=log("in"))(same)
    (step,) = pipeline.steps
    with pytest.raises(InvalidArgument, match="must return 'good', 'bad', and returned one"):
        step.call({"rows": object()})  # type: ignore[dict-item]
    pipeline.step(topic("a"), name="one", rows=log("in"))(same)
    with pytest.raises(InvalidArgument, match="must return a DataFrame, not object"):
        pipeline.steps[1].call({"rows": object()})  # type: ignore[dict-item]


def test_ends_are_sinks_where_they_can_be() -> None:
    for end in (log("a"), kv("b"), table("c"), topic("d")):
        assert isinstance(end, Sink)
    for end in (changes("a"), messages("b")):
        assert not isinstance(end, Sink)


def test_a_run_takes_place_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTI_ADDRESS", raising=False)
    monkeypatch.delenv("FASTI_TOKEN", raising=False)
    here = Path.cwd() / "fasti-pipelines"
    assert Pipeline("shop").place().address == "fasti://127.0.0.1:7170"
    assert Pipeline("shop").place().directory == here
    monkeypatch.setenv("FASTI_ADDRESS", "fasti://elsewhere:1")
    assert Pipeline("shop").place().address == "fasti://elsewhere:1"
    made = Pipeline("shop", address="made:2", directory="/made")
    assert (made.place().address, made.place().directory) == ("made:2", Path("/made"))
    given = made.place("given:3", "/given")
    assert (given.address, given.directory) == ("given:3", Path("/given"))


def test_a_session_of_spark_connect_is_refused(tmp_path: Path) -> None:
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    pipeline = Pipeline("shop", directory=tmp_path)
    with pytest.raises(InvalidArgument, match="declarative"):
        pipeline.run(connected, once=True)
    assert list(tmp_path.iterdir()) == []


def test_the_package_loads_no_spark_until_a_name_is_used() -> None:
    code = "import sys, fasti.pipeline; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
