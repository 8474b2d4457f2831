"""Tasks of one query share a snapshot: by name, over retries, and never another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import fasti
from fasti.client.client import Client
from fasti.errors import Gone
from fasti.spark import snapshots
from fasti.spark.filters import Pushed
from fasti.spark.options import Options
from fasti.spark.plans import Planner
from fasti.spark.snapshots import SnapshotTask
from fasti.spark.tickets import Task
from fasti.spark.views import View

FAR_US = 4_102_444_800_000_000


class Context:
    """What Spark tells a task."""

    def __init__(self, query: str | None, attempt: int = 0, stage: int = 7) -> None:
        self._query, self._attempt, self._stage = query, attempt, stage

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        assert name == "spark.sql.execution.id"
        return self._query

    def attemptNumber(self) -> int:  # noqa: N802
        return self._attempt

    def stageId(self) -> int:  # noqa: N802
        return self._stage


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with fasti.connect(f"embedded:{tmp_path}") as opened:
        monkeypatch.setattr(Task, "client", lambda _: opened)
        opened.create_topic("t")
        opened.producer("t").send_batch([b"x"] * 20_000, due=[FAR_US] * 20_000)
        yield opened


@pytest.fixture(autouse=True)
def forgotten() -> None:
    snapshots._seen.clear()


def planned(client: Client, filters: Pushed | None = None, **options: str) -> list[Task]:
    given = Options.reading({"topic": "t", **options})
    view = View(given["view"], given["columns"])
    return Planner(client, given, view, 4, filters).planned()


def rows(task: Task, context: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(pyspark.TaskContext, "get", classmethod(lambda _: context))
    return [row for batch in task.batches() for row in batch.to_pylist()]


def test_tasks_of_a_query_see_one_moment_and_the_next_query_its_own(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = planned(client, columns="id,snapshot_position")
    assert len(tasks) == 4
    first = rows(tasks[0], Context("1"), monkeypatch)
    client.messages("t").cancel(id=[1, 19_999])
    client.producer("t").send_batch([b"y"] * 5, due=[FAR_US] * 5)
    rest = [row for task in tasks[1:] for row in rows(task, Context("1"), monkeypatch)]
    assert sorted(row["id"] for row in first + rest) == list(range(1, 20_001))
    assert len({row["snapshot_position"] for row in first + rest}) == 1
    # A task that is tried again reads the same.
    assert rows(tasks[0], Context("1", attempt=1), monkeypatch) == first
    later = [row["id"] for task in tasks for row in rows(task, Context("2"), monkeypatch)]
    assert sorted(later) == [n for n in range(1, 20_006) if n not in (1, 19_999)]


def test_jobs_without_a_query_go_by_their_stage(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task, *_) = planned(client, columns="snapshot_position")
    first = rows(task, Context(None, stage=3), monkeypatch)[0]
    client.messages("t").cancel(id=[1])
    assert rows(task, Context(None, stage=3), monkeypatch)[0] == first
    assert rows(task, Context(None, stage=4), monkeypatch)[0] != first


def test_a_snapshot_that_went_is_gone_for_its_query(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = planned(client)
    rows(tasks[0], Context("1"), monkeypatch)
    assert isinstance(tasks[0], SnapshotTask)
    held, _ = client.transport.call("take_snapshot", {"name": f"{tasks[0].plan}/1"})
    client.transport.call("drop_snapshot", {"snapshot": held["snapshot"]})
    for attempt in (0, 1):
        with pytest.raises(Gone, match="run it again"):
            rows(tasks[1], Context("1", attempt), monkeypatch)


def test_a_task_that_is_tried_again_after_a_restart_gets_no_other_moment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task, *_) = planned(client)
    assert isinstance(task, SnapshotTask)
    elsewhere = SnapshotTask(**{**task.__dict__, "life": "0123456789abcdef"})
    with pytest.raises(Gone):
        rows(elsewhere, Context("1", attempt=1), monkeypatch)
    # A process that has read from the snapshot notices another one by its position.
    rows(task, Context("2"), monkeypatch)
    snapshots._seen[f"{task.plan}/2/0"] -= 1
    with pytest.raises(Gone):
        rows(task, Context("2"), monkeypatch)


def test_a_task_shows_no_token(client: Client) -> None:
    for task in planned(client, token="s3cret"):
        assert task.token == "s3cret"
        assert "s3cret" not in repr(task)


def test_filters_cut_what_tasks_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = Pushed("messages", {"id": (4_000, 4_010)})
    tasks = planned(client, filters, columns="id")
    assert len(tasks) == 1
    found = [row["id"] for row in rows(tasks[0], Context("1"), monkeypatch)]
    assert found == list(range(4_000, 4_010))
    for task in planned(client, Pushed("messages", {"partition": (1, 5)})):
        assert rows(task, Context("2"), monkeypatch) == []
    assert planned(client, Pushed("messages", {"id": (9, 3)})) == []
