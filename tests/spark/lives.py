"""Lives of messages for tests: random stories as rows of the feed, and a naive fold of them.

The fold is written without a look at `fasti.pipeline.silver`: one message at a time, one transition
after the other, with variables.
"""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from fasti.pipeline.bronze import schema as bronze_schema

SHARD = "00000000000000aa"
EPOCH = datetime(2026, 11, 16, tzinfo=UTC)
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(microseconds=round(seconds * 1_000_000))


class Feed:
    """Writes rows as the feed would: positions that grow, several rows in one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.position, self.row, self.now = 1, -1, 0.0
        self.rows: list[Row] = []

    def tell(self, op: str, **columns: Any) -> Row:
        if self.row >= 0 and self._rng.random() < 0.3:
            self.row += 1
        else:
            self.position, self.row = self.position + self._rng.randint(1, 3), 0
            self.now += self._rng.random() * 40
        row = {
            "shard": SHARD,
            "position": self.position,
            "row": self.row,
            "at": at(self.now),
            "op": op,
            **columns,
        }
        self.rows.append(row)
        return row


def stories(seed: int, messages: int, topics: tuple[str, ...] = ("a", "b")) -> list[Row]:
    """Many messages' lives, woven together."""
    rng = random.Random(seed)
    feed = Feed(rng)
    for topic in topics:
        feed.tell("topic_created", topic=topic, details='{"settings": {"kind": "timeline"}}')
    open_now = [_Life(feed, rng, topics[n % len(topics)], n + 1) for n in range(messages)]
    while open_now:
        life = rng.choice(open_now)
        if not life.go_on():
            open_now.remove(life)
    return feed.rows


class _Life:
    """One message: what can happen to it next, by its state."""

    def __init__(self, feed: Feed, rng: random.Random, topic: str, number: int) -> None:
        self._feed, self._rng = feed, rng
        self._name = {"topic": topic, "partition": 0, "id": number}
        self._state, self._version = "new", 1
        self._left, self._due = rng.randint(1, 14), EPOCH

    def go_on(self) -> bool:
        """One transition more. False if it is over, or nothing more is told of it."""
        self._left -= 1
        choices = _NEXT[self._state]
        op = self._rng.choice(choices)
        if op == "expired" and self._due > at(self._feed.now):
            # A lease runs from when it was due.
            op = "nacked"
        self._state = _AFTER.get(op, self._state)
        self._feed.tell(op, **self._name, **self._columns(op))
        return self._left > 0 and self._state in _NEXT

    def _columns(self, op: str) -> Row:
        now, rng = self._feed.now, self._rng
        told: Row = {}
        if op in ("produced", "staged", "moved", "replaced", "released", "nacked", "redriven"):
            told["due"] = self._due = at(now + rng.choice((-30, 0, 5, 50, 500)))
        if op in ("produced", "staged"):
            told |= {"version": 1, "owner": rng.choice((None, "me")), "key": f"k{self._name['id']}"}
        if op in ("moved", "replaced", "updated", "redriven"):
            self._version += 1
            told["version"] = self._version
        if op == "leased":
            told["consumer"] = rng.choice(("c1", "c2", "c3"))
        if op in ("acked", "nacked", "released", "rejected", "exhausted"):
            # 0: nobody knows.
            told["started"] = rng.choice(
                (at(now - rng.random() * 20), datetime(1970, 1, 1, tzinfo=UTC))
            )
        if op in ("nacked", "rejected", "exhausted", "lapsed", "stage_dropped"):
            told["reason"] = rng.choice(("late", "wrong"))
        return told


_NEXT = {
    "new": ["produced", "produced", "produced", "staged"],
    "staged": ["published", "stage_dropped"],
    "pending": ["leased"] * 4 + ["moved", "replaced", "updated", "cancelled", "lapsed"],
    "leased": [
        "acked",
        "nacked",
        "released",
        "expired",
        "rejected",
        "exhausted",
        "resumed",
        "extended",
    ],
    "dead": ["redriven", "redriven", "purged"],
}
_AFTER = {
    "produced": "pending", "staged": "staged", "published": "pending", "stage_dropped": "gone",
    "moved": "pending", "replaced": "pending", "cancelled": "gone",
    "lapsed": "dead", "leased": "leased", "acked": "gone", "nacked": "pending",
    "released": "pending", "expired": "pending", "rejected": "dead", "exhausted": "dead",
    "redriven": "pending", "purged": "gone",
}  # fmt: skip


