"""Memory follows the messages that live, and those that are packed together work like others."""

from __future__ import annotations

import numpy as np
import pytest

from fasti.core import commands
from fasti.core.commands import Target, When
from fasti.core.keys import Rows
from fasti.core.rows import arena
from fasti.core.rows.snapshot import Snapshot
from fasti.model import MINUTE_US, TopicSettings
from tests.unit.core.test_engine_regressions import NOW_US, Shard, ids, names, words

MESSAGES = 24_000
SURVIVORS = list(range(1_000, MESSAGES + 1, 1_000))


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Shard:
    """A topic of 24,000 messages, every thousandth with a key."""
    # Thin pages are packed at once, not when 256 of them have gathered.
    monkeypatch.setattr(arena, "_THIN_PAGES_KEPT", 0)
    shard = Shard(leases_max=MESSAGES, max_attempts=1)
    for begin in range(0, MESSAGES, 8_000):
        numbers = range(begin + 1, begin + 8_001)
        payloads = [b"%d" % n for n in numbers]
        keys = names(*(f"k{n}" if n in SURVIVORS else None for n in numbers))
        when = When(due_us=NOW_US + MINUTE_US + np.arange(8_000, dtype=np.int64))
        shard.do(commands.Produce("t", Rows.of(payloads), when, keys))
    return shard


def thin_out(shard: Shard) -> None:
    doomed = ids(*(n for n in range(1, MESSAGES + 1) if n not in SURVIVORS))
    reply = shard.do(commands.Cancel("t", Target(ids=doomed)))
    assert not reply.status.any()
    for _ in range(10):
        shard.step()


def listed(shard: Shard) -> list[int]:
    found: list[int] = []
    after = 0
    while True:
        page = shard.do(commands.List("t", after_id=after, limit=5_000))
        assert page.error is None
        found += page.ids.tolist()
        after = page.next_after_id
        if not after:
            return found


def kept(snapshot: Snapshot) -> list[int]:
    """The sequences that a snapshot of the only partition shows."""
    (place,) = snapshot.ledgers
    return sorted(np.concatenate([rows["sequence"] for rows in snapshot.rows(*place)]).tolist())


def test_frames_go_back_when_most_messages_are_finished(shard: Shard) -> None:
    arena = shard.engine.memory.arena
    assert arena.frames_used == 6
    thin_out(shard)
    # The page that is being filled, and one frame for the leftovers of all others.
    assert arena.frames_used == 2
    assert listed(shard) == SURVIVORS


def test_packed_messages_can_be_read_changed_and_cancelled(shard: Shard) -> None:
    thin_out(shard)
    found = shard.do(commands.Get("t", Target(ids=ids(*SURVIVORS))))
    assert not found.status.any()
    assert found.columns["due_us"].tolist()[0] == NOW_US + MINUTE_US + 999
    by_key = shard.do(commands.Get("t", Target(keys=names("k3000", "k4000"))))
    assert by_key.ids.tolist() == [3_000, 4_000]
    move = commands.Move("t", Target(keys=names("k3000")), When(delay_us=5))
    assert words(shard.do(move)) == ["ok"]
    update = commands.Update("t", Target(ids=ids(4_000)), Rows.of([b"new"]))
    assert words(shard.do(update)) == ["ok"]
    assert words(shard.do(commands.Cancel("t", Target(ids=ids(5_000, 5_001))))) == [
        "ok",
        "cancelled",
    ]
    assert words(shard.produce(b"again", keys=["k6000"])) == ["conflict"]
    assert words(shard.produce(b"again", keys=["k5000"])) == ["ok"]


def test_a_failed_transaction_leaves_packed_messages_alone(shard: Shard) -> None:
    thin_out(shard)
    parts = [
        commands.Cancel("t", Target(ids=ids(1_000, 2_000))),
        commands.Move("t", Target(ids=ids(3_000)), When(delay_us=1)),
        commands.Cancel("t", Target(ids=ids(1_000))),
    ]
    assert not shard.do(commands.Transaction(parts)).committed
    shard.step()
    assert listed(shard) == SURVIVORS
    assert shard.engine.state.by_name["t"].partitions[0].times.histogram.total == len(SURVIVORS)


