"""The books of a consumer: until when what it holds is its own for certain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from fasti.client.machines.custody import Custody
from fasti.client.machines.run import Run
from fasti.model import TopicSettings

SETTINGS = TopicSettings(lease_us=300, hold_us=500)


def run_of(due_us: list[int], leased_us: int = 1_000) -> Run:
    columns: dict[str, Any] = {"id": np.arange(1, len(due_us) + 1), "due_us": np.array(due_us)}
    session = cast(Any, SimpleNamespace(topic="emails"))
    run = Run(session, 7, pa.RecordBatch.from_pydict(columns))
    run.leased_us = run.came_us = leased_us
    run.until_us = leased_us + SETTINGS.lease_us
    return run


@pytest.mark.parametrize(
    ("due_us", "taken", "beats", "until_us"),
    [
        ([900, 900], 0, [1_200], 1_500),  # Held at most since 1000, when it was leased.
        ([900, 900], 0, [1_150, 1_300, 1_450], 1_500),
        ([1_100, 1_400], 0, [1_250, 1_500], 1_600),  # What is sent ahead is held from its due time.
        ([1_100, 1_400], 1, [1_250, 1_500], 1_800),  # Those in user code's hands don't matter.
        ([900, 900], 0, [1_050], 1_350),
        ([900, 900], 0, [1_250, 1_600], 1_500),  # It had ended before the second.
    ],
)
def test_heartbeats_renew_until_the_longest_hold(
    due_us: list[int], taken: int, beats: list[int], until_us: int
) -> None:
    custody = Custody()
    run = custody.add(run_of(due_us))
    run.next = taken
    for sent_us in beats:
        custody.renew(sent_us, sent_us, SETTINGS)
    assert run.until_us == until_us


def test_rows_leave_once() -> None:
    custody = Custody()
    first, second = custody.add(run_of([1, 2, 3])), custody.add(run_of([4]))
    custody.leave(first, np.array([0, 0]))
    custody.leave(first, [0])
    assert (first.left, custody.unfinished) == (2, 3)
    first.next = first.rows
    custody.leave(second, [0])
    custody.leave(second, [0])
    assert (list(custody), custody.unfinished) == ([first], 2)
    # What user code has not got is gone with the connection.
    first.next = 2
    custody.take_back([])
    assert (first.left, custody.unfinished) == (1, 1)
    assert set(custody._in_hand) == {1, 2}
    custody.leave(first, slice(None))
    assert (list(custody), custody.unfinished) == ([], 0)
