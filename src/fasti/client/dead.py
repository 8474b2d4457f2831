"""Dead letters: redriving and purging those that fit a filter, piece by piece, with progress.

Every piece is one call, so nothing is held up for long and a loop that is broken off has done what it
has done. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fasti.client.durations import Duration, optional_duration_us, optional_moment_us
from fasti.client.transport import Header, Transport

_PIECE_ROWS = 5_000
FAILED_MAX = 100

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class DeadOutcomes:
    """What became of dead messages: how many came out how, and the first that did not come out ok.

    `len()` is how many were looked at; `failed` are dicts with `id` and `status`, a hundred at most.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(self.outcomes.values())

    @property
    def ok(self) -> int:
        """How many came out as asked."""
        return self.outcomes.get("ok", 0)

    @property
    def all_ok(self) -> bool:
        """Whether all did."""
        return self.ok == len(self)

    def counts(self) -> dict[str, int]:
        """How many have each status."""
        return dict(self.outcomes)

    def __repr__(self) -> str:
        counts = ", ".join(f"{word}: {count}" for word, count in self.outcomes.items())
        return f"<DeadOutcomes of {len(self)} messages: {counts}>"


def filters(
    *,
    reason: str | None = None,
    owner: str | None = None,
    due_from: Any = None,
    due_to: Any = None,
    group: str | None = None,
) -> Header:
    """Which of the dead are meant, as the protocol says it. Raises `invalid_argument`."""
    found = {
        "reason": reason,
        "owner": owner,
        "due_from_us": optional_moment_us(due_from, "due_from"),
        "due_to_us": optional_moment_us(due_to, "due_to"),
        "group": group,
    }
    return {name: value for name, value in found.items() if value is not None}


def moved(to: str | None, delay: Duration | None, due: Any) -> Header:
    """Where redriven messages go, and when they are due there."""
    found = {
        "to": to,
        "delay_us": optional_duration_us(delay, "delay"),
        "due_us": optional_moment_us(due, "due"),
    }
    return {name: value for name, value in found.items() if value is not None}


def each_piece(
    transport: Transport, action: str, header: Header, progress: Progress | None
) -> DeadOutcomes:
    """Goes through all that fit; `progress` is told how many of how many, about."""
    counts: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    total = 0
    if progress is not None:
        asked = {name: header[name] for name in header if name not in ("to", "delay_us", "due_us")}
        total = int(transport.call("count_dead", asked)[0]["dead"])
        progress(0, total)
    after_id, looked = 0, 0
    while True:
        told, _ = transport.call(action, {**header, "after_id": after_id, "limit": _PIECE_ROWS})
        counts.update(told["outcomes"])
        failed += told["failed"]
        looked += told["looked"]
        if progress is not None:
            # Others may have died, or been redriven by somebody else, since they were counted.
            total = max(total, looked)
            progress(looked, total)
        after_id = told["next_after_id"]
        if not after_id:
            return DeadOutcomes(dict(counts), failed[:FAILED_MAX])


def named(transport: Transport, action: str, header: Header, ids: Sequence[int]) -> DeadOutcomes:
    """Those with these ids; one that is not dead, or not there, is looked over."""
    counts: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    for begin in range(0, len(ids), _PIECE_ROWS):
        left = list(ids[begin : begin + _PIECE_ROWS])
        while left:
            part = pa.RecordBatch.from_arrays([pa.array(left, type=pa.int64())], ["id"])
            told, _ = transport.call(action, header, [part])
            counts.update(told["outcomes"])
            failed += told["failed"]
            # Only as many as may be gathered at once were looked at.
            last = told["next_after_id"]
            left = left[left.index(last) + 1 :] if last else []
    missing = len(ids) - counts.total()
    if missing:
        counts["not_found"] += missing
    return DeadOutcomes(dict(counts), failed[:FAILED_MAX])
