"""`fasti pipeline` where no Spark is needed: what there is, the report, care, and refusals."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from examples.demo import pipeline as demo_pipeline
from examples.demo.command import print_piped
from fasti.cli import pipeline
from fasti.cli.exits import ERROR_EXITS, FOUND_SOMETHING
from fasti.cli.main import app
from fasti.errors import FastiError, Gone, Unavailable
from fasti.pipeline import local, runner
from fasti.pipeline.lake import Lake
from tests.unit.pipeline.gold_rig import busy, fill

# Where nobody listens.
NOBODY = "127.0.0.1:1"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["pipeline", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if not code else result.stderr


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return busy(tmp_path / "lake").root


def test_the_report(lake: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = json.loads(run("report", "--lake", lake, "--out", page, "--json"))
    assert told["path"] == str(page)
    assert f"{told['delivered']:,}" in page.read_text()
    shown = run("report", "--lake", lake, "--refresh", "60")
    assert shown.strip().endswith("report.html")
    assert f"{told['delivered']:,}" in shown
    assert 'http-equiv="refresh" content="60"' in (lake / "report.html").read_text()


def test_tables(lake: Path) -> None:
    listed = {row["name"]: row for row in json.loads(run("tables", "--lake", lake, "--json"))}
    assert listed["throughput"]["rows"] > 0
    assert listed["throughput"]["size_bytes"] > 0
    assert listed["audit"]["rows"] == 0
    assert "throughput" in run("tables", "--lake", lake)
    rows = run("tables", "--lake", lake, "show", "lateness", "-n", "3", "--json").splitlines()
    assert len(rows) == 3
    assert json.loads(rows[0])["p99_us"] > 0
    assert "topic" in run("tables", "show", "retries", "--lake", lake)
    unknown = run("tables", "--lake", lake, "show", "nothing", code=ERROR_EXITS["not_found"])
    assert "lateness" in unknown


def test_care(lake: Path) -> None:
    before = json.loads(run("tables", "--lake", lake, "--json"))
    assert json.loads(run("compact", "--lake", lake, "--json"))["throughput"] == 0
    assert json.loads(run("vacuum", "--lake", lake, "--keep", "1h", "--json"))["backlog"] == 0
    after = json.loads(run("tables", "--lake", lake, "--json"))
    assert [row["rows"] for row in after] == [row["rows"] for row in before]


def test_a_place_that_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "data" / "journal").mkdir(parents=True)
    told = run("once", "--lake", tmp_path / "data", code=ERROR_EXITS["invalid_argument"])
    assert "a broker's data" in told
    told = run("report", "--lake", tmp_path / "empty", code=ERROR_EXITS["not_found"])
    assert "make one with `fasti pipeline once" in told
    (tmp_path / "file").touch()
    for command in ("once", "run", "audit", "report", "tables", "compact"):
        told = run(command, "--lake", tmp_path / "file", code=ERROR_EXITS["invalid_argument"])
        assert "is not a directory" in told
    told = run("run", "--lake", tmp_path / "file" / "lake", code=ERROR_EXITS["error"])
    assert "can't create" in told
    assert "Not a directory" in told


def test_what_is_wrong_is_told_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_started", None)
    once = ("once", "--lake", tmp_path / "lake")
    refused = ERROR_EXITS["invalid_argument"]
    for command in ("once", "run", "audit"):
        told = run(command, "--lake", tmp_path / "lake", "-a", "embedded:./data", code=refused)
        assert "fasti serve" in told
    told = run(*once, "-a", f"{NOBODY},{NOBODY}", code=ERROR_EXITS["unavailable"])
    assert "no broker at fasti://127.0.0.1:1,127.0.0.1:1: " in told
    assert not (tmp_path / "lake").exists()


def test_without_the_extra_it_says_what_to_install(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    for command in (("once",), ("run",), ("audit",), ("report",), ("tables",)):
        assert "pip install 'fasti[spark]'" in run(
            *command, "--lake", lake, code=ERROR_EXITS["error"]
        )
    found = demo_pipeline.run("fasti://127.0.0.1:1", tmp_path / "new", print)
    assert found.trouble == local.HINT


def test_the_demo_ends_well_without_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    print_piped(demo_pipeline.Piped(Path("lake"), trouble=local.HINT))
    assert "pip install 'fasti[spark]'" in capsys.readouterr().out


def test_errors_of_spark_are_told_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"

    def raised(text: str) -> Any:
        with pytest.raises(Exception, match=r"spark\.log") as caught, local.plainly(log):
            raise RuntimeError(text)
        return caught.value

    trace = "org.apache.SparkException: Job aborted\n  x [FASTI.gone] the feed begins later\n  at"
    gone = raised(trace)
    assert gone.code == "gone"
    assert gone.message.startswith("the feed begins later")
    assert "\n" not in raised("\nsomething else\nand more").message


def test_conf_is_checked(lake: Path) -> None:
    assert "--conf" in run("once", "--lake", lake, "--conf", "nonsense", code=2)


@pytest.mark.parametrize(
    ("master", "what"),
    [
        ("spark://{}", "master"),
        ("spark://{},{}", "master"),
        ("sc://{}/;user_id=me", "Connect server"),
    ],
)
def test_a_spark_that_is_not_there_is_told_at_once(tmp_path: Path, master: str, what: str) -> None:
    """Spark itself would go on trying for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        there = f"127.0.0.1:{door.getsockname()[1]}"
        local.find_master(master.replace("{}", there))
        # One of several is enough.
        local.find_master(f"spark://{NOBODY},{there}")
    place = ("--lake", tmp_path / "lake", "--master", master.replace("{}", NOBODY))
    told = run("once", *place, code=ERROR_EXITS["unavailable"])
    assert f"error unavailable: there is no Spark {what} at" in told
    assert NOBODY in told


