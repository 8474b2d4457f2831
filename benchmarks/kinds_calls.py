"""Requests and replies over the wire: calls one after another, and a thousand at once.

Callers and repliers are processes of their own, so that the figures have two clients' worth of
Python in them, as they would elsewhere. A call is four durable steps: the request, its lease, the
reply with the ack, the lease of the answer.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fasti
from benchmarks.wire import broker, run_job

Figures = dict[str, Any]
Show = Callable[[str], None]

_ONE_BY_ONE = 300
_CALLERS = 1_000
_CALLS_MAX = 50_000
_REPLIER = """
import sys
import fasti

with fasti.connect(sys.argv[1]) as client:
    print("ready", flush=True)
    for message in client.consumer("calls", prefetch=2048):
        message.reply(message.payload, wait=False)
"""


def measure(directory: Path | None, rows: int, show: Show, limits: Figures) -> Figures:
    """100-byte requests, answered by one process: how soon, and how many a second."""
    with broker(directory) as process:
        with fasti.connect(process.address) as client:
            client.create_topic("calls", lookahead=0)
        command = [sys.executable, "-c", _REPLIER, process.address]
        replier = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert replier.stdout is not None
            replier.stdout.readline()
            show("calls: one after another")
            alone = run_job("kinds_calls:one_by_one", process.address, calls=_ONE_BY_ONE)
            show(f"calls: {_CALLERS} at once")
            calls = min(max(rows // 100, _CALLERS), _CALLS_MAX)
            many = run_job("kinds_calls:at_once", process.address, calls=calls, callers=_CALLERS)
        finally:
            replier.kill()
            replier.wait()
            if replier.stdout is not None:
                replier.stdout.close()
    # A call waits for at least two syncs that follow each other, often for four.
    sync_ms = limits["disk"].get("sync_p50_ms")
    return {"one_by_one": alone, "at_once": many} | (
        {} if sync_ms is None else {"sync_p50_ms": sync_ms}
    )


def one_by_one(address: str, calls: int) -> Figures:
    """How long a call takes when there is nothing else."""
    with fasti.connect(address) as client:
        client.call("calls", b"warm", timeout="30s")
        return _figures([_timed(client) for _ in range(calls)])


def _timed(client: fasti.Client) -> float:
    begin = time.perf_counter()
    client.call("calls", b"x" * 100, timeout="30s")
    return time.perf_counter() - begin


def at_once(address: str, calls: int, callers: int) -> Figures:
    """So many tasks, each of which calls again as soon as it has its answer."""
    took: list[float] = []

    async def caller(client: fasti.aio.Client, count: int) -> None:
        for _ in range(count):
            begin = time.perf_counter()
            await client.call("calls", b"x" * 100, timeout="60s")
            took.append(time.perf_counter() - begin)

    async def all_of_them() -> float:
        async with fasti.aio.connect(address) as client:
            await client.call("calls", b"warm", timeout="30s")
            begin = time.perf_counter()
            await asyncio.gather(*(caller(client, calls // callers) for _ in range(callers)))
            return time.perf_counter() - begin

    seconds = asyncio.run(all_of_them())
    return {"callers": callers, "calls_per_s": round(len(took) / seconds), **_figures(took)}


def _figures(took: list[float]) -> Figures:
    middle, late = np.percentile(np.array(took) * 1000, [50, 99])
    return {"calls": len(took), "p50_ms": round(float(middle), 2), "p99_ms": round(float(late), 2)}
