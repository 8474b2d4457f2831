"""Gold tables made by hand, so that reports can be looked at without Spark."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState

MOMENT = pa.timestamp("us", tz="UTC")
AS_OF = datetime(2026, 3, 4, 15, 42, 10, tzinfo=UTC)
_COUNTS = ["messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled"]
_LATE = ["count", "p50_us", "p95_us", "p99_us", "p999_us", "max_us", "early"]
_WORK = ["leased", "acked", "nacked", "expired", "rejected", "released", "errors", "busy_us"]
_PERIOD: dict[str, pa.DataType] = {"grain": pa.string(), "start": MOMENT}


def _numbers(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, pa.int64())


def _words(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, pa.string())


SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "throughput": {**_words("topic"), **_PERIOD, **_numbers(*_COUNTS)},
    "lateness": {**_words("topic"), **_PERIOD, **_numbers(*_LATE)},
    "consumers": {**_words("topic", "consumer"), **_PERIOD, **_numbers(*_WORK)},
    "retries": {**_words("topic", "op", "reason"), **_PERIOD, **_numbers("count")},
    "attempts": {**_words("topic"), **_numbers("attempts"), **_PERIOD, **_numbers("count")},
    "backlog": {
        **_words("topic"), **_PERIOD, "as_of": MOMENT, **_numbers("pending", "overdue", "capacity"),
        "over": pa.bool_(), **_numbers("queued"),
    },
    "audit": {
        **_words("topic"), "partition": pa.int32(), **_numbers("id"), **_words("kind", "what"),
        **_numbers("position"), **_words("shard"),
    },
}  # fmt: skip


def fill(lake: Lake, tables: dict[str, list[dict[str, Any]]], as_of: datetime = AS_OF) -> None:
    """Writes the tables, those that aren't given as empty ones, and the state beside them."""
    for name, columns in SCHEMAS.items():
        rows = tables.get(name, [])
        schema = pa.schema(list(columns.items()))
        table = lake.gold(name)
        if table.partition_by:
            schema = schema.append(pa.field("day", pa.date32()))
            rows = [{**row, "day": row["start"].date()} for row in rows]
        table.overwrite(pa.Table.from_pylist(rows, schema))
    micros = int(as_of.timestamp()) * 1_000_000
    LakeState(
        gold={"aa": 7}, audit={"aa": 7}, as_of_us=micros, audited_us=micros, transitions=1_234_567,
        messages=400_000, compared={"mail": 7},
    ).save(lake)  # fmt: skip


def busy(root: Path, topics: tuple[str, ...] = ("mail", "bills", "reminders")) -> Lake:
    """A lake as an operator would have it after three days."""
    lake, draw = Lake(root), random.Random(5)
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    begin = AS_OF.replace(minute=0, second=0) - timedelta(hours=64)
    hours = [begin + timedelta(hours=n) for n in range(65)]
    for place, topic in enumerate(topics):
        days: dict[datetime, dict[str, int]] = {}
        for hour in hours:
            wave = 1.2 + math.sin((hour.hour - 8) / 24 * 2 * math.pi)
            out = int(12_000 / (place + 1) * wave * draw.uniform(0.8, 1.1))
            failed = int(out * draw.choice([0.002, 0.002, 0.01, 0.04]))
            row = {
                "messages_in": int(out * draw.uniform(0.9, 1.15)), "messages_out": out,
                "failed": failed, "redelivered": failed, "dead": failed // 20, "cancelled": out // 50,
            }  # fmt: skip
            tables["throughput"].append({"topic": topic, "grain": "hour", "start": hour, **row})
            tables["lateness"].append(_late(draw, topic, "hour", hour, out))
            tables["lateness"].append(
                _late(draw, "*", "hour", hour, 2 * out)
            ) if not place else None
            day = days.setdefault(hour.replace(hour=0), dict.fromkeys(row, 0))
            for name, value in row.items():
                day[name] += value
        for day_start, counts in days.items():
            period = {"grain": "day", "start": day_start}
            tables["throughput"].append({"topic": topic, **period, **counts})
            tables["lateness"].append(_late(draw, topic, "day", day_start, counts["messages_out"]))
            if not place:
                tables["lateness"].append(_late(draw, "*", "day", day_start, 600_000))
            _work(draw, tables, topic, period, counts)
        _ahead(tables, topic, place)
    fill(lake, tables)
    return lake


