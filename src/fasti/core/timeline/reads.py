"""Answering reads: get, list, count and forecast. Nothing here changes a message."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.calendar.histogram import BUCKET_US
from fasti.core.commands import Count, Forecast, Get, List, Target
from fasti.core.replies import Buckets, Counts, Messages, Reply, blank
from fasti.core.rows.arena import EXPIRES, FRAME_ROWS, MOMENT, PRIORITY, STATE_MASK
from fasti.core.rows.snapshot import Columns, read_range
from fasti.core.state import Topic
from fasti.core.timeline.judging import locate, unname_strangers, why_not
from fasti.core.work import Work
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, SEQUENCE_BITS, Outcome, State, partition_of, sequence_of

Int64s = NDArray[np.int64]

# The state that a reader sees, besides those of the model: scheduled, and due.
READY = 7
STATE_WORDS = {State.SCHEDULED: "scheduled", READY: "ready", State.LEASED: "leased"} | {
    State.DEAD: "dead"
}
_STATE_CODES = {word: int(code) for code, word in STATE_WORDS.items()}
_SCANNED_ROWS = 16 * FRAME_ROWS
_FORECAST_BUCKETS_MAX = 100_000


def get(work: Work, command: Get) -> Messages:
    """Messages by id or key, as they are now."""
    reply, columns = _find(work, command.topic, command.target)
    return _messages(work, reply.status, reply.ids, columns)


def _find(work: Work, topic_name: str, target: Target) -> tuple[Reply, Columns]:
    """What is there of the messages that a target names, and why the others are not."""
    topic = work.topic(topic_name)
    count = len(target)
    reply = blank(count)
    slots = np.zeros(count, dtype=np.int64)
    by_key = target.keys is not None
    for piece in locate(topic, target, reply):
        slots[piece.rows] = piece.slots
        hidden = np.flatnonzero((piece.states == State.NONE) | (piece.states == State.STAGED))
        if len(hidden):
            places = np.arange(count)[piece.rows][hidden]
            status = why_not(work, piece, hidden, by_key)
            # Published rows that have not landed yet are seconds from being visible.
            reply.status[places] = np.where(status == Outcome.LEASED, Outcome.NOT_FOUND, status)
    unname_strangers(reply, by_key)
    arena = work.state.memory.arena
    names = ["due", "version", "owner", "lease", "attempts", "location", "flags", MOMENT]
    if topic.kind.traits.has_priorities:
        names.append(PRIORITY)
    columns: Columns = {name: getattr(arena, name).take(slots) for name in names}
    return reply, columns


def list_page(work: Work, command: List) -> Messages:
    """A page in id order: it may be short, and `next_after_id` says where the next begins."""
    topic = work.topic(command.topic)
    wanted = _wanted_state(command)
    limit = min(max(1, command.limit), work.limits.page_rows_max)
    if command.after_id < 0:
        raise InvalidArgument("after_id must be an id, or 0", field="after_id")
    if command.target is not None:
        return _list_named(work, command, wanted, command.target)
    partition, sequence = partition_of(command.after_id), sequence_of(command.after_id) + 1
    if topic.own is not None:
        here = topic.own.next_from(partition)
        partition, sequence = here, sequence if here == partition else 1
    if partition >= len(topic.partitions):
        return _messages(work, np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64), {})
    # A frame is often enough for a small page; where few rows fit, many are looked at in one go.
    columns, end = _read(work, topic, partition, sequence, FRAME_ROWS)
    rows = _filter(work, command, wanted, columns)
    if 2 * len(rows) < limit and end is not None:
        columns, end = _read(work, topic, partition, sequence, _SCANNED_ROWS)
        rows = _filter(work, command, wanted, columns)
    if not topic.kind.traits.has_priorities:
        # Nobody wrote it.
        columns.pop(PRIORITY, None)
    more = len(rows) > limit
    rows = rows[:limit]
    columns = {name: values[rows] for name, values in columns.items()}
    sequences = columns.get("sequence", np.zeros(0, dtype=np.int64))
    ids = sequences | partition << SEQUENCE_BITS
    found = _messages(work, np.zeros(len(rows), dtype=np.uint8), ids, columns)
    if more:
        found.next_after_id = int(ids[-1])
    elif end is not None:
        found.next_after_id = end | partition << SEQUENCE_BITS
    elif topic.own is not None:
        following = topic.own.next_from(partition + 1)
        if following < len(topic.partitions):
            found.next_after_id = following << SEQUENCE_BITS
    elif partition + 1 < len(topic.partitions):
        found.next_after_id = (partition + 1) << SEQUENCE_BITS
    return found


def _list_named(work: Work, command: List, wanted: int | None, target: Target) -> Messages:
    """Those of the named messages that are there and fit the filters."""
    if len(target) > work.limits.page_rows_max:
        limit = work.limits.page_rows_max
        raise InvalidArgument("too many messages are named", field="target", limit=limit)
    reply, columns = _find(work, command.topic, target)
    here = np.flatnonzero(reply.status == Outcome.OK)
    columns = {name: values[here] for name, values in columns.items()}
    rows = _filter(work, command, wanted, columns)
    columns = {name: values[rows] for name, values in columns.items()}
    return _messages(work, reply.status[here][rows], reply.ids[here][rows], columns)


def count(work: Work, command: Count) -> Counts:
    """Exact, and at no scan."""
    topic = work.topic(command.topic)
    totals = np.zeros(8, dtype=np.int64)
    ready = 0
    oldest: list[int] = []
    for partition in topic.partitions.made():
        while work.change_hints(partition.times.advance, work.now_us):
            pass
        totals += partition.counts
        here = partition.times.ready_count(work.now_us)
        if here:
            oldest.append(partition.times.oldest_ready_us(work.now_us))
        ready += here
    return Counts(
        {
            "scheduled": int(totals[State.SCHEDULED]) - ready,
            "ready": ready,
            "leased": int(totals[State.LEASED]),
            "dead": int(totals[State.DEAD]),
            "staged": int(totals[State.STAGED]),
            "done": int(totals[State.DONE]),
            "cancelled": int(totals[State.CANCELLED]),
        },
        work.state.next_frame - 1,
        min(oldest, default=None),
    )


def forecast(work: Work, command: Forecast) -> Buckets:
    """What is coming, per bucket, without looking at the messages."""
    topic = work.topic(command.topic)
    if not BUCKET_US <= command.bucket_us <= DUE_MAX_US or command.bucket_us % BUCKET_US:
        raise InvalidArgument("a bucket must be a number of whole minutes", field="bucket")
    if command.from_us % BUCKET_US or not 0 <= command.from_us < command.to_us:
        raise InvalidArgument("a forecast begins at a whole minute, before its end", field="from")
    if command.to_us > DUE_MAX_US:
        raise InvalidArgument("a forecast ends at a time", field="to", limit=DUE_MAX_US)
    if (command.to_us - command.from_us) // command.bucket_us > _FORECAST_BUCKETS_MAX:
        raise InvalidArgument(
            f"a forecast has at most {_FORECAST_BUCKETS_MAX} buckets",
            field="bucket",
            limit=_FORECAST_BUCKETS_MAX,
        )
    found = [
        partition.times.histogram.between(command.from_us, command.to_us, command.bucket_us)
        for partition in topic.partitions.made() or [topic.partitions.look(0)]
    ]
    starts = np.concatenate([start for start, _ in found])
    counts = np.concatenate([number for _, number in found])
    unique, inverse = np.unique(starts, return_inverse=True)
    return Buckets(unique, np.bincount(inverse, counts, len(unique)).astype(np.int64))


def _wanted_state(command: List) -> int | None:
    if command.state is None:
        return None
    code = _STATE_CODES.get(command.state)
    if code is None:
        words = ", ".join(_STATE_CODES)
        raise InvalidArgument(f"{command.state!r} is not one of {words}", field="state")
    return code


def _read(
    work: Work, topic: Topic, partition: int, first: int, span: int
) -> tuple[Columns, int | None]:
    """Rows from a sequence on, and where the reading ended (None: there is no more)."""
    last = (first | (FRAME_ROWS - 1)) + span - FRAME_ROWS
    view = topic.partitions.look(partition).ledger.view()
    columns = read_range(view, work.state.memory.arena, first, last)
    return columns, last if last < view.next_sequence else None


def _filter(work: Work, command: List, wanted: int | None, columns: Columns) -> NDArray[np.intp]:
    if not columns:
        return np.zeros(0, dtype=np.intp)
    states = _visible_states(columns, work.now_us)
    keep = states != State.STAGED
    if wanted is not None:
        keep &= states == wanted
    if command.due_from_us is not None:
        keep &= columns["due"] >= command.due_from_us
    if command.due_to_us is not None:
        keep &= columns["due"] < command.due_to_us
    if command.owner is not None:
        owner = work.state.memory.owners.find(command.owner)
        keep &= columns["owner"] == (-1 if owner is None else owner)
    if command.reason is not None:
        reasons = work.state.memory.reasons.all()
        # Each distinct reason is looked at once, however many messages died of it.
        meant = [number for number, name in enumerate(reasons) if command.reason in name]
        keep &= (states == State.DEAD) & np.isin(columns["lease"], meant)
    if command.died_from_us is not None:
        keep &= (states == State.DEAD) & (columns[MOMENT] >= command.died_from_us)
    if command.died_to_us is not None:
        keep &= (states == State.DEAD) & (columns[MOMENT] < command.died_to_us)
    return np.flatnonzero(keep)


def _visible_states(columns: Columns, now_us: int) -> NDArray[np.uint8]:
    states = columns["flags"] & STATE_MASK
    states[(states == State.SCHEDULED) & (columns["due"] <= now_us)] = READY
    return states


def _messages(work: Work, status: NDArray[np.uint8], ids: Int64s, columns: Columns) -> Messages:
    if not columns:
        return Messages(status, ids, {}, {})
    memory = work.state.memory
    states = _visible_states(columns, work.now_us)
    leased, dead = states == State.LEASED, states == State.DEAD
    held = np.where(leased, columns["lease"], 0).astype(np.int64)
    leases = memory.leases.view(work.now_us - work.tick, held)
    out: dict[str, Any] = {
        "due_us": columns["due"],
        "version": columns["version"],
        "state": states,
        "attempts": columns["attempts"],
        "location": columns["location"],
        "owner": columns["owner"],
        "consumer": np.where(leased, leases.consumer, 0),
        # A row that is finished may linger, with whatever it had.
        "reason": np.where(
            leased, leases.reason, np.where(states == State.NONE, 0, columns["lease"])
        ),
        "leased_us": np.where(leased, leases.since_us, 0),
        "lease_until_us": np.where(leased, leases.until_us, 0),
        "died_us": np.where(dead, columns[MOMENT], 0),
        "expires_us": np.where(columns["flags"] & EXPIRES != 0, columns[MOMENT], 0),
    }
    if PRIORITY in columns:
        out["priority"] = columns[PRIORITY]
    return Messages(status, ids, out, memory.names())
