"""Outcomes on the wire: columns written as runs, because most batches come out alike.

A whole batch that went well is three runs, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.errors import InvalidArgument
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.core.replies import Reply

Int64s = NDArray[np.int64]

_WORDS = [outcome.word for outcome in Outcome]
_CODES = {word: code for code, word in enumerate(_WORDS)}


@dataclass(slots=True)
class Outcomes:
    """What became of each row, as a client reads it."""

    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s
    at_us: dict[int, int] = field(default_factory=dict)
    by: dict[int, str] = field(default_factory=dict)
    sent_before: bool = False
    # Of those that are dead: why, where the broker says so.
    reasons: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.status)


def encode(reply: Reply, with_ids: bool = True) -> dict[str, Any]:
    """A reply that is not an error, as JSON; without ids where the asker has named them itself."""
    encoded: dict[str, Any] = {
        "status": [[_WORDS[code], count] for code, count in _equal_runs(reply.status)],
        "versions": _equal_runs(reply.versions),
    }
    if with_ids:
        encoded["ids"] = _counting_runs(reply.ids)
    if reply.at_us is not None:
        rows = np.flatnonzero(reply.at_us)
        encoded["at_us"] = dict(
            zip(map(str, rows.tolist()), reply.at_us[rows].tolist(), strict=True)
        )
    if reply.by:
        encoded["by"] = {str(row): name for row, name in reply.by.items()}
    if reply.sent_before:
        encoded["sent_before"] = True
    return encoded


def decode(encoded: dict[str, Any], ids: Int64s | None = None) -> Outcomes:
    """Back to columns; `ids` are those that were asked for, where the answer leaves them out.

    Raises `invalid_argument` if a broker wrote nonsense.
    """
    try:
        status = encoded["status"]
        counts = [count for _, count in status]
        codes = np.array([_CODES[word] for word, _ in status], dtype=np.uint8)
        if "ids" in encoded:
            ids = _spread(encoded["ids"], counting=True)
        elif ids is None:
            ids = np.zeros(sum(counts), dtype=np.int64)
        return Outcomes(
            np.repeat(codes, counts),
            ids,
            _spread(encoded["versions"], counting=False),
            {int(row): at_us for row, at_us in encoded.get("at_us", {}).items()},
            {int(row): name for row, name in encoded.get("by", {}).items()},
            bool(encoded.get("sent_before", False)),
            {int(row): why for row, why in encoded.get("reasons", {}).items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"these are not outcomes: {error!r}", field="outcomes") from error


def _equal_runs(values: NDArray[Any]) -> list[list[int]]:
    """`[value, count]` for each run of equal values."""
    if len(values) < 2:
        return [[value, 1] for value in values.tolist()]
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    return _runs(values, starts)


def _counting_runs(values: Int64s) -> list[list[int]]:
    """`[first, count]` for each run of values that count up by one."""
    if len(values) < 2:
        return [[value, 1] for value in values.tolist()]
    starts = np.flatnonzero(values[1:] != values[:-1] + 1) + 1
    return _runs(values, starts)


def _runs(values: NDArray[Any], starts: NDArray[np.intp]) -> list[list[int]]:
    if not len(starts):
        return [[int(values[0]), len(values)]]
    begins = np.concatenate([[0], starts])
    counts = np.diff(begins, append=len(values))
    firsts = values[begins].astype(np.int64)
    return np.stack([firsts, counts], axis=1).tolist()


def _spread(runs: list[list[int]], counting: bool) -> Int64s:
    if len(runs) == 1:
        first, count = runs[0]
        if counting:
            return np.arange(first, first + count, dtype=np.int64)
        return np.full(count, first, dtype=np.int64)
    pairs = np.array(runs, dtype=np.int64).reshape(-1, 2)
    firsts, counts = pairs[:, 0], pairs[:, 1]
    values = np.repeat(firsts, counts)
    if counting:
        ends = np.cumsum(counts)
        values += np.arange(len(values)) - np.repeat(ends - counts, counts)
    return values
