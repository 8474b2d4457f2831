"""A lake that is a few seconds old, made without Spark: bronze, silver and gold of the same story.

Silver is made by the pipeline's own code from the transitions; gold is counted here, message by message.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from fasti.pipeline import silver
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState
from tests.unit.pipeline.gold_rig import fill

BEGIN = datetime(2026, 3, 4, 15, 42, 10, 250_000, tzinfo=UTC)
SHARD = "aa"
_KINDS = {**silver.TRANSITIONS, "day": pa.date32(), "part": pa.string()}
_BRONZE = pa.schema([(n, k) for n, k in _KINDS.items() if n not in ("topic_no", "topic_since")])
_SILVER = silver.PARTS.append(pa.field("level", pa.int32())).append(pa.field("day", pa.date32()))
_COUNTS = ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled")


def micros(at: datetime) -> int:
    return int((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def rank(values: list[int], thousandths: int) -> int:
    """The smallest value that at least so many of them don't exceed."""
    ordered = sorted(values)
    return next(v for n, v in enumerate(ordered, 1) if 1000 * n >= thousandths * len(ordered))


@dataclass
class Story:
    """What happened, and what a report should say of it."""

    topics: tuple[str, ...] = ("mail", "bills")
    rows: list[dict[str, Any]] = field(default_factory=list)
    # Moments, by what happened then.
    told: dict[str, list[tuple[datetime, str]]] = field(default_factory=lambda: defaultdict(list))
    # Of messages that are done: when user code got them, and how late.
    late: list[tuple[datetime, str, int]] = field(default_factory=list)
    pending: list[tuple[datetime, str]] = field(default_factory=list)

    def happens(self, seconds: float, op: str, number: int, **columns: Any) -> datetime:
        at = BEGIN + timedelta(seconds=seconds)
        topic = self.topics[number % len(self.topics)]
        self.rows.append(
            {"shard": SHARD, "at": at, "op": op, "topic": topic, "partition": 0, "id": number, **columns}
        )  # fmt: skip
        return at

    def message(self, number: int, seconds: float, ahead: float, late_s: float, end: str) -> None:
        """A life: produced, and then `done`, `retried`, `dead`, `cancelled` or `pending`."""
        topic = self.topics[number % len(self.topics)]
        due = BEGIN + timedelta(seconds=seconds + ahead)
        born = self.happens(seconds, "produced", number, due=due, version=1)
        self.told["messages_in"].append((born, topic))
        if end == "cancelled":
            at = self.happens(seconds + ahead / 2, "cancelled", number)
            self.told["cancelled"].append((at, topic))
            return
        self.told["due"].append((due, topic))
        if end == "pending":
            self.pending.append((due, topic))
            return
        start = seconds + ahead + late_s
        self.happens(start, "leased", number, consumer="anna")
        if end in ("retried", "dead"):
            got = BEGIN + timedelta(seconds=start)
            op = "nacked" if end == "retried" else "rejected"
            again = {"due": got + timedelta(seconds=1)} if end == "retried" else {}
            at = self.happens(
                start + 0.01, op, number, started=got, reason="no", consumer="anna", **again
            )
            self.told["failed"].append((at, topic))
            if end == "dead":
                self.told["dead"].append((at, topic))
                return
            self.told["due"].remove((due, topic))
            due, start = again["due"], start + 1.003
            self.told["due"].append((due, topic))
            self.happens(start, "leased", number, consumer="anna")
            self.told["redelivered"].append((BEGIN + timedelta(seconds=start), topic))
        got = BEGIN + timedelta(seconds=start)
        at = self.happens(start + 0.004, "acked", number, started=got, consumer="anna")
        self.told["messages_out"].append((at, topic))
        self.late.append((got, topic, micros(got) - micros(max(due, born))))

    def write(self, root: Path, logs: bool = False) -> Lake:
        """The lake. Logs have no messages."""
        self.rows.sort(key=lambda row: row["at"])
        for place, row in enumerate(self.rows, 1):
            row |= {"position": place, "row": 0}
            row |= {"day": row["at"].date(), "part": row["topic"]}
        lake = Lake(root)
        lake.bronze.append(pa.Table.from_pylist(self.rows, _BRONZE))
        last = len(self.rows)
        place = ("bronze:" + SHARD, last)
        if logs:
            lake.messages.replace([], [], place, _SILVER)
        else:
            lake.messages.append(self._silver(), place)
        fill(lake, self._gold(), self.as_of)
        state = LakeState.of(lake)
        state.gold = {SHARD: last}
        state.save(lake)
        return lake

    @property
    def as_of(self) -> datetime:
        return (max(row["at"] for row in self.rows) + timedelta(seconds=3)).replace(microsecond=0)

    def _silver(self) -> pa.Table:
        kinds = pa.schema(list(silver.TRANSITIONS.items()))
        rows = [
            {**row, "topic_no": self.topics.index(row["topic"]), "topic_since": 1}
            for row in self.rows
        ]
        parts = silver.parts_of(pa.Table.from_pylist(rows, kinds).combine_chunks())
        messages = [{**row, **self._place(row)} for row in silver.merged(parts).to_pylist()]
        return pa.Table.from_pylist(messages, _SILVER)

    def _place(self, row: dict[str, Any]) -> dict[str, Any]:
        over = row["state"] in silver.FINAL and row["seen_from_start"]
        return {"level": 0, "day": row["finished_at"].date()} if over else {"level": 1}

    def _gold(self) -> dict[str, list[dict[str, Any]]]:
        tables: dict[str, list[dict[str, Any]]] = {"throughput": [], "lateness": [], "backlog": []}
        for grain in ("minute", "hour", "day"):
            counts: dict[Any, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
            for name in _COUNTS:
                for at, topic in self.told[name]:
                    counts[topic, period(at, grain)][name] += 1
            tables["throughput"] += [
                {"topic": topic, "grain": grain, "start": start, **row}
                for (topic, start), row in counts.items()
            ]
            late: dict[Any, list[int]] = defaultdict(list)
            for at, topic, us in self.late:
                late[topic, period(at, grain)].append(us)
                late["*", period(at, grain)].append(us)
            tables["lateness"] += [
                {"topic": topic, "grain": grain, "start": start, **percentiles(values)}
                for (topic, start), values in late.items()
            ]
            waiting: dict[Any, int] = defaultdict(int)
            for due, topic in self.pending:
                waiting[topic, period(due, grain)] += 1
            tables["backlog"] += [
                {"topic": topic, "grain": grain, "start": start, "as_of": self.as_of, "pending": n,
                 "overdue": 0, "capacity": None, "over": False, "queued": 0}
                for (topic, start), n in waiting.items()
            ]  # fmt: skip
        return tables


def period(at: datetime, grain: str) -> datetime:
    start = at.replace(second=0, microsecond=0)
    start = start if grain == "minute" else start.replace(minute=0)
    return start if grain != "day" else start.replace(hour=0)


def percentiles(values: list[int]) -> dict[str, int]:
    shares = {"p50_us": 500, "p95_us": 950, "p99_us": 990, "p999_us": 999}
    found = {name: rank(values, share) for name, share in shares.items()}
    return {"count": len(values), **found, "max_us": max(values), "early": 0}


def half_a_minute(topics: tuple[str, ...] = ("mail", "bills"), count: int = 300) -> Story:
    """As after a demo: two bursts of traffic, with nothing between them though messages fall due."""
    draw, story = random.Random(11), Story(topics)
    ends = ["done"] * 6 + ["retried", "dead", "cancelled", "pending"]
    for number in range(1, count + 1):
        end = ends[number % len(ends)]
        seconds = draw.uniform(0, 8) if number % 2 else draw.uniform(18, 26)
        ahead = draw.uniform(3_600, 90_000) if end == "pending" else draw.uniform(0, 1.5)
        story.message(number, seconds, ahead, draw.lognormvariate(-7, 1.5), end)
    # Those fall due while nothing happens: their delivery is late.
    for number in range(count + 1, count + 21):
        due = draw.uniform(12, 16)
        story.message(number, 1.0, due - 1.0, 18.0 - due + draw.uniform(0, 0.2), "done")
    return story