def test_packed_messages_are_handed_out_in_order_and_give_their_frame_back(shard: Shard) -> None:
    thin_out(shard)
    shard.wait(2 * MINUTE_US)
    (delivered,) = shard.lease(count=100)
    # Three batches began anew with the first due time, so the order is not that of the ids.
    due = {n: (n - 1) % 8_000 for n in SURVIVORS}
    assert delivered.ids.tolist() == sorted(SURVIVORS, key=lambda n: (due[n], n))
    tokens = np.full(len(SURVIVORS), delivered.token)
    assert not shard.do(commands.Ack("t", delivered.ids, tokens)).status.any()
    for _ in range(3):
        shard.step()
    assert shard.engine.memory.arena.frames_used <= 1
    assert listed(shard) == []


def test_dead_messages_survive_packing(shard: Shard) -> None:
    shard.wait(2 * MINUTE_US)
    delivered = shard.lease(count=MESSAGES)
    while shard.last.more:
        shard.step()
        delivered += shard.delivered
    for part in delivered:
        dies = np.isin(part.ids, SURVIVORS)
        shard.do(commands.Nack("t", part.ids[dies], np.full(dies.sum(), part.token), "why"))
        shard.do(commands.Ack("t", part.ids[~dies], np.full((~dies).sum(), part.token)))
    for _ in range(10):
        shard.step()
    assert shard.engine.memory.arena.frames_used == 2
    found = shard.do(commands.List("t", state="dead"))
    assert found.ids.tolist() == SURVIVORS
    assert {found.names["reason"][n] for n in found.columns["reason"]} == {"why"}
    assert words(shard.do(commands.Redrive("t", ids(7_000), names("k7000")))) == ["ok"]
    assert [d.ids.tolist() for d in shard.lease()] == [[7_000]]


def test_a_snapshot_keeps_what_is_packed_and_given_back(shard: Shard) -> None:
    done = shard.do(commands.TakeSnapshot(shard.now_us + MINUTE_US))
    thin_out(shard)
    assert kept(done.value) == list(range(1, MESSAGES + 1))
    second = shard.do(commands.TakeSnapshot(shard.now_us + MINUTE_US))
    shard.do(commands.Cancel("t", Target(ids=ids(*SURVIVORS[1:]))))
    shard.step()
    assert listed(shard) == SURVIVORS[:1]
    assert kept(second.value) == SURVIVORS


def test_a_restart_packs_alike(shard: Shard) -> None:
    thin_out(shard)
    twin = shard.restarted()
    for _ in range(10):
        twin.step()
    assert listed(twin) == SURVIVORS
    assert twin.engine.memory.arena.frames_used == 2


def test_a_deleted_topic_gives_everything_back(shard: Shard) -> None:
    thin_out(shard)
    shard.do(commands.DeleteTopic("t"))
    assert shard.engine.memory.arena.frames_used == 0
    shard.do(commands.CreateTopic("t", TopicSettings()))
    assert words(shard.produce(b"1", keys=["k1000"])) == ["ok"]
    assert listed(shard) == [1]


def test_pages_with_few_survivors_are_packed_when_they_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "_THIN_PAGES_KEPT", 4)
    shard = Shard(leases_max=10)
    page = 4_096
    for number in range(10):
        when = When(due_us=NOW_US + MINUTE_US + np.arange(page, dtype=np.int64))
        sent = shard.do(commands.Produce("t", Rows.of([b"x"] * page), when))
        left = 1 if number < 3 else 0
        shard.do(commands.Cancel("t", Target(ids=sent.ids[left:])))
        shard.step()
    assert len(listed(shard)) == 3
    # One for the three that are left, and the one that is being filled.
    assert shard.engine.memory.arena.frames_used == 2
