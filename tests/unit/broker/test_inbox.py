"""The inbox is bounded: for bulk first, for everything in the end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from fasti.broker.request import Request, fits
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core.commands import Cancel, Count, CreateTopic, Produce, Target
from fasti.core.keys import Rows
from fasti.core.queries import ReadTopics
from fasti.core.sinks.commands import ClaimKeys
from fasti.errors import Overloaded
from fasti.model import Limits
from fasti.storage.file_storage import FileStorage
from fasti.testing.disk import SimulatedFiles
from tests.integration.shard_rig import held_up


def test_a_full_inbox_refuses_bulk_first_and_then_everything() -> None:
    settings = ShardSettings(
        memory_bytes=64 << 20,
        segment_bytes=1 << 20,
        inbox_rows_max=100,
        limits=Limits(batch_rows_max=100),
    )
    shard = Shard(FileStorage(SimulatedFiles()), settings)
    shard.call(CreateTopic("t"))
    produce = Produce("t", Rows.of([b"x"] * 60))
    cancel = Cancel("t", Target(ids=np.arange(1, 41)))
    with held_up(shard):
        answers = [shard.submit([produce])]
        with pytest.raises(Overloaded) as refused:
            shard.submit([produce])
        assert refused.value.retry_after_us
        answers += [shard.submit([cancel]) for _ in range(3)]
        with pytest.raises(Overloaded):
            shard.submit([cancel])
        # Queries are bounded like the rest.
        queries = [shard.ask(ReadTopics(name="t")) for _ in range(20)]
        with pytest.raises(Overloaded):
            shard.ask(ReadTopics())
    assert [topic.name for query in queries for topic in query.result(30)] == ["t"] * 20
    for answer in answers:
        assert answer.result(timeout=30)[0].error is None
    assert shard.call(Count("t")).states["ready"] == 60
    shard.close(checkpoint=False)


def test_while_it_is_held_callers_wait_and_are_answered_then() -> None:
    """As while a shard is handed over."""
    shard = Shard(FileStorage(SimulatedFiles()), ShardSettings(memory_bytes=64 << 20))
    shard.call(CreateTopic("t"))
    shard.sequencer.hold(True)
    before = shard.store.journal.last_sequence
    answer = shard.submit([Produce("t", Rows.of([b"x"]))], lead=True)
    query = shard.ask(ReadTopics(name="t"))
    assert not answer.done()
    assert not query.done()
    assert shard.store.journal.last_sequence == before
    shard.sequencer.hold(False)
    assert answer.result(30)[0].all_ok
    assert query.result(30)
    # Closed, it decides what waits.
    shard.sequencer.hold(True)
    answer = shard.submit([Produce("t", Rows.of([b"y"]))])
    shard.close(checkpoint=False)
    assert answer.result(30)[0].all_ok


def test_queries_that_follow_one_another_keep_no_bulk_waiting() -> None:
    """As those that claim the keys of a batch of millions of rows do: there is always a next one."""
    shard = Shard(
        FileStorage(SimulatedFiles()), ShardSettings(memory_bytes=64 << 20, segment_bytes=4 << 20)
    )
    shard.call(CreateTopic("t"))
    # Bulk waits while room is made for it.
    while shard.store.capacity.prepare_spare():
        pass
    steps: list[list[str]] = []
    step = shard.engine.step

    def noted(inputs: Sequence[Any], now_us: int, tick: int) -> Any:
        if inputs:
            steps.append([type(command).__name__ for command in inputs])
        return step(inputs, now_us, tick)

    with held_up(shard):
        shard.engine.step = noted  # type: ignore[method-assign]
        claims = [shard.ask(ClaimKeys(1)) for _ in range(3)]
        bulk = shard.submit([Produce("t", Rows.of([b"x"] * 6_000))])
    assert bulk.result(30)[0].error is None
    for claim in claims:
        with pytest.raises(Overloaded):
            claim.result(30)
    assert steps == [["ClaimKeys", "Produce"], ["ClaimKeys"], ["ClaimKeys"]]
    shard.close(checkpoint=False)


def test_bulk_still_waits_for_commands() -> None:
    claim = Request.of([ClaimKeys(1)], Future(), None, at_once=True)
    cancel = Request.of([Cancel("t", Target(ids=np.arange(1, 41)))], Future(), None)
    bulk = Request.of([Produce("t", Rows.of([b"x"] * 6_000))], Future(), None)
    assert fits([], 0, bulk)
    assert fits([claim], claim.rows, bulk)
    assert not fits([claim, cancel], claim.rows + cancel.rows, bulk)
    assert not fits([claim], claim.rows, claim)
    claim.suspect = True
    assert not fits([claim], claim.rows, bulk)
