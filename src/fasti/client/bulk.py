"""Messages changed by filter, piece by piece, with progress.

Every piece is one call, so nothing is held up for long and a loop that is broken off has done what it
has done. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fasti.client.durations import Duration, duration_us, optional_moment_us
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument

FAILED_MAX = 100

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class BulkOutcomes:
    """What became of the messages that fit a filter: how many came out how, and the first that did
    not come out ok.

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
        return f"<{type(self).__name__} of {len(self)} messages: {counts}>"


def each_piece(
    transport: Transport,
    action: str,
    header: Header,
    progress: Progress | None = None,
    total: Callable[[], int] | None = None,
) -> BulkOutcomes:
    """Goes through all that fit; `progress` is called with how many are done and how many there are, about.

    `total` counts them, and is called only if there is a `progress`.
    """
    counts: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    expected = 0
    if progress is not None:
        expected = 0 if total is None else total()
        progress(0, expected)
    after_id, looked = 0, 0
    while True:
        piece, _ = transport.call(action, {**header, "after_id": after_id})
        counts.update(piece["outcomes"])
        failed += piece["failed"][: FAILED_MAX - len(failed)]
        looked += piece["looked"]
        if progress is not None:
            # More may fit since they were counted.
            expected = max(expected, looked)
            progress(looked, expected)
        after_id = piece["next_after_id"]
        if not after_id:
            return BulkOutcomes(dict(counts), failed)


def pending_filter(
    *,
    due_from: Any,
    due_to: Any,
    key_prefix: str | None,
    owner: str | None,
    state: str | None,
    everything: bool,
) -> Header:
    """Which pending messages are meant, as the protocol says it.

    Raises `invalid_argument` if nothing is said at all: that must be meant.
    """
    filters = {
        "due_from_us": optional_moment_us(due_from, "due_from"),
        "due_to_us": optional_moment_us(due_to, "due_to"),
        "key_prefix": key_prefix or None,
        "of_owner": owner or None,
        "state": state or None,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    if not given and not everything:
        raise InvalidArgument(
            "give a filter: due_from, due_to, key_prefix, owner or state; everything=True means all",
            field="key_prefix",
        )
    return given


def shift_us(by: Duration) -> int:
    """How far due times move: a length, with a `-` before it towards the past."""
    if isinstance(by, str):
        written = by.strip()
        length = duration_us(written[1:] if written[:1] in ("+", "-") else written, "by")
        return -length if written[:1] == "-" else length
    back = by < timedelta(0) if isinstance(by, timedelta) else by < 0
    return -duration_us(-by, "by") if back else duration_us(by, "by")
