"""Turns of long work over the shards of a process."""

from __future__ import annotations

import threading
from pathlib import Path

from fasti.broker.one_at_a_time import OneAtATime
from tests.shards.shards_rig import close_host, open_host

WAIT_S = 60.0


def test_who_waits_for_the_turn_is_told_when_it_is_free() -> None:
    turns, changed = OneAtATime(), threading.Condition()
    assert turns.begin("a", changed)
    assert turns.begin("a", changed), "it has the turn already"
    assert not turns.begin("b", changed)
    turns.end("b")
    assert not turns.begin("b", changed), "who doesn't have it can't end it"
    told = threading.Event()

    def wait() -> None:
        with changed:
            ready.set()
            if changed.wait(WAIT_S):
                told.set()

    ready = threading.Event()
    waiter = threading.Thread(target=wait)
    waiter.start()
    assert ready.wait(WAIT_S)
    turns.end("a")
    waiter.join(WAIT_S)
    assert told.is_set()
    assert turns.begin("b", changed)


def test_checkpoints_of_several_shards_come_one_after_the_other(tmp_path: Path) -> None:
    host = open_host(tmp_path / "data", 3)
    try:
        under_way = threading.Lock()
        overlaps: list[int] = []
        for shard in host.all_shards():
            checkpoint = shard.housekeeper._checkpoint

            def alone(checkpoint=checkpoint, number=shard.place.number) -> None:  # type: ignore[no-untyped-def]
                if not under_way.acquire(blocking=False):
                    overlaps.append(number)
                    return
                checkpoint()
                under_way.release()

            shard.housekeeper._checkpoint = alone  # type: ignore[method-assign]
        waiting = [shard.housekeeper.checkpoint_now() for shard in [*host.all_shards()] * 3]
        for answer in waiting:
            answer.result(WAIT_S)
        assert overlaps == []
        assert all(shard.housekeeper.checkpoints for shard in host.all_shards())
    finally:
        close_host(host)
