"""Which shard of a process makes the next checkpoint, and what each may keep for the change feed."""

from types import SimpleNamespace
from typing import Any

import pytest

from fasti.broker.journal_budget import JournalBudget
from fasti.config import ShardSettings

SETTINGS = ShardSettings(checkpoint_bytes=100, checkpoint_frames=10, feed_bytes=1000)


def shard(written: int = 0, feed: int = 0, frames: int = 0) -> Any:
    """One with so much journal since its last checkpoint, and so much that only the feed needs."""
    return SimpleNamespace(
        committer=SimpleNamespace(written_bytes=written),
        store=SimpleNamespace(feed_bytes=feed, tail_frames=frames),
    )


def budget_of(*shards: Any) -> JournalBudget:
    budget = JournalBudget(SETTINGS)
    for each in shards:
        budget.add(each)
    return budget


def test_the_longest_tail_is_next_when_all_together_are_at_the_limit() -> None:
    short, longest = shard(written=40), shard(written=60)
    budget = budget_of(short, longest, shard())
    assert budget.due_for_checkpoint() is longest
    longest.committer.written_bytes = 59
    assert budget.due_for_checkpoint() is None
    assert budget.grown == pytest.approx(0.99)


def test_small_frames_count_by_their_number() -> None:
    many, large = shard(written=10, frames=5), shard(written=30)
    budget = budget_of(many, large)
    assert budget.due_for_checkpoint() is None
    many.store.tail_frames = 6
    assert budget.due_for_checkpoint() is many


def test_a_shard_alone_goes_by_its_own_journal() -> None:
    alone = shard(written=100, feed=5000)
    budget = budget_of(alone)
    assert budget.due_for_checkpoint() is alone
    assert budget.feed_bytes(alone) == 1000


@pytest.mark.parametrize(("others", "may_keep"), [(0, 1000), (300, 700), (900, 500), (5000, 500)])
def test_a_shard_keeps_what_the_other_leaves_and_its_part_in_any_case(
    others: int, may_keep: int
) -> None:
    busy = shard()
    assert budget_of(busy, shard(feed=others)).feed_bytes(busy) == may_keep


def test_a_closed_shard_counts_no_more() -> None:
    gone, left = shard(written=90, feed=900), shard(written=20)
    budget = budget_of(gone, left)
    budget.remove(gone)
    assert budget.due_for_checkpoint() is None
    assert budget.feed_bytes(left) == 1000
