"""A broker is killed while calls are under way: none raises, and each answer is what happened, once."""

from __future__ import annotations

from pathlib import Path

from fasti.broker.launch import BrokerProcess
from tests.integration.lost_answers_rig import (
    ALL,
    cancel_each,
    count_in_a_loop,
    count_up,
    move_one,
    work_through,
)
from tests.integration.serve_rig import SEGMENTS, SMALL
from tests.shards.processes_rig import kill_and_wait


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SEGMENTS) as broker:

        def kill(_: int) -> None:
            broker.kill()
            broker.start()

        work_through(broker.address, kill, [*ALL, count_up, cancel_each, count_in_a_loop])


def test_processes_of_a_broker_that_are_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, shards=4, processes=2, settings=SMALL) as broker:

        def kill(number: int) -> None:
            kill_and_wait(broker, number % 2)

        work_through(broker.address, kill, [count_up, cancel_each, move_one], kills=2)
