"""The engine alone, without a disk: how fast it decides."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.traffic import BATCH, TOPIC, Traffic
from fasti.core.commands import Ack, Cancel, CreateTopic, Lease, Move, Produce, Target, When
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.replies import Deliver
from fasti.model import DAY_US
from fasti.storage.event_codec import encode

_NOW_US = 1_800_000_000_000_000
_SEED = (1, 2)


def engine_alone(rows: int = 1_000_000) -> dict[str, Any]:
    """Produce without and with keys, then lease + ack of everything. Messages per second.

    Due at random within 30 days, but for the figures of arrival order.
    """
    plain = _fresh()
    produced = _produce(plain, Traffic(_SEED, _NOW_US), rows, keyed=False)
    leased, steps = _lease_and_ack(plain, rows)
    ordered = _fresh()
    _produce(ordered, Traffic(_SEED, _NOW_US), rows, keyed=False, every_us=10)
    in_order, _ = _lease_and_ack(ordered, rows)
    keyed = _produce(_fresh(), Traffic(_SEED, _NOW_US), rows, keyed=True)
    steps.sort()
    return {
        "rows": rows,
        "lease_ack_per_s": round(leased),
        "lease_ack_arrival_order_per_s": round(in_order),
        "lease_ack_of_arrival_order": round(leased / in_order, 3),
        "produce_per_s": round(produced),
        "produce_keyed_per_s": round(keyed),
        "lease_ack_step_p50_ms": round(steps[len(steps) // 2] * 1e3, 2),
        "lease_ack_step_max_ms": round(steps[-1] * 1e3, 2),
        "asked": {
            "produce_per_s": 4_000_000,
            "produce_keyed_per_s": 1_000_000,
            "lease_ack_per_s": 3_000_000,
            "lease_ack_of_arrival_order": 0.7,
        },
    }


def _fresh() -> Engine:
    engine = Engine()
    engine.step([CreateTopic(TOPIC)], _NOW_US, 0)
    return engine


def _produce(
    engine: Engine, traffic: Traffic, rows: int, keyed: bool, every_us: int | None = None
) -> float:
    """Due at random, or one after another."""
    # The commands are made outside the clock: they are the caller's work, on another thread.
    commands: list[Produce] = list(traffic.batches(rows, keyed, every_us))
    begin = time.perf_counter()
    for tick, command in enumerate(commands):
        engine.step([command], _NOW_US + tick, tick)
    return rows / (time.perf_counter() - begin)


def _lease_and_ack(engine: Engine, rows: int) -> tuple[float, list[float]]:
    now_us = _NOW_US + 40 * DAY_US
    inputs: list[Any] = [Lease(TOPIC, 1, "worker", BATCH)]
    seconds: list[float] = []
    done, tick = 0, 0
    begin = time.perf_counter()
    while done < rows:
        started = time.perf_counter()
        step = engine.step(inputs, now_us + tick, tick)
        seconds.append(time.perf_counter() - started)
        inputs, taken = [], 0
        for effect in step.effects:
            if isinstance(effect, Deliver):
                tokens = np.full(len(effect.ids), effect.token, dtype=np.int64)
                inputs.append(Ack(TOPIC, effect.ids, tokens))
                taken += len(effect.ids)
        done += taken
        tick += 1
        if taken:
            inputs.append(Lease(TOPIC, 1, "worker", taken))
    engine.step(inputs, now_us + tick, tick)
    return rows / (time.perf_counter() - begin), seconds


def single_rows(rows: int = 5_000) -> dict[str, Any]:
    """Commands of one row, each in a step of its own: what one costs, and its frame's encoding."""
    engine, count = _fresh(), min(rows, 20_000)
    far_us = _NOW_US + DAY_US
    due = [When(due_us=far_us)] * count
    found = {}
    found["produce"], replies, _ = _one_by_one(
        engine, [Produce(TOPIC, Rows.of([b"x" * 100]), when) for when in due]
    )
    targets = [Target(ids=reply.ids) for reply in replies]
    later = When(due_us=far_us + DAY_US)
    found["move"], _, _ = _one_by_one(engine, [Move(TOPIC, named, later) for named in targets])
    found["cancel"], _, _ = _one_by_one(engine, [Cancel(TOPIC, named) for named in targets])
    _one_by_one(engine, [Produce(TOPIC, Rows.of([b"x" * 100]), When()) for _ in due])
    found["lease"], _, delivered = _one_by_one(engine, [Lease(TOPIC, 1, "worker", 1)] * count)
    acks = [Ack(TOPIC, d.ids, np.full(1, d.token, dtype=np.int64)) for d in delivered]
    found["ack"], replies, _ = _one_by_one(engine, acks)
    assert len(replies) == count
    assert all(reply.all_ok for reply in replies)
    return {"rows": count, **found, "asked": {"step_us": 60}}


def _one_by_one(
    engine: Engine, commands: list[Any]
) -> tuple[dict[str, float], list[Any], list[Deliver]]:
    """The median and the 99th percentile of both, the replies, and what was handed out."""
    steps, encodings, replies, delivered = [], [], [], []
    for tick, command in enumerate(commands):
        command.encode()
        begin = time.perf_counter()
        step = engine.step([command], _NOW_US + tick, tick)
        decided = time.perf_counter()
        for frame in step.frames:
            encode(frame)
        encodings.append(time.perf_counter() - decided)
        steps.append(decided - begin)
        replies += step.replies
        delivered += [effect for effect in step.effects if isinstance(effect, Deliver)]
    figures = {}
    for name, seconds in (("step", steps), ("encode", encodings)):
        for quantile in (50, 99):
            value = float(np.percentile(seconds, quantile)) * 1e6
            figures[f"{name}_p{quantile}_us"] = round(value, 1)
    return figures, replies, delivered
