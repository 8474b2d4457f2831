"""`fasti pipeline user`: finds a pipeline in a module, and runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app
from fasti.client.client import Client

MODULE = """
from fasti.pipeline import Pipeline, log

pipeline = Pipeline("shouting")
other = 7

@pipeline.step(log({target!r}), rows=log({source!r}))
def shout(rows):
    return rows.selectExpr("key", "upper(cast(payload as string)) as payload")
"""


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nowhere_to_be_found", "there is no module 'nowhere_to_be_found'"),
        ("shouting.py", "is not a module: write `package.module:pipeline`"),
        ("shouting:missing", "has no 'missing'; it has pipeline"),
        ("shouting:other", "is not a fasti.pipeline.Pipeline but of type int; it has pipeline"),
    ],
)
def test_what_is_no_pipeline_is_refused_without_a_session(
    reference: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text(MODULE.format(source="a", target="b"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shouting", raising=False)
    done = CliRunner().invoke(app, ["pipeline", "user", reference, "--once"])
    assert done.exit_code != 0
    assert said in done.output
    assert not (tmp_path / "fasti-pipelines").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_runs_once_and_says_what_it_did(
    broker: BrokerProcess, client: Client, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = topic(kind="log"), topic(kind="log")
    (tmp_path / "shouting.py").write_text(MODULE.format(source=source, target=target))
    command = [sys.executable, "-m", "fasti", "pipeline", "user", "shouting", "--once", "--json"]
    environment = {**os.environ, "FASTI_ADDRESS": broker.address}
    for number in (1, 2):
        client.producer(source).send(b"hello", key="k").result()
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (told,) = json.loads(done.stdout)
        assert (told["step"], told["batches"], told["rows"]) == ("shout", 1, 1)
        assert [each.payload for each in client.reader(target)] == [b"HELLO"] * number
