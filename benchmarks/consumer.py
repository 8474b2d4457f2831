"""`fasti bench consumer`: what consumers and sends do by default, beside the best settings by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fasti
from benchmarks.limits import machine
from benchmarks.wire import ClientProcess, broker, run_job
from fasti.broker.launch import BrokerProcess

Figures = dict[str, Any]
Show = Callable[[str], None]

# 0: as it is by itself.
PREFETCHES = (0, 100, 1_000, 10_000)
BUFFERS = (0, 1_000, 10_000, 1_000_000)
_KINDS = ("loop", "app", "aio")
_BURST_ROWS = 20_000
_BURST_AFTER_S = 1.5
ASKED = {"of_best": 0.8, "full_rate_after_ms": 50, "last_ms": 120}


def consumer(directory: Path | None, rows: int, rounds: int, show: Show) -> Figures:
    """One message at a time: a loop, an app, a loop of asyncio, sends; and many that are due at once."""
    figures: Figures = {}
    with broker(directory) as process:
        for kind in _KINDS:
            show(f"{kind}, {rows:,} messages, {rounds} times with each prefetch")
            figures[kind] = _compared(process, kind, rows, rounds)
        show(f"send, {rows:,} messages, {rounds} times with each buffer")
        figures["send"] = _sends(process, rows, rounds)
        show(f"{_BURST_ROWS:,} due at one instant")
        figures["burst"] = _burst(process, rounds)
    return {"machine": machine(), **figures, "asked": ASKED}


def _compared(process: BrokerProcess, kind: str, rows: int, rounds: int) -> Figures:
    found: dict[int, list[Figures]] = {prefetch: [] for prefetch in PREFETCHES}
    for number in range(rounds):
        for prefetch in PREFETCHES:
            topic = f"{kind}-{number}-{prefetch}"
            with fasti.connect(process.address) as client:
                client.create_topic(topic)
            run_job("produce_batches", process.address, topic=topic, rows=rows + 5_000)
            given = {"topic": topic, "rows": rows, "prefetch": prefetch}
            found[prefetch].append(run_job(f"consumer_jobs:{kind}", process.address, **given))
            with fasti.connect(process.address) as client:
                client.delete_topic(topic)
    rates = {
        prefetch: round(median(figures["messages_per_s"] for figures in found[prefetch]))
        for prefetch in PREFETCHES
    }
    best = max(rates[prefetch] for prefetch in PREFETCHES if prefetch)
    return {
        "messages_per_s": rates[0],
        "of_best": round(rates[0] / best, 2),
        "full_rate_after_ms": median(figures["full_rate_after_ms"] for figures in found[0]),
        "by_prefetch": {f"{prefetch:,}": rates[prefetch] for prefetch in PREFETCHES if prefetch},
    }


def _sends(process: BrokerProcess, rows: int, rounds: int) -> Figures:
    """`send` in a loop, and its buffer as it is or set by hand."""
    found: dict[int, list[float]] = {buffer_rows: [] for buffer_rows in BUFFERS}
    for number in range(rounds):
        for buffer_rows, rates in found.items():
            topic = f"send-{number}-{buffer_rows}"
            with fasti.connect(process.address) as client:
                client.create_topic(topic)
            given = {"topic": topic, "rows": rows, "buffer_rows": buffer_rows}
            sent = run_job("consumer_jobs:send", process.address, **given)
            rates.append(sent["messages_per_s"])
            with fasti.connect(process.address) as client:
                client.delete_topic(topic)
    rates_by_buffer = {buffer_rows: round(median(rates)) for buffer_rows, rates in found.items()}
    default = rates_by_buffer.pop(0)
    return {
        "messages_per_s": default,
        "of_best": round(default / max(rates_by_buffer.values()), 2),
        "by_buffer_rows": {f"{rows:,}": rate for rows, rate in rates_by_buffer.items()},
    }


def _burst(process: BrokerProcess, rounds: int) -> Figures:
    """For a consumer that has had no message before, so that it knows nothing of its handler."""
    found: dict[int, list[float]] = {0: [], 2 * _BURST_ROWS: []}
    for number in range(rounds):
        for prefetch, lasts in found.items():
            topic = f"burst-{number}-{prefetch}"
            with fasti.connect(process.address) as client:
                client.create_topic(topic)
            given = {"topic": topic, "rows": _BURST_ROWS}
            taking = ClientProcess(
                "consumer_jobs:burst", process.address, **given, prefetch=prefetch
            )
            taking.go()
            run_job("burst_producer", process.address, **given, after_s=_BURST_AFTER_S)
            lasts.append(taking.result()["last_ms"])
    default, ahead = (median(lasts) for lasts in found.values())
    return {"rows": _BURST_ROWS, "last_ms": default, "last_ms_all_ahead": ahead}