def _late(
    draw: random.Random, topic: str, grain: str, start: datetime, count: int
) -> dict[str, Any]:
    p50 = int(draw.uniform(180, 320))
    p99 = int(p50 * draw.choice([5, 6, 7, 7, 30]))
    late = {"p50_us": p50, "p95_us": p50 * 3, "p99_us": p99, "p999_us": p99 * 4}
    max_us = p99 * draw.choice([8, 15, 80])
    late |= {"max_us": max_us, "count": count, "early": 0}
    return {"topic": topic, "grain": grain, "start": start, **late}


def _work(
    draw: random.Random,
    tables: dict[str, list[dict[str, Any]]],
    topic: str,
    period: dict[str, Any],
    counts: dict[str, int],
) -> None:
    for who in ("worker-1", "worker-2"):
        errors = int(counts["failed"] * (0.3 if who == "worker-1" else 0.7))
        work = dict.fromkeys(_WORK, 0) | {"acked": counts["messages_out"] // 2, "errors": errors}
        work |= {"busy_us": counts["messages_out"] * 1_800}
        tables["consumers"].append({"topic": topic, "consumer": who, **period, **work})
    for op, reason, share in (
        ("nacked", "smtp: connection refused", 0.6),
        ("nacked", "timeout after 30 s", 0.3),
        ("expired", "", 0.1),
        ("rejected", "no such mailbox", 0.05),
    ):
        count = max(1, int(counts["failed"] * share))
        tables["retries"].append(
            {"topic": topic, "op": op, "reason": reason, **period, "count": count}
        )
    for attempts, share in ((1, 0.985), (2, 0.013), (3, 0.002)):
        count = int(counts["messages_out"] * share)
        tables["attempts"].append({"topic": topic, "attempts": attempts, **period, "count": count})


def _ahead(tables: dict[str, list[dict[str, Any]]], topic: str, place: int) -> None:
    """Three days of hours, as days too, and the first hour as minutes; a little is overdue."""
    capacity = (30_000, 9_000, None)[place % 3]
    hour = AS_OF.replace(minute=0, second=0)
    overdue = 40 if not place else 0
    queued, days = 0, dict[datetime, int]()

    def told(grain: str, start: datetime, pending: int, late: int, hours: float) -> None:
        shown = None if capacity is None else int(capacity * hours)
        tables["backlog"].append(
            {
                "topic": topic, "grain": grain, "start": start, "as_of": AS_OF, "pending": pending,
                "overdue": late, "capacity": shown, "over": shown is not None and pending > shown,
                "queued": queued,
            }
        )  # fmt: skip

    for n in range(72):
        start = hour + timedelta(hours=n)
        wave = 1.15 + math.sin((start.hour - 8) / 24 * 2 * math.pi)
        pending = int(11_000 / (place + 1) * wave) * (3 if n == 18 else 1)
        queued = max(0, queued + pending - (capacity or pending))
        told("hour", start, pending, 0 if n else overdue, 1)
        day = start.replace(hour=0)
        days[day] = days.get(day, 0) + pending
    for day, pending in days.items():
        told("day", day, pending, overdue if day < AS_OF else 0, 24)
    if overdue:
        told("minute", hour + timedelta(minutes=37), overdue, overdue, 1 / 60)
    for n in range(42, 60):
        told("minute", hour + timedelta(minutes=n), 100 + n, 0, 1 / 60)
