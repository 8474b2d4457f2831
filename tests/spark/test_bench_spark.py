"""`fasti bench spark` at a small size: every part measures what it says and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.spark import PARTS, judged, phases
from benchmarks.spark import spark as measure
from fasti.cli.main import app

ROWS = 20_000


def measured(tmp_path: Path, *only: str) -> dict[str, Any]:
    told: list[str] = []
    found = measure(list(only), tmp_path, ROWS, told.append, rounds=1)
    assert len(told) == phases(list(only))
    assert list(tmp_path.iterdir()) == []
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_reads(spark: SparkSession, tmp_path: Path) -> None:
    found = measured(tmp_path, "reads")
    for name in ("messages", "changes", "changes_without_payload", "log"):
        assert found[name]["rows"] in (ROWS, ROWS + 1)
        assert found[name]["of_parquet"] > 0
    assert set(found["targets"]) == {
        "messages.of_parquet",
        "changes.of_parquet",
        "log.of_parquet",
    }


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_writes_the_pipeline_and_a_following_stream(spark: SparkSession, tmp_path: Path) -> None:
    found = measured(tmp_path, "schedule", "bronze", "silver", "following")
    assert found["schedule"]["rows"] == found["schedule_with_keys"]["rows"] == ROWS
    assert found["bronze"]["rows"] >= ROWS
    assert found["silver"]["old"] == found["silver_open"]["old"] == 4 * ROWS
    assert found["following"]["of_alone"] > 0
    assert not spark.streams.active
    assert {"schedule.rows_per_s", "bronze.transitions_per_s", "silver.times_without_old"} <= set(
        found["targets"]
    )


def test_a_target_is_met_or_missed() -> None:
    figures = {
        "messages": {"of_parquet": 0.39},
        "log": {"of_parquet": 0.4},
        "silver": {"times_without_old": 2.5},
    }
    assert {name: text.partition(":")[0] for name, text in judged(figures).items()} == {
        "messages.of_parquet": "missed",
        "log.of_parquet": "met",
        "silver.times_without_old": "missed",
    }


def test_the_command_knows_its_parts() -> None:
    assert PARTS == ("reads", "schedule", "bronze", "silver", "following")
    refused = CliRunner().invoke(app, ["bench", "spark", "--only", "writes"])
    assert refused.exit_code != 0
    assert "'writes' is not one of" in refused.output
    helped = CliRunner().invoke(app, ["bench", "spark", "--help"])
    assert all(part in helped.output for part in PARTS)
