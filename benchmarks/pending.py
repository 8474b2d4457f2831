"""Millions of pending messages: memory, speed, opening after a kill, and random access.

The parts run in processes of their own, because memory is what is measured and a kill is what is
survived: `fill` is killed by the parent when it has said what it did, `reopened` finds the
directory as it was left.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.durable import open_shard, work_off
from benchmarks.limits import resident_anonymous_mb
from benchmarks.traffic import BATCH, TOPIC, Traffic, hashed_keys, prepared, send_all
from fasti.broker.shard import Shard
from fasti.core.commands import Ack, Cancel, Count, Get, Move, Target, When
from fasti.model import DAY_US

Int64s = NDArray[np.int64]

_SMALL = 100_000
_MEASURED = 500_000
# Due at random within a second, and in nobody's memory.
_DUE = 200_000
_ROUNDS = 40


def fill(directory: Path, rows: int) -> dict[str, Any]:
    """Fills up to `rows` pending, half of them with keys; compares the rates at both ends."""
    shard = open_shard(directory, memory_bytes=_budget(rows))
    traffic = Traffic(shard.store.seed, shard.clock.now_us())
    send_all(shard, traffic.batches(_SMALL, None))
    small = _MEASURED / send_all(shard, prepared(traffic.batches(_MEASURED, None)))
    begin = time.perf_counter()
    send_all(shard, traffic.batches(rows - _SMALL - 3 * _MEASURED, None))
    filled = time.perf_counter() - begin
    beside = _MEASURED / send_all(shard, prepared(traffic.batches(_MEASURED, None)))
    resident = resident_anonymous_mb()
    # What falls due is read from blocks when the directory is opened again.
    due = Traffic(shard.store.seed, shard.clock.now_us())
    send_all(shard, due.due_batches(_DUE, shuffled=True))
    # Like with like: no checkpoint was running beside the first measurement either.
    shard.checkpoint()
    large = _MEASURED / send_all(shard, prepared(traffic.batches(_MEASURED, None)))
    return {
        "pending": rows,
        "rss_anon_mb": round(max(resident, resident_anonymous_mb())),
        "rate_at_0.1m_per_s": round(small),
        "rate_at_full_per_s": round(large),
        "rate_ratio": round(large / small, 2),
        "rate_beside_checkpoint_per_s": round(beside),
        "fill_s": round(filled, 1),
        "checkpoints": shard.housekeeper.checkpoints,
    }


def reopened(directory: Path, rows: int, come_and_go: int) -> dict[str, Any]:
    """Opens after the kill, then reads and changes at random, then lets others come and go."""
    begin = time.perf_counter()
    shard = open_shard(directory, memory_bytes=_budget(rows + come_and_go))
    opened = time.perf_counter() - begin
    states = shard.call(Count(TOPIC)).states
    result: dict[str, Any] = {
        "open_s": round(opened, 2),
        "lost": rows + _DUE - states["scheduled"] - states["ready"],
        "rss_anon_open_mb": round(resident_anonymous_mb()),
        "disk_mb": round(_size(directory) / 1e6),
    }
    begin = time.perf_counter()
    work_off(shard, _DUE)
    result["lease_ack_random_from_blocks_per_s"] = round(_DUE / (time.perf_counter() - begin))
    shard.checkpoint()
    result["random"] = random_access(shard, rows)
    if come_and_go:
        result["come_and_go"] = _come_and_go(shard, come_and_go)
    shard.close(checkpoint=False)
    return result


def random_access(shard: Shard, rows: int) -> dict[str, int]:
    """Batches of 5,000 random messages: operations per second."""
    random = np.random.default_rng(3)
    keys = rows // (2 * BATCH) * BATCH
    seed = shard.store.seed

    def ids() -> Target:
        return Target(ids=np.unique(random.integers(1, rows, BATCH)))

    def by_key() -> Target:
        return Target(keys=hashed_keys(np.unique(random.integers(0, keys, BATCH)), seed))

    def when() -> When:
        return When(due_us=shard.clock.now_us() + 10 * DAY_US)

    rates = {}
    for name, target in (("id", ids), ("key", by_key)):
        targets = [target() for _ in range(_ROUNDS)]
        rates[f"get_by_{name}_per_s"] = _rate(lambda t: shard.call(Get(TOPIC, t)), targets)
        rates[f"get_with_payload_by_{name}_per_s"] = _rate(lambda t: _get(shard, t), targets)
        rates[f"move_by_{name}_per_s"] = _rate(
            lambda t: shard.call(Move(TOPIC, t, when())), targets
        )
        few = targets[: _ROUNDS // 4]
        rates[f"cancel_by_{name}_per_s"] = _rate(lambda t: shard.call(Cancel(TOPIC, t)), few)
    return rates


def _get(shard: Shard, target: Target) -> None:
    found = shard.call(Get(TOPIC, target))
    good = found.status == 0
    shard.store.payloads.gather(found.columns["location"][good])


def _rate(operation: Any, targets: list[Target]) -> int:
    begin = time.perf_counter()
    for target in targets:
        operation(target)
    return round(sum(len(target) for target in targets) / (time.perf_counter() - begin))


def _come_and_go(shard: Shard, rows: int) -> dict[str, Any]:
    """As many more are produced, and all but one in a thousand are leased and acknowledged."""
    before = resident_anonymous_mb()
    session = shard.open_session()
    traffic = Traffic(shard.store.seed, 0, first_key=1 << 40)
    begin = time.perf_counter()
    highest = before
    chunk = 50 * BATCH
    for _ in range(rows // chunk):
        batches = [
            traffic.produce(number % 2 == 1, due_us=shard.clock.now_us()) for number in range(50)
        ]
        send_all(shard, iter(batches))
        session.lease(TOPIC, "worker", chunk)
        _work_off(shard, session, chunk)
        highest = max(highest, resident_anonymous_mb())
    shard.checkpoint()
    after = resident_anonymous_mb()
    return {
        "rows": rows,
        "seconds": round(time.perf_counter() - begin, 1),
        "rss_anon_before_mb": round(before),
        "rss_anon_highest_mb": round(highest),
        "rss_anon_after_mb": round(after),
        "ratio_to_reopened": round(after / before, 3),
    }


def _work_off(shard: Shard, session: Any, count: int) -> None:
    answers = []
    while count > 0:
        delivery = session.receive(timeout=30)
        if delivery is None:
            raise RuntimeError("no delivery within 30 s")
        ids: Int64s = delivery.leased.ids
        keep = ids % 1000 == 0
        tokens = np.full(int((~keep).sum()), delivery.leased.token, dtype=np.int64)
        answers.append(shard.submit([Ack(TOPIC, ids[~keep], tokens)]))
        count -= len(ids)
    for answer in answers:
        answer.result()


def _budget(rows: int) -> int:
    return max(2 << 30, rows * 96)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
