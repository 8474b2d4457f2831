"""What one client process does: a job gets a client, does one thing and returns figures.

Only the standard library is used here: client processes of peers run in an environment without ours.
A job is bounded in time: a slow peer gets through fewer messages, and the rate is what counts.
"""

from __future__ import annotations

import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers.client import (
    Cannot,
    Client,
    end_payload,
    is_end,
    is_warm,
    now_us,
    payload,
    read,
    warm_payload,
)
from benchmarks.peers.percentiles import latencies_ms

Figures = dict[str, Any]
Connect = Callable[[], Client]

SECOND_US = 1_000_000
_FAR_US = 3_600 * SECOND_US
_WARM = 20
# A consumer that was started before has subscribed, and has taken what was sent to warm it, by then.
_WARM_S = 0.6
# A pace is kept by sleeping; what is this near is not slept for.
_NEAR_S = 0.0002


# Producers


def send_each(connect: Connect, rows: int, seconds: float) -> Figures:
    """One after another, each acknowledged before the next; due in an hour."""
    client = connect()
    due_us = now_us() + _FAR_US
    body = payload(due_us)
    for _ in range(_WARM):
        client.schedule(body, due_us)
    took: list[int] = []
    begin = time.perf_counter()
    while len(took) < rows and time.perf_counter() - begin < seconds:
        start = time.perf_counter_ns()
        client.schedule(body, due_us)
        took.append((time.perf_counter_ns() - start) // 1000)
    elapsed = time.perf_counter() - begin
    client.close()
    return {**latencies_ms(took), "per_s": round(len(took) / elapsed)}


def pace(connect: Connect, rate: int, seconds: float) -> Figures:
    """So many a second, due now; each payload has the moment of its call."""
    first = connect()
    lanes = first.lanes if rate > 1_000 else 1
    clients = [first, *(connect() for _ in range(lanes - 1))]
    counts = [0] * lanes
    _warm(first)
    begin = time.monotonic() + 0.05

    def send(lane: int) -> None:
        client, sent = clients[lane], 0
        for number in range(lane, round(rate * seconds), lanes):
            wait_s = begin + number / rate - time.monotonic()
            if wait_s > _NEAR_S:
                time.sleep(wait_s)
            elif sent and time.monotonic() - begin > seconds:
                break
            client.post(payload(now_us(), number))
            sent += 1
        client.flush()
        counts[lane] = sent

    _in_threads(send, lanes)
    elapsed = time.monotonic() - begin
    first.schedule(end_payload(sum(counts)), 0)
    for client in clients:
        client.close()
    return {"sent": sum(counts), "reached_per_s": round(sum(counts) / elapsed)}


def pace_batches(connect: Connect, rate: int, seconds: float, ahead_s: float) -> Figures:
    """So many a second in ticks of 20 ms, each message due `ahead_s` after its turn."""
    client = connect()
    tick_s = 0.02
    count = round(rate * tick_s)
    _warm(client)
    sent, begin_us = 0, now_us() + 50_000
    late_ticks = 0
    for tick in range(round(seconds / tick_s)):
        at_us = begin_us + round(tick * tick_s * SECOND_US)
        behind_us = now_us() - at_us
        if behind_us < 0:
            time.sleep(-behind_us / SECOND_US)
        elif sent and behind_us > ahead_s * SECOND_US:
            late_ticks += 1
            continue
        first_us = at_us + round(ahead_s * SECOND_US)
        dues = array("q", [first_us + row * SECOND_US // rate for row in range(count)])
        client.schedule_batch(client.column([payload(due_us) for due_us in dues]), dues)
        sent += count
    elapsed = (now_us() - begin_us) / SECOND_US
    client.schedule(end_payload(sent), now_us() + round((ahead_s + 0.3) * SECOND_US))
    client.close()
    return {"sent": sent, "left_out": late_ticks * count, "reached_per_s": round(sent / elapsed)}


def stream(connect: Connect, rows: int, seconds: float, batch: int, order: str) -> Figures:
    """Batches as fast as they are taken. `order` says when they are due:

    `far`: in an hour. `now`: at once. `soon`: within half a second. `arrival`, `random`: within one
    second that begins when the time for sending is over, in the order of sending or in another one.
    """
    client = connect()
    begin_us = now_us()
    dues = _dues(order, batch, rows, begin_us + round((seconds + 1) * SECOND_US))
    column = client.column([payload(begin_us)] * batch)
    sent = 0
    begin = time.perf_counter()

    def batches() -> Iterator[tuple[Any, array[int]]]:
        nonlocal sent
        while sent < rows and time.perf_counter() - begin < seconds:
            yield column, dues(sent)
            sent += batch

    client.schedule_stream(batches())
    elapsed = time.perf_counter() - begin
    client.close()
    due_us = begin_us + round((seconds + 2) * SECOND_US)
    return {"sent": sent, "per_s": round(sent / elapsed), "all_due_us": due_us}


def _dues(order: str, batch: int, rows: int, base_us: int) -> Callable[[int], array[int]]:
    if order == "far":
        far_us = now_us() + _FAR_US
        spread = array("q", [far_us + row for row in range(batch)])
        return lambda _: spread
    if order == "now":
        at_once = array("q", [now_us()] * batch)
        return lambda _: at_once
    if order == "soon":
        return lambda _: array(
            "q", range((now := now_us()), now + 500_000, 500_000 // batch)[:batch]
        )
    if order == "arrival":
        step = max(1, SECOND_US // max(rows, 1))
        return lambda sent: array(
            "q", [base_us + min(SECOND_US, (sent + row) * step) for row in range(batch)]
        )
    drawn = random.Random(7)
    # Some orders are enough, and drawing one costs more than a quick peer takes for a batch.
    orders = [
        array("q", [base_us + drawn.randrange(SECOND_US) for _ in range(batch)]) for _ in range(8)
    ]
    return lambda sent: orders[(sent // batch) % len(orders)]


def at_one_instant(connect: Connect, rows: int, seconds: float, batch: int) -> Figures:
    """Messages that are all due at one instant, after the last of them is acknowledged."""
    client = connect()
    _warm(client)
    due_us = now_us() + round((seconds + 0.5) * SECOND_US)
    column = client.column([payload(due_us)] * batch)
    dues = array("q", [due_us] * batch)
    begin, sent = time.perf_counter(), 0
    while sent < rows and time.perf_counter() - begin < seconds:
        client.schedule_batch(column, dues)
        sent += batch
    in_time = now_us() < due_us
    client.schedule(end_payload(sent), due_us + SECOND_US)
    client.close()
    return {"sent": sent, "in_time": in_time}


def _warm(client: Client) -> None:
    for _ in range(_WARM):
        client.schedule(warm_payload(), 0)
    time.sleep(_WARM_S)


def numbered(connect: Connect, into: str) -> Figures:
    """Numbered messages, due now, until it is killed; a number is written when it is acknowledged."""
    client = connect()
    descriptor = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while True:
        client.schedule(payload(now_us(), number), 0)
        os.write(descriptor, number.to_bytes(8, "little"))
        number += 1


def first_answer(connect: Connect) -> Figures:
    """Returns when a message has been acknowledged; waits for a server that isn't there yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client = connect()
            client.schedule(payload(now_us(), -1), 0)
            client.close()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return {"at_us": now_us()}


# Changes


def change_each(connect: Connect, rows: int, seconds: float) -> Figures:
    """Cancels and moves, one call after another."""
    return _changes(connect, rows, seconds, 1)


def change_batches(connect: Connect, rows: int, seconds: float, batch: int) -> Figures:
    """The same by so many at a time."""
    return _changes(connect, rows, seconds, batch)


def _changes(connect: Connect, rows: int, seconds: float, batch: int) -> Figures:
    client = connect()
    later_us = now_us() + 2 * _FAR_US

    def move(handles: list[Any]) -> None:
        if batch == 1:
            client.move(handles[0], later_us)
        else:
            client.move_many(handles, later_us)

    def cancel(handles: list[Any]) -> None:
        if batch == 1:
            client.cancel(handles[0])
        else:
            client.cancel_many(handles)

    found: Figures = {}
    for name, change in (("move", move), ("cancel", cancel)):
        try:
            handles = _pending(client, rows)
            done, begin = 0, time.perf_counter()
            while done < len(handles) and time.perf_counter() - begin < seconds:
                change(handles[done : done + batch])
                done += batch
            found[f"{name}_per_s"] = round(done / (time.perf_counter() - begin))
        except Cannot as why:
            found[f"{name}_cannot"] = str(why)
    client.close()
    return found


def _pending(client: Client, rows: int) -> list[Any]:
    """Handles of messages due in an hour."""
    due_us = now_us() + _FAR_US
    found: list[Any] = []
    while len(found) < rows:
        count = min(5_000, rows - len(found))
        found += client.schedule_many([payload(due_us)] * count, array("q", [due_us] * count))
    return found


# Consumers


def receive(connect: Connect, seconds: float, batch: int = 1) -> Figures:
    """How long after the moment in its payload each message is in user code, until the end."""
    client = connect()
    late: list[int] = []
    expected = -1
    hard_end = time.monotonic() + seconds

    def handle(body: bytes) -> bool:
        nonlocal expected
        at_us = now_us()
        moment_us, number = read(body)
        if is_end(moment_us):
            expected = number
        elif not is_warm(moment_us):
            late.append(at_us - moment_us)
        return len(late) == expected or time.monotonic() > hard_end

    client.consume(handle, min(seconds, 5.0), batch)
    client.close()
    return {**latencies_ms(late), "expected": expected, "received": len(late)}


def consume_each(connect: Connect, rows: int, seconds: float) -> Figures:
    """The usual loop over messages that are due; from the first until the last is acknowledged."""
    client = connect()
    taken, begin = 0, 0.0

    def handle(_: bytes) -> bool:
        nonlocal taken, begin
        begin = begin or time.perf_counter()
        taken += 1
        return taken >= rows or time.perf_counter() - begin > seconds

    client.consume(handle, 3.0)
    elapsed = time.perf_counter() - begin
    client.close()
    return {"taken": taken, "per_s": round(taken / elapsed)}


def consume_in_batches(
    connect: Connect, rows: int, seconds: float, batch: int, from_us: int = 0
) -> Figures:
    """Lease and ack by batches; from the end of the first batch until the last is acknowledged."""
    client = connect()
    time.sleep(max(0.0, (from_us - now_us()) / SECOND_US))
    first, taken, begin, end = 0, 0, 0.0, 0.0

    def handle(count: int) -> bool:
        nonlocal first, taken, begin, end
        end = time.perf_counter()
        if not begin:
            begin, first = end, count
        else:
            taken += count
        return first + taken >= rows or end - begin > seconds

    client.consume_batches(handle, batch, 2.0)
    # Where acks are gathered, the last are answered only here; an idle wait doesn't count.
    if first + taken >= rows or end - begin > seconds:
        end = time.perf_counter()
    client.close()
    return {"taken": first + taken, "per_s": round(taken / (end - begin)) if taken else None}


def handled(connect: Connect, into: str, idle_s: float) -> Figures:
    """Writes the number of each message that reaches user code, until nothing comes."""
    client = connect()
    descriptor = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(body: bytes) -> bool:
        os.write(descriptor, read(body)[1].to_bytes(8, "little", signed=True))
        return False

    client.consume(handle, idle_s)
    client.close()
    os.close(descriptor)
    return {}


def _in_threads(work: Callable[[int], None], count: int) -> None:
    if count == 1:
        work(0)
        return
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


JOBS: dict[str, Callable[..., Figures]] = {
    job.__name__: job
    for job in (
        send_each,
        pace,
        pace_batches,
        stream,
        at_one_instant,
        numbered,
        first_answer,
        change_each,
        change_batches,
        receive,
        consume_each,
        consume_in_batches,
        handled,
    )
}