def folded(rows: Iterable[Row]) -> dict[tuple[str, int, int], Row]:
    """Silver by hand: (topic, topic_since, id) → its row."""
    since: dict[str, int] = {}
    found: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        topic = row.get("topic")
        if row["op"] == "topic_created":
            since[topic] = row["position"]
        elif row["op"] == "topic_deleted":
            for (name, born, _), message in found.items():
                if (name, born) == (topic, since.get(topic, 0)) and message["state"] not in _OVER:
                    _apply(message, {**row, "op": "topic deleted"})
        elif row.get("id") is not None:
            name = (topic, since.get(topic, 0), row["id"])
            message = found.setdefault(name, _new(row, name))
            _apply(message, row)
    return found


_OVER = ("done", "cancelled", "purged")


def _new(row: Row, name: tuple[str, int, int]) -> Row:
    return {
        "topic": name[0], "topic_since": name[1], "id": name[2], "key": None, "owner": None,
        "stage": None, "state": None, "reason": None, "produced_at": None, "due_first": None,
        "due_last": None, "version": None, "moves": 0, "updates": 0, "leases": 0, "nacks": 0,
        "expiries": 0, "releases": 0, "redrives": 0, "completions": 0, "attempts": 0,
        "consumers": set(), "first_leased_at": None, "last_leased_at": None, "started_at": None,
        "started_due": None, "finished_at": None, "early": 0, "scheduled_us": 0, "ready_us": 0,
        "leased_us": 0, "dead_us": 0, "first_position": row["position"], "last_position": None,
        "last_at": None, "seen_from_start": row["op"] in ("produced", "staged"), "_since": None,
    }  # fmt: skip


def _apply(message: Row, row: Row) -> None:
    op, now = row["op"], row["at"]
    for name in ("key", "owner", "stage"):
        if message[name] is None:
            message[name] = row.get(name)
    if row.get("started") and row["started"].year > 1970:
        message["started_at"], message["started_due"] = row["started"], message["due_last"]
        if message["due_last"] and row["started"] < message["due_last"]:
            message["early"] += 1
    counted = {
        "moved": "moves", "updated": "updates", "replaced": "updates", "leased": "leases",
        "nacked": "nacks", "expired": "expiries", "released": "releases", "redriven": "redrives",
        "acked": "completions",
    }  # fmt: skip
    if op in counted:
        message[counted[op]] += 1
    if op in ("produced", "published", "replaced", "redriven"):
        message["attempts"] = 0
    message["attempts"] += {"leased": 1, "released": -1}.get(op, 0)
    if op in ("produced", "published") and message["produced_at"] is None:
        message["produced_at"] = now
    if op == "leased":
        message["consumers"].add(row["consumer"])
        message["first_leased_at"] = message["first_leased_at"] or now
        message["last_leased_at"] = now
    told = op if op == "topic deleted" else row.get("reason")
    message["reason"] = told or message["reason"]
    state = _STATES.get(op)
    if state:
        _pass_time(message, now)
        message["state"], message["_since"] = state, now
        message["finished_at"] = now if state in _OVER else None
    if row.get("due"):
        message["due_first"] = message["due_first"] or row["due"]
        message["due_last"] = row["due"]
    message["version"] = row.get("version") or message["version"]
    message["last_position"], message["last_at"] = row["position"], now


_STATES = {
    "produced": "pending", "staged": "staged", "published": "pending", "moved": "pending",
    "replaced": "pending", "released": "pending", "nacked": "pending", "expired": "pending",
    "redriven": "pending", "leased": "leased", "resumed": "leased", "acked": "done",
    "cancelled": "cancelled", "rejected": "dead", "exhausted": "dead", "lapsed": "dead",
    "purged": "purged", "stage_dropped": "purged", "topic deleted": "purged",
}  # fmt: skip


def _pass_time(message: Row, now: datetime) -> None:
    """Adds what has passed in the state that it was in."""
    state, since, due = message["state"], message["_since"], message["due_last"]
    if since is None:
        return
    passed = round((now - since) / timedelta(microseconds=1))
    if state == "pending":
        ahead = 0 if due is None else round((due - since) / timedelta(microseconds=1))
        ahead = min(max(ahead, 0), passed)
        message["scheduled_us"] += ahead
        message["ready_us"] += passed - ahead
    elif state in ("leased", "dead"):
        message[f"{state}_us"] += passed


def as_expected(message: Row) -> Row:
    """A row of the naive fold as silver shows it."""
    shown = {name: value for name, value in message.items() if not name.startswith("_")}
    shown["consumers"] = sorted(shown["consumers"])
    began = [each for each in (shown["started_due"], shown["produced_at"]) if each]
    late = None
    if shown["started_at"] and began:
        late = round((shown["started_at"] - max(began)) / timedelta(microseconds=1))
    return {**shown, "lateness_us": late}


def as_table(rows: list[Row]) -> pa.Table:
    """Rows as bronze has them."""
    schema = bronze_schema(payload=False)
    filled = [
        {**row, "day": row["at"].date(), "part": row.get("topic") or "~small"} for row in rows
    ]
    return pa.Table.from_pylist(filled, schema)
