"""The commands with Spark, in processes of their own: the demo's end, an audit, a run until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess

FASTI = [sys.executable, "-m", "fasti"]
QUICK = ["--master", "local[1]", "--conf", "spark.driver.memory=1g"]
QUICK += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_ends_with_a_report(tmp_path: Path) -> None:
    """On the runtime that the extra brings, as on a machine with none that will do."""
    lake = tmp_path / "lake"
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0\"' >&2\n")
    old.chmod(0o755)
    path = f"{old.parent}{os.pathsep}{os.environ['PATH']}"
    env = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": path}
    command = [*FASTI, "demo", "--near", "200", "--far", "50", "--seconds", "2"]
    done = subprocess.run(
        [*command, "--lake", str(lake), "--json"], capture_output=True, text=True, env=env
    )
    assert done.stdout, done.stderr
    verdict = json.loads(done.stdout)
    told = verdict["pipeline"]
    assert done.returncode == 0, told
    assert "trouble" not in told, told
    assert (told["early"], told["lost"], told["findings"]) == (0, 0, 0)
    assert told["produced"] >= verdict["scheduled"]
    assert told["delivered"] >= 100
    assert Path(told["report"]).read_text().startswith("<!doctype html>")
    # Nothing of Spark's noise is to be seen; it lies in the lake.
    assert not [line for line in done.stderr.splitlines() if "WARN" in line or "log4j" in line]
    assert (lake / "logs" / "spark.log").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_until_ctrl_c_and_an_audit(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with BrokerProcess(tmp_path / "data") as broker, fasti.connect(broker.address) as client:
        client.create_topic("mail")
        client.producer("mail").send_batch([b"x"] * 1000)
        place = ["--lake", str(lake), "--address", broker.address, *QUICK]
        command = [*FASTI, "pipeline", "run", "--interval", "1s", "--json", *place]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stderr is not None
            told = []
            for line in process.stderr:
                told.append(line)
                if line.startswith("report"):
                    break
            else:
                raise AssertionError("".join(told))
            process.send_signal(signal.SIGINT)
            out, rest = process.communicate()
        assert process.returncode == 0, "".join(told) + rest
        assert json.loads(out)["stopped"]
        command = [*FASTI, "pipeline", "audit", "--fail-on-findings", "--json", *place]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["count"] == 0
        assert "mail" in found["compared"]
        # A lake that tells of another broker: the feed and the tables no longer agree.
        with BrokerProcess(tmp_path / "other") as other:
            wrong = ["--lake", str(lake), "--address", other.address, *QUICK]
            command = [*FASTI, "pipeline", "once", *wrong]
            refused = subprocess.run(command, capture_output=True, text=True)
            assert "error gone:" in refused.stderr, refused.stderr
