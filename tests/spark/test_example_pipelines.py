"""The examples for Spark run as they are, and their functions without a broker."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client

FOLDER = Path(__file__).parents[2] / "examples" / "pipelines"
EXPECTED = {
    "appointments": """\
02 Jan 09:00 in an hour: dentist
02 Jan 15:00 in an hour: haircut
later:
02 Jan 11:30 in an hour: lunch
03 Jan 08:30 in an hour: dentist
""",
}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_should(
    name: str,
    spark: SparkSession,
    broker: BrokerProcess,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FASTI_ADDRESS", broker.address)
    monkeypatch.chdir(tmp_path)
    before = {topic.name for topic in client.topics()}
    loaded(name).main()
    assert capsys.readouterr().out == EXPECTED[name]
    for topic in client.topics():
        if topic.name not in before and not topic.name.startswith("_"):
            client.delete_topic(topic.name)


def test_the_last_word_on_an_appointment_counts(spark: SparkSession) -> None:
    rows = [("a", 0, b'{"at": "2035-01-02T10:00:00Z"}'), ("a", 7, b'{"at": null}'), ("b", 3, b"?")]
    events = spark.createDataFrame(rows, "key string, offset long, payload binary")
    found = loaded("appointments").last_words(events).collect()
    assert sorted((row.key, row.at) for row in found) == [("a", None), ("b", None)]
