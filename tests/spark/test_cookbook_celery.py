"""The recipe for Celery on what Celery 5.7 and kombu 5.7 really write into Redis.

`celery_on_redis.json` was dumped from a Redis after: a task with an ETA that a worker holds and that
is in the queue once more, as a visibility timeout does it; one with a priority, a fraction of a
second and an expiry; one without ETA in a queue of its own; one with retries and an ETA in another
zone; a chain; a pickled one; an expired one.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_docs_snippets import DOCS, blocks_of

DUMP = Path(__file__).with_name("celery_on_redis.json")
ID = "7d0c6d0e-0000-4000-8000-00000000000"


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """The names of the page's block that parses."""
    (block,) = [
        b for b in blocks_of(DOCS / "cookbook" / "import-celery.md") if "def tasks" in b.code
    ]
    names: dict[str, Any] = {"dumped": list}
    exec(block.code, names)
    return names


def test_what_celery_wrote_is_read(spark: SparkSession, recipe: dict[str, Any]) -> None:
    rows = [(each["raw"],) for each in json.loads(DUMP.read_text())]
    assert len(rows) == 8
    made = recipe["schedule"](spark.createDataFrame(rows, "raw string"))
    due = "unix_micros(due) AS due_us"
    scheduled = made["scheduled"].selectExpr("key", due, "payload", "headers").collect()
    found = {row.key: row for row in scheduled}
    assert set(found) == {f"celery/{ID}{number}" for number in (1, 2, 3, 4)}

    def moment(*parts: int) -> int:
        return round(datetime(*parts, tzinfo=UTC).timestamp() * 1e6)  # type: ignore[misc,arg-type]

    anna, ben, cleo, dora = (found[f"celery/{ID}{number}"] for number in (1, 2, 3, 4))
    assert anna.due_us == moment(2035, 1, 2, 9)
    assert json.loads(anna.payload) == {"args": ["anna"], "kwargs": {"lang": "de"}}
    assert anna.headers == {"task": "shop.mails.remind", "retries": "0"}
    assert ben.due_us == moment(2035, 1, 2, 10, 30, 15, 250_000)
    assert cleo.due_us < moment(2035, 1, 1)
    assert dora.due_us == moment(2035, 1, 2, 7)
    assert dora.headers["retries"] == "2"
    left = {row.id: row.task for row in made["left"].collect()}
    assert left == {f"{ID}5": "shop.mails.remind", f"{ID}7": "shop.tidy"}
