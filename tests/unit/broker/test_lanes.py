"""Bulk in lanes: one request of each producer in turn, and in a lane as it came."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from fasti.broker.lanes import Lanes
from fasti.broker.request import Request
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core.commands import CreateTopic, Produce
from fasti.core.keys import Rows
from fasti.core.replies import Step
from fasti.errors import Closed
from fasti.storage.memory_storage import MemoryStorage
from tests.simulation.runtime import SimulatedRuntime

SETTINGS = ShardSettings(memory_bytes=64 << 20, segment_bytes=4 << 20)


def request(producer: str, rows: int = 1) -> Request:
    answer: Future[Any] = Future()
    return Request.of([Produce("t", Rows.of([b"x"] * rows), producer=producer)], answer, None)


def taken(lanes: Lanes) -> list[Request]:
    found = []
    while lanes:
        first = lanes.first
        found.append(lanes.popleft())
        assert found[-1] is first
    return found


def test_producers_take_turns_and_each_keeps_its_order() -> None:
    lanes = Lanes()
    many = [request("many") for _ in range(4)]
    few = [request("few") for _ in range(2)]
    for each in (*many, *few):
        lanes.append(each)
    assert len(lanes) == 6
    assert set(map(id, lanes)) == set(map(id, (*many, *few)))
    assert taken(lanes) == [many[0], few[0], many[1], few[1], many[2], many[3]]
    assert not len(lanes)


def test_what_is_put_back_comes_first_in_its_order() -> None:
    lanes = Lanes()
    others = [request("a"), request("c")]
    for each in others:
        lanes.append(each)
    again = [request("a"), request("b"), request("a")]
    for each in reversed(again):
        lanes.appendleft(each)
    found = taken(lanes)
    assert found[0] is again[0]
    assert found.index(again[0]) < found.index(again[2]) < found.index(others[0])
    lanes.append(others[0])
    lanes.clear()
    assert not lanes
    assert not list(lanes)


def test_nothing_is_lost_and_no_lane_out_of_order() -> None:
    draws = random.Random(5)
    for _ in range(50):
        lanes = Lanes()
        came: dict[str, list[Request]] = {"a": [], "b": [], "c": []}
        left: dict[str, list[Request]] = {"a": [], "b": [], "c": []}
        for _ in range(60):
            name = draws.choice("abc")
            if draws.random() < 0.6:
                came[name].append(request(name))
                lanes.append(came[name][-1])
            elif lanes:
                gone = lanes.popleft()
                left[gone.lane[1]].append(gone)
        for gone in taken(lanes):
            left[gone.lane[1]].append(gone)
        assert left == came


class Steps:
    """What each step of a shard is given, in virtual time."""

    def __init__(self) -> None:
        self.runtime = SimulatedRuntime()
        self.shard = Shard(MemoryStorage(), SETTINGS, self.runtime)
        self.inputs: list[list[Any]] = []
        self.numbers: Counter[str] = Counter()
        engine, step = self.shard.engine, self.shard.engine.step

        def note(inputs: Any, *rest: Any) -> Step:
            self.inputs.append(list(inputs))
            return step(inputs, *rest)

        engine.step = note  # type: ignore[method-assign]

    def produce(self, producer: str, rows: int, **more: Any) -> Any:
        self.numbers[producer] += 1
        more |= {"producer": producer, "producer_sequence": self.numbers[producer]}
        return self.shard.submit([Produce("t", Rows.of([b"x"] * rows), **more)])

    def producers(self) -> list[list[str]]:
        """Of the steps with bulk."""
        made = [[c.producer for c in step if isinstance(c, Produce)] for step in self.inputs]
        return [step for step in made if step]


def test_a_small_batch_waits_for_one_large_one_of_another_producer() -> None:
    steps = Steps()
    steps.shard.call(CreateTopic("t"))
    answers = [steps.produce("bulk", 5_000) for _ in range(6)]
    answers.append(steps.produce("small", 10))
    for answer in answers:
        assert answer.result(60.0)[0].error is None
    assert steps.producers() == [["bulk"], ["small"], *[["bulk"]] * 5]
    steps.shard.close()


def test_who_waits_in_a_lane_is_told_of_the_end() -> None:
    steps = Steps()
    answer = steps.produce("a", 1)
    steps.shard.sequencer._refuse()
    with pytest.raises(Closed):
        answer.result(60.0)
