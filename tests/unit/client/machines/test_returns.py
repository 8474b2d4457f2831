"""How the answers to what was returned are read, above all of what had to be sent again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.client.machines.returns import Return
from fasti.client.machines.run import Run
from fasti.protocol.schemas import LEASED


def returned(op: str, again: bool) -> Return:
    class Session:
        topic = "emails"

    empty: dict[str, Any] = {"version": 1, "attempts": 1, "created_us": 0, "payload": b""}
    row = {field.name: empty.get(field.name) for field in LEASED}
    batch = pa.RecordBatch.from_pylist([{**row, "id": 7, "due_us": 0}], schema=LEASED)
    run = Run(Session(), 1, batch)  # type: ignore[arg-type]
    return Return(op, None, [(run, np.array([0]))], again=again)


@pytest.mark.parametrize("op", ["nack", "release"])
@pytest.mark.parametrize("status", ["stale_lease", "leased", "done", "dead", "cancelled", "gone"])
def test_what_went_back_may_have_become_anything_since(op: str, status: str) -> None:
    """The first try happened, its answer was lost, and another consumer was faster than the next."""
    header = {"status": [[status, 1]], "versions": [[1, 1]]}
    assert returned(op, again=True).outcomes(header).all_ok
    assert returned(op, again=False).outcomes(header).status == [status]


@pytest.mark.parametrize("status", ["done", "gone"])
def test_an_ack_whose_answer_was_lost_finds_its_message_finished(status: str) -> None:
    header = {"status": [[status, 1]], "versions": [[1, 1]]}
    assert returned("ack", again=True).outcomes(header).all_ok
    assert returned("ack", again=False).outcomes(header).status == [status]


def test_an_ack_under_a_lease_that_ended_is_told_also_the_second_time() -> None:
    header = {"status": [["stale_lease", 1]], "versions": [[1, 1]]}
    assert returned("ack", again=True).outcomes(header).status == ["stale_lease"]
