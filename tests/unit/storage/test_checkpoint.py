"""Which blocks a checkpoint writes again."""

from __future__ import annotations

from fasti.storage import checkpoint
from fasti.storage.checkpoint import choose_victims
from fasti.storage.runs import Block


def block(number: int, run: int, rows: int = 100, size_bytes: int = 1000) -> Block:
    return Block(number, 1, run, rows, size_bytes, (1, 0, 0), (1, 0, 9))


def test_mostly_dead_blocks_are_rewritten_and_others_left_alone() -> None:
    runs = [block(1, 1), block(2, 1), block(3, 2)]
    live = {1: 51, 2: 50, 3: 1}
    chosen = choose_victims(runs, lambda b: live[b.number])
    assert [b.number for b in chosen] == [2, 3]


def test_the_smallest_of_too_many_runs_are_merged() -> None:
    runs = [block(n, n, size_bytes=1000 - n) for n in range(1, 14)]
    chosen = choose_victims(runs, lambda b: b.rows)
    assert [b.number for b in chosen] == [13, 12, 11, 10, 9, 8]
    assert choose_victims(runs[:12], lambda b: b.rows) == []


def test_no_checkpoint_rewrites_too_much_but_always_something() -> None:
    huge = checkpoint._REWRITTEN_BYTES_MAX
    runs = [block(1, 1, size_bytes=huge + 1), block(2, 1, size_bytes=10), block(3, 1)]
    assert [b.number for b in choose_victims(runs, lambda _: 0)] == [1]
    runs = [block(1, 1, size_bytes=huge - 5), block(2, 1, size_bytes=5), block(3, 1)]
    assert [b.number for b in choose_victims(runs, lambda _: 0)] == [1, 2]
