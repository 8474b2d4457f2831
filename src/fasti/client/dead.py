"""Dead letters: redriving and purging those that fit a filter, piece by piece (bulk.py). Any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fasti.client.bulk import FAILED_MAX, BulkOutcomes, Progress, each_piece
from fasti.client.durations import (
    Duration,
    aware_us,
    check_one_moment,
    optional_duration_us,
    optional_moment_us,
)
from fasti.client.transport import Header, Transport

_PIECE_ROWS = 5_000
# Fields that say where messages go, and not which are meant.
_NOT_FILTERS = ("to", "delay_us", "due_us")


class DeadOutcomes(BulkOutcomes):
    """What became of dead messages: how many came out how, and the first that did not come out ok.

    `len()` is how many were looked at; `failed` are dicts with `id` and `status`, a hundred at most.
    """

    __slots__ = ()


def filters(
    *,
    reason: str | None = None,
    owner: str | None = None,
    due_from: Any = None,
    due_to: Any = None,
    died_from: Any = None,
    died_to: Any = None,
    group: str | None = None,
) -> Header:
    """Which of the dead are meant, as the protocol says it. Raises `invalid_argument`."""
    chosen = {
        "reason": reason,
        "owner": owner,
        "due_from_us": optional_moment_us(due_from, "due_from"),
        "due_to_us": optional_moment_us(due_to, "due_to"),
        "died_from_us": optional_moment_us(died_from, "died_from"),
        "died_to_us": optional_moment_us(died_to, "died_to"),
        "group": group,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def moved(to: str | None, delay: Duration | None, at: Any, due: Any) -> Header:
    """Where redriven messages go, and when they are due there."""
    check_one_moment(at, delay, due)
    fields = {
        "to": to,
        "delay_us": optional_duration_us(delay, "delay"),
        "due_us": optional_moment_us(due, "due") if at is None else aware_us(at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def each_dead(
    transport: Transport, action: str, header: Header, progress: Progress | None
) -> DeadOutcomes:
    """Goes through all that fit; `progress` is called with how many are done and how many there are, about."""

    def total() -> int:
        chosen = {name: header[name] for name in header if name not in _NOT_FILTERS}
        return int(transport.call("count_dead", chosen)[0]["dead"])

    outcomes = each_piece(transport, action, header, progress, total)
    return DeadOutcomes(outcomes.outcomes, outcomes.failed)


def named(transport: Transport, action: str, header: Header, ids: Sequence[int]) -> DeadOutcomes:
    """Those with these ids; one that is not dead, or not there, is looked over."""
    counts: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    for begin in range(0, len(ids), _PIECE_ROWS):
        left = list(ids[begin : begin + _PIECE_ROWS])
        while left:
            part = pa.RecordBatch.from_arrays([pa.array(left, type=pa.int64())], ["id"])
            reply, _ = transport.call(action, header, [part])
            counts.update(reply["outcomes"])
            failed += reply["failed"]
            # Only as many as may be gathered at once were looked at.
            last = reply["next_after_id"]
            left = left[left.index(last) + 1 :] if last else []
    missing = len(ids) - counts.total()
    if missing:
        counts["not_found"] += missing
    return DeadOutcomes(dict(counts), failed[:FAILED_MAX])
