"""Silver: one row per message, its life from the first transition to the last.

Everything here is a *part* of a life: what is known of a message between two places in the feed. One
transition is the smallest part, a whole life the largest; `merged` puts the parts of each message
together, and it doesn't matter which ones were put together before. So new transitions need not be
joined with all messages that are still open: what is new becomes parts of its own, see
`silver_stage`.

A part knows what it can't know: the state before its first transition, and since when; whether a
start, which is judged by the due time of then, is still to be judged. `merged` fills that in.

Arrow tables in, Arrow tables out, no loop over rows; Spark's tasks run this (`silver_stage.Fold`).
Moments are timestamps, lengths of time are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fasti.pipeline.groups import Ints, Mask, Numbers, RowGroups

# What a message is after each op; ops that are not here leave it as it was.
STATE_AFTER = {
    "produced": "pending",
    "published": "pending",
    "staged": "staged",
    "replaced": "pending",
    "moved": "pending",
    "leased": "leased",
    "resumed": "leased",
    "released": "pending",
    "nacked": "pending",
    "expired": "pending",
    "redriven": "pending",
    "acked": "done",
    "cancelled": "cancelled",
    "rejected": "dead",
    "exhausted": "dead",
    "lapsed": "dead",
    "purged": "purged",
    # Of a staged message that never was: it was not published, or its key was taken (`reason`).
    "stage_dropped": "purged",
    # Of whatever was still open.
    "topic_deleted": "purged",
}
OPS = [*STATE_AFTER, "updated", "reprioritised", "extended"]
STATES = ["staged", "pending", "leased", "dead", "done", "cancelled", "purged"]
FINAL = ("done", "cancelled", "purged")

_REASONS = {"topic_deleted": "topic deleted"}
_STARTED = ("acked", "nacked", "released", "rejected", "exhausted")
_BORN = ("produced", "published")
_FIRST = ("produced", "staged")
_RESETS = ("produced", "published", "replaced", "redriven")
_COUNTS = {
    "moves": ("moved",),
    "updates": ("updated", "replaced", "reprioritised"),
    "leases": ("leased",),
    "nacks": ("nacked",),
    "expiries": ("expired",),
    "releases": ("released",),
    "redrives": ("redriven",),
    "completions": ("acked",),
}
_TIMES = ("scheduled_us", "ready_us", "leased_us", "dead_us")
_MOMENT, _TEXT, _NUMBER = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64()

# A message's name: its topic, by a number that is never used again, and its id in there.
NAME = ["id", "topic_no"]
# The columns of `messages`, for readers.
COLUMNS: dict[str, pa.DataType] = {
    "shard": _TEXT,
    "topic": _TEXT,
    "topic_since": _NUMBER,
    "partition": pa.int32(),
    "id": _NUMBER,
    "key": _TEXT,
    "owner": _TEXT,
    "state": _TEXT,
    "reason": _TEXT,
    "produced_at": _MOMENT,
    "due_first": _MOMENT,
    "due_last": _MOMENT,
    "version": _NUMBER,
    "priority": pa.int32(),
    "stage": _TEXT,
    **dict.fromkeys(_COUNTS, _NUMBER),
    "attempts": _NUMBER,
    "consumers": pa.list_(_TEXT),
    "first_leased_at": _MOMENT,
    "last_leased_at": _MOMENT,
    "started_at": _MOMENT,
    "started_due": _MOMENT,
    "finished_at": _MOMENT,
    "lateness_us": _NUMBER,
    "early": _NUMBER,
    **dict.fromkeys(_TIMES, _NUMBER),
    "seen_from_start": pa.bool_(),
    "first_position": _NUMBER,
    "last_position": _NUMBER,
    "last_at": _MOMENT,
}
# What parts have besides, for `merged`.
_INNER: dict[str, pa.DataType] = {
    "topic_no": _NUMBER,
    "first_place": _NUMBER,
    "known_at": _MOMENT,
    "state_at": _MOMENT,
    "unjudged": _MOMENT,
    # A time in which it was pending and the part doesn't know until when: it counts as ready.
    "vague_from": _MOMENT,
    "vague_until": _MOMENT,
    "resets": pa.bool_(),
    # Of a transition alone: the end of a topic is nothing to messages that were finished before.
    "yields": pa.bool_(),
}
PARTS = pa.schema([pa.field(name, kind) for name, kind in {**COLUMNS, **_INNER}.items()])
# The columns of transitions that count here.
TRANSITIONS: dict[str, pa.DataType] = {
    **{name: COLUMNS[name] for name in ("shard", "topic", "topic_since", "partition", "id")},
    "topic_no": _NUMBER,
    "position": _NUMBER,
    "row": pa.int32(),
    "at": _MOMENT,
    "op": _TEXT,
    "version": _NUMBER,
    "due": _MOMENT,
    "started": _MOMENT,
    "priority": pa.int32(),
    **dict.fromkeys(("owner", "consumer", "reason", "stage", "key"), _TEXT),
}


def parts_of(transitions: pa.Table) -> pa.Table:
    """Each transition as a part."""
    code = pc.index_in(transitions.column("op"), pa.array(OPS)).to_numpy()

    def flag(ops: Iterable[str]) -> Mask:
        return np.array([op in ops for op in OPS], dtype=np.bool_)[code]

    def count(ops: Iterable[str]) -> pa.Array:
        return pa.array(flag(ops).astype(np.int64))

    def words_of(words: dict[str, str]) -> pa.Array:
        known = pa.array([words.get(op) for op in OPS], _TEXT)
        return known.take(pa.array(code))

    def when(mask: Mask, column: Any) -> Any:
        return pc.if_else(pa.array(mask), column, pa.scalar(None, column.type))

    get, size = transitions.column, transitions.num_rows
    # 0: it is not known when user code got it.
    known = pc.fill_null(pc.greater(get("started").cast(_NUMBER), 0), False)
    started = when(flag(_STARTED) & known.to_numpy(), get("started"))
    at = get("at")
    stated = flag(STATE_AFTER)
    place = (get("position").to_numpy() << 24) + get("row").to_numpy()
    consumer = get("consumer").combine_chunks()
    offsets = np.concatenate([[0], np.cumsum(consumer.is_valid().to_numpy(zero_copy_only=False))])
    columns: dict[str, Any] = {
        "state": words_of(STATE_AFTER),
        "reason": pc.coalesce(words_of(_REASONS), get("reason")),
        "produced_at": when(flag(_BORN), at),
        "due_first": get("due"),
        "due_last": get("due"),
        **{name: count(ops) for name, ops in _COUNTS.items()},
        "attempts": pc.subtract(count(("leased",)), count(("released",))),
        "consumers": pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), consumer.drop_null()
        ),
        "first_leased_at": when(flag(("leased",)), at),
        "last_leased_at": when(flag(("leased",)), at),
        "started_at": started,
        "early": pa.repeat(pa.scalar(0, _NUMBER), size),
        **{name: pa.repeat(pa.scalar(0, _NUMBER), size) for name in _TIMES},
        "seen_from_start": pa.array(flag(_FIRST)),
        "first_position": get("position"),
        "last_position": get("position"),
        "last_at": at,
        "first_place": pa.array(place),
        "known_at": when(stated, at),
        "state_at": when(stated, at),
        "unjudged": started,
        "resets": pa.array(flag(_RESETS)),
        "yields": pa.array(flag(("topic_deleted",))),
    }
    for name in ("started_due", "finished_at", "lateness_us", "vague_from", "vague_until"):
        columns[name] = pa.nulls(size, PARTS.field(name).type)
    own = [columns[name] if name in columns else get(name) for name in PARTS.names]
    return pa.table(own, schema=PARTS)


def merged(parts: pa.Table) -> pa.Table:
    """The parts of each message as one. They follow each other in the feed, whatever lies between."""
    if not parts.num_rows:
        return parts
    groups = RowGroups.of(
        parts.column("topic_no").to_numpy(),
        parts.column("id").to_numpy(),
        parts.column("first_place").to_numpy(),
    )
    return _Merge(parts, groups).table()


class _Merge:
    """One `merged`: columns are looked at in the groups' order."""

    def __init__(self, parts: pa.Table, groups: RowGroups) -> None:
        self._parts, self._groups = parts, groups
        code = pc.index_in(parts.column("state"), pa.array(STATES))
        self._state = groups.numbers(code)
        self._counts = self._that_count()

    def _that_count(self) -> Mask:
        """All but the ends of topics for messages that were over."""
        yields = self._groups.mask(self._parts.column("yields"))
        if not yields.any():
            return ~yields
        before = self._groups.before(self._state)
        return ~(yields & before.known & (before.values >= STATES.index("done")))

    def table(self) -> pa.Table:
        columns: dict[str, Any] = {
            **self._firsts(),
            **self._lasts(),
            **self._sums(),
            **self._starts(),
            "attempts": self._attempts(),
            "consumers": self._consumers(),
            "resets": pa.array(self._groups.any(self._groups.mask(self._parts.column("resets")))),
            "yields": pa.repeat(pa.scalar(False), self._groups.count),
        }
        columns |= _ends(columns)
        return pa.table([columns[name] for name in PARTS.names], schema=PARTS)

    def _numbers(self, name: str) -> Numbers:
        return self._groups.numbers(self._parts.column(name))

    def _taken(self, name: str, rows: Ints) -> Any:
        return self._groups.take(self._parts.column(name), rows)

    def _firsts(self) -> dict[str, Any]:
        begin, of = self._groups.starts, self._groups
        firsts = {name: self._taken(name, begin) for name in _BEGINNINGS}
        for name in _FIRST_KNOWN:
            known = of.known(self._parts.column(name))
            if name == "known_at":
                known &= self._counts
            firsts[name] = self._taken(name, of.first(known))
        return firsts

    def _lasts(self) -> dict[str, Any]:
        of = self._groups
        lasts = {
            name: self._taken(name, of.last(of.known(self._parts.column(name))))
            for name in _LAST_KNOWN
        }
        for name in _LAST_THAT_COUNT:
            known = of.known(self._parts.column(name)) & self._counts
            lasts[name] = self._taken(name, of.last(known))
        return lasts

    def _sums(self) -> dict[str, Any]:
        """Counts, and how long it was in which state, with the time between parts."""
        of = self._groups
        sums = {name: pa.array(of.sum(self._numbers(name).values)) for name in _COUNTS}
        was, due = of.before(self._state), of.before(self._numbers("due_last"))
        since = of.before(self._numbers("state_at"))
        until = self._numbers("known_at")
        passed = was.known & until.known & self._counts
        length = np.where(passed, until.values - since.values, 0)
        # Without a due time it counts as ready, until an earlier part tells one.
        pending = was.values == STATES.index("pending")
        ahead = np.where(due.known, due.values - since.values, 0).clip(0)
        ahead = np.minimum(ahead, length)
        gaps = {
            "scheduled_us": np.where(pending, ahead, 0),
            "ready_us": np.where(pending, length - ahead, 0),
            "leased_us": np.where(was.values == STATES.index("leased"), length, 0),
            "dead_us": np.where(was.values == STATES.index("dead"), length, 0),
        }
        begin, end = self._numbers("vague_from"), self._numbers("vague_until")
        late = np.where(due.known & begin.known, due.values - begin.values, 0).clip(0)
        late = np.minimum(late, end.values - begin.values)
        gaps["scheduled_us"] += late
        gaps["ready_us"] -= late
        for name, gap in gaps.items():
            sums[name] = pa.array(of.sum(self._numbers(name).values + gap))
        # At most one is left: only what was published can be pending without a due time of its own.
        own = passed & pending & ~due.known
        first = of.first(own | (begin.known & ~due.known))
        sums["vague_from"] = of.gathered(
            Numbers(np.where(own, since.values, begin.values), own | begin.known), first
        ).cast(_MOMENT)
        sums["vague_until"] = of.gathered(
            Numbers(np.where(own, until.values, end.values), own | begin.known), first
        ).cast(_MOMENT)
        return sums

    def _starts(self) -> dict[str, Any]:
        """When user code got it, and when it was due then: as this or an earlier part knows."""
        of = self._groups
        due = of.before(self._numbers("due_last"))
        begun, own = self._numbers("started_at"), self._numbers("started_due")
        at = of.last(begun.known)
        judged = Numbers(np.where(own.known, own.values, due.values), own.known | due.known)
        waiting = self._numbers("unjudged")
        early = waiting.known & due.known & (waiting.values < due.values)
        return {
            "started_at": self._taken("started_at", at),
            "started_due": of.gathered(judged, at).cast(_MOMENT),
            "early": pa.array(of.sum(self._numbers("early").values + early)),
            "unjudged": self._taken("unjudged", of.first(waiting.known & ~due.known)),
        }

    def _attempts(self) -> pa.Array:
        """Those since it was last produced anew."""
        of = self._groups
        reset = of.last(of.mask(self._parts.column("resets")))
        since = np.where(reset >= 0, reset, of.starts)
        total = np.concatenate([[0], np.cumsum(self._numbers("attempts").values)])
        return pa.array(total[of.ends] - total[since])

    def _consumers(self) -> pa.Array:
        """All of them, each once, by name."""
        lists = self._parts.column("consumers").combine_chunks()
        names = lists.flatten().dictionary_encode()
        known = names.dictionary.to_numpy(zero_copy_only=False)
        rank = np.argsort(known.astype(str), kind="stable")
        place = np.empty(len(rank), dtype=np.int64)
        place[rank] = np.arange(len(rank))
        group = self._groups.group_of_rows()[pc.list_parent_indices(lists).to_numpy()]
        most = max(1, len(known))
        pairs = np.unique(group * most + place[names.indices.to_numpy()])
        sizes = np.bincount(pairs // most, minlength=self._groups.count)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        values = names.dictionary.take(pa.array(rank[pairs % most]))
        return pa.ListArray.from_arrays(pa.array(offsets), values)


_BEGINNINGS = ("shard", "topic", "topic_since", "partition", *NAME)
_BEGINNINGS = (*_BEGINNINGS, "first_position", "first_place", "seen_from_start")
_FIRST_KNOWN = ("key", "owner", "stage", "produced_at", "due_first", "first_leased_at", "known_at")
_LAST_KNOWN = ("version", "priority", "due_last", "last_leased_at")
_LAST_THAT_COUNT = ("state", "reason", "state_at", "last_position", "last_at")


def _ends(columns: dict[str, Any]) -> dict[str, Any]:
    """What follows from the rest."""
    final = pc.is_in(columns["state"], pa.array(FINAL))
    due, produced = (columns[name].cast(_NUMBER) for name in ("started_due", "produced_at"))
    began = pc.max_element_wise(due, produced)
    lateness = pc.subtract(columns["started_at"].cast(_NUMBER), began)
    ended = pc.if_else(final, columns["state_at"], pa.scalar(None, _MOMENT))
    return {"finished_at": ended, "lateness_us": lateness}


def folded(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Transitions and parts of a task → parts, one of each message."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return PARTS.empty_table()
    rows = pa.Table.from_batches(filled)
    pieces = []
    if "op" in rows.column_names:
        new = rows.filter(pc.is_valid(rows.column("op")))
        pieces.append(parts_of(_shaped(new, TRANSITIONS)))
        rows = rows.filter(pc.is_null(rows.column("op")))
    if "first_place" in rows.column_names:
        pieces.append(_shaped(rows, dict(zip(PARTS.names, PARTS.types, strict=True))))
    return merged(pa.concat_tables(pieces).combine_chunks())


def _shaped(rows: pa.Table, kinds: dict[str, pa.DataType]) -> pa.Table:
    """With these columns; one that isn't there is null."""
    names = rows.column_names
    return pa.table(
        {
            name: rows.column(name).cast(kind).combine_chunks()
            if name in names
            else pa.nulls(rows.num_rows, kind)
            for name, kind in kinds.items()
        }
    )
