"""Receipts as runs answer row by row what rows were; producers are bounded in number."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.producers import RUN, Producer, Producers, Receipt
from fasti.errors import Overloaded, UnknownProducer
from fasti.model import HOUR_US, SEQUENCE_BITS, Limits, Outcome
from tests.unit.core.test_memory_counts import NOW_US, Shard, keyed

SEED = (1, 2)

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 5]),
        st.sampled_from([0, 1, 2, 3, 7, 8, 9, 1 << SEQUENCE_BITS, (1 << SEQUENCE_BITS) + 1]),
        st.sampled_from([0, 1, 1, 1, 2]),
    ),
    min_size=1,
    max_size=40,
)


def receipt_of(status: Any, ids: Any, versions: Any) -> Receipt:
    return Receipt.of(1, np.array(status, np.uint8), np.array(ids), np.array(versions))


@given(ROWS)
def test_any_rows_come_back(rows: list[tuple[int, int, int]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    answers = receipt_of(*columns).answers()
    assert [answer.tolist() for answer in answers] == columns


def test_new_rows_are_one_run() -> None:
    receipt = receipt_of([0] * 100_000, np.arange(7, 100_007), [1] * 100_000)
    assert len(receipt.runs) == RUN.itemsize
    assert len(receipt.order) == 0


def test_rows_that_were_refused_alike_are_one_run() -> None:
    receipt = receipt_of([Outcome.CONFLICT] * 1_000, [0] * 1_000, [0] * 1_000)
    assert len(receipt.runs) == RUN.itemsize


def test_rows_that_keys_spread_over_partitions_take_two_bytes_each() -> None:
    rng, rows, partitions = random.Random(1), 100_000, 4_096
    counts = [0] * partitions
    ids = []
    for _ in range(rows):
        number = rng.randrange(partitions)
        counts[number] += 1
        ids.append(number << SEQUENCE_BITS | counts[number])
    receipt = receipt_of([0] * rows, ids, [1] * rows)
    assert len(receipt.runs) + len(receipt.order) < 2 * rows + partitions * RUN.itemsize + 100
    assert receipt.answers()[1].tolist() == ids


def test_a_repeated_batch_is_answered_as_before() -> None:
    shard = Shard()
    shard.topic("t", partitions=8)
    batches, replies = [], []
    for number in range(1, 11):
        rows = keyed(50, 30 * number)
        batch = co.Produce("t", rows, keys=rows.keys(SEED), producer="p", producer_sequence=number)
        batches.append(batch)
        replies.append(shard.do(batch))
    assert {Outcome.OK, Outcome.CONFLICT} == {Outcome(s) for s in replies[1].status.tolist()}
    for number, (batch, reply) in enumerate(zip(batches, replies, strict=True), 1):
        again = shard.do(batch)
        assert again.sent_before
        if number < 3:
            assert (again.status == Outcome.DUPLICATE).all()
            continue
        for name in ("status", "ids", "versions"):
            assert getattr(again, name).tolist() == getattr(reply, name).tolist()


# How many are remembered


def known(names: list[str], seen_us: int = NOW_US, count_max: int = 3) -> Producers:
    producers = Producers(count_max)
    for number, name in enumerate(names):
        producers.set(name, Producer(1, NOW_US + 100 * HOUR_US, seen_us + number))
    return producers


def test_those_silent_longest_are_forgotten_first_but_not_within_an_hour() -> None:
    producers = known(["a", "b", "c", "d", "e"])
    producers.forget(NOW_US + HOUR_US - 1)
    assert list(producers.all()) == ["a", "b", "c", "d", "e"]
    assert not producers.has_room(NOW_US + HOUR_US - 1)
    assert producers.has_room(NOW_US + HOUR_US)
    producers.forget(NOW_US + HOUR_US + 1)
    assert list(producers.all()) == ["c", "d", "e"]
    assert producers.size_bytes == sum(p.size_bytes + 1 for p in producers.all().values())


def test_one_producer_too_many_is_refused_until_another_was_silent_for_an_hour() -> None:
    shard = Shard(limits=Limits(producers_max=3))
    shard.topic("t")
    for name in ("a", "b", "c"):
        shard.produce("t", 1, producer=name, producer_sequence=1)
    with pytest.raises(Overloaded, match=r"limits\.producers_max"):
        shard.produce("t", 1, producer="d", producer_sequence=1)
    # Those that are known go on, and so does who has no name.
    shard.produce("t", 1, producer="a", producer_sequence=2)
    shard.produce("t", 1)
    shard.now_us += HOUR_US
    shard.produce("t", 1, producer="d", producer_sequence=1)
    assert sorted(shard.engine.state.producers.all()) == ["a", "c", "d"]
    with pytest.raises(UnknownProducer):
        shard.produce("t", 1, producer="b", producer_sequence=2)


def test_a_replay_forgets_the_same_producers() -> None:
    shard = Shard(limits=Limits(producers_max=5))
    shard.topic("t")
    for number in range(40):
        shard.now_us += HOUR_US // 4
        shard.produce("t", 1, producer=f"p-{number}", producer_sequence=1)
    again = Engine(1 << 30, 1 << 12, Limits(producers_max=5))
    for frame in shard.frames:
        again.replay(frame.sequence, frame.events)
    assert again.state.producers.all() == shard.engine.state.producers.all()
    assert len(again.state.producers) == 5
