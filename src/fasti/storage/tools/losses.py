"""What a repair found to be lost, in the words of its user: topics, ids, offsets.

Three degrees. *Lost*: a message, row or entry was acknowledged in a frame that is gone, and later
frames prove that it was there; its ids are listed. *Possible*: ids that may have been given in the
gap, of which nothing later tells; they are never given again. *Uncertain*: what was live before the
gap and still is. It may have been changed, finished or cancelled in the gap, so it may be delivered
again, or as it was before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
_NOTES_MAX = 100


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of one partition that follow one another; for a log they are offsets."""

    partition: int
    first: int
    last: int


@dataclass(slots=True)
class TopicLosses:
    """What became of one topic."""

    topic: str
    number: int
    kind: str
    # Messages, rows or entries that are gone, and their ids (of logs: offsets).
    lost: int = 0
    ids: list[IdRange] = field(default_factory=list)
    # Ids that may have been given in the gap; none of them is given again.
    possible: list[IdRange] = field(default_factory=list)
    # Live before the gap and still there.
    uncertain: int = 0
    # Live before the gap, but a later frame proves that they had ended: they are dead now, with a
    # reason that says so (entries of key-value topics are removed).
    ended: int = 0

    @property
    def touched(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.lost or self.possible or self.uncertain or self.ended)


@dataclass(slots=True)
class Losses:
    """What a repair cost."""

    # First and last frame of each gap. No last one: the journal was cut there.
    frames: list[tuple[int, int | None]] = field(default_factory=list)
    topics: list[TopicLosses] = field(default_factory=list)
    # Things that fit no column, in words: a bounded number of them.
    notes: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """How many messages, rows and entries are known to be gone."""
        return sum(topic.lost for topic in self.topics)

    def note(self, text: str) -> None:
        """Says something once."""
        if text not in self.notes and len(self.notes) < _NOTES_MAX:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        return {"lost": self.lost, **asdict(self)}


class LostRows:
    """Sequences or offsets of one partition that are lost, while they are being found."""

    def __init__(self) -> None:
        self._lost: list[Int64s] = []
        self._ended: list[Int64s] = []

    def add(self, first: int, last: int) -> None:
        """All from the first to the last are missing."""
        self.add_rows(np.arange(first, last + 1, dtype=np.int64))

    def add_rows(self, rows: Int64s) -> None:
        """These are missing."""
        self._lost.append(rows)

    def end(self, rows: Int64s) -> None:
        """A later frame ends these: nothing is lost with them."""
        self._ended.append(rows)

    def rows(self) -> Int64s:
        """Those that are lost, sorted."""
        none = np.zeros(0, dtype=np.int64)
        return np.setdiff1d(
            np.concatenate([none, *self._lost]), np.concatenate([none, *self._ended])
        )

    def ranges(self) -> list[tuple[int, int]]:
        """The same as pairs of first and last."""
        rows = self.rows()
        if not len(rows):
            return []
        breaks = np.flatnonzero(np.diff(rows) != 1)
        firsts = rows[np.concatenate([[0], breaks + 1])]
        lasts = rows[np.concatenate([breaks, [len(rows) - 1]])]
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