def test_settings_of_a_connect_server_are_its_own(tmp_path: Path) -> None:
    given = {"spark.sql.shuffle.partitions": "8"}
    assert local.settings_for("sc://host", given).items() >= given.items()
    assert not [name for name in local.settings_for("sc://host", {}) if "spark.sql." not in name]
    here = local.settings_for("local[2]", {"spark.driver.memory": "1g"})
    assert here["spark.driver.memory"] == "1g"
    told = run(
        *("once", "--lake", tmp_path / "lake", "--master", "sc://127.0.0.1"),
        *("--conf", "spark.executor.memory=4g"),
        code=ERROR_EXITS["invalid_argument"],
    )
    assert "spark.executor.memory: through Spark Connect only" in told


def test_a_pipeline_of_ones_own_says_at_once_that_connect_is_no_place_for_it() -> None:
    told = run(
        *("user", "nowhere:pipeline", "--master", "sc://127.0.0.1:1"),
        code=ERROR_EXITS["invalid_argument"],
    )
    assert "fasti.pipeline.declarative" in told


def test_an_embedded_broker_is_refused() -> None:
    with pytest.raises(Exception, match="fasti serve"):
        local.checked_address("embedded:./data")


def test_a_run_outlasts_a_broker_that_is_away(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PAUSE_S", 0.0)
    troubles: list[Exception] = [
        Unavailable("nobody listens"),
        RuntimeError("at x\n[FASTI.unknown] the connection was lost"),
    ]
    done = runner.RunResult({}, 1, True)

    def run_rounds(*_: object, **__: object) -> runner.RunResult:
        if troubles:
            raise troubles.pop(0)
        return done

    monkeypatch.setattr(runner, "run", run_rounds)
    told: list[str] = []
    made = runner.Workflow(Lake(lake), [])
    spark: Any = None
    assert local.keep_running(made, spark, 1.0, lambda _: None, told.append) is done
    assert [line.partition(":")[0] for line in told] == ["unavailable", "unknown"]
    troubles.append(Gone("the feed begins later"))
    with pytest.raises(Gone):
        local.keep_running(made, spark, 1.0, lambda _: None, told.append)


def test_a_run_whose_spark_was_ended_by_the_same_signal_ends_well(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, stop: threading.Event, **__: object) -> runner.RunResult:
        stop.set()
        raise ConnectionRefusedError("Spark is gone")

    monkeypatch.setattr(runner, "run", stopped)
    made = runner.Workflow(Lake(lake), [])
    spark: Any = None
    assert local.keep_running(made, spark, 1.0, lambda _: None, print).stopped


def test_a_session_that_is_gone_can_be_left(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def stop(self) -> None:
            raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(local, "_started", lambda *_: Dead())
    with local.session(Lake(lake)):
        pass
    with pytest.raises(FastiError, match=r"Py4J is gone .*spark\.log"), local.session(Lake(lake)):
        raise ConnectionResetError("Py4J is gone")


def test_findings_and_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the audit found before it is asked how to end; Spark itself isn't needed for that."""
    lake = Lake(tmp_path / "lake")
    row = {"topic": "mail", "id": 7, "kind": "early", "what": "before [its] time", "position": 9}
    fill(lake, {"audit": [row]})
    monkeypatch.setattr(pipeline, "_lake_and_session", lambda *_, **__: nullcontext((lake, None)))
    monkeypatch.setattr(pipeline, "_run_offline", lambda *_: None)
    command = ("audit", "--lake", lake.root, "--tables-only")
    shown = run(*command)
    assert "before [its] time" in shown
    assert "1 finding:" in shown
    run(*command, "--fail-on-findings", code=FOUND_SOMETHING)
    told = json.loads(run(*command, "--json"))
    assert (told["count"], told["findings"][0]["kind"]) == (1, "early")
    fill(lake, {"audit": []})
    assert "No findings" in run(*command, "--fail-on-findings")
