"""What became of the messages of a call that chose them by a filter: how many came out how."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.replies import Reply
from fasti.model import Outcome

_FAILED_MAX = 100


@dataclass(slots=True)
class Tally:
    """Outcomes of a piece, and the first messages that did not come out ok."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, reply: Reply) -> Tally:
        """Of one reply, which has the ids of its rows."""
        tally = cls()
        tally.add(reply.ids, reply.status)
        return tally

    def add(self, ids: NDArray[np.int64], status: NDArray[np.uint8]) -> None:
        """More rows."""
        words = [Outcome(code).word for code in status.tolist()]
        self.counts.update(words)
        bad = np.flatnonzero(status)[: _FAILED_MAX - len(self.failed)]
        self.failed += [{"id": int(ids[row]), "status": words[row]} for row in bad.tolist()]

    def to_dict(self, next_after_id: int) -> dict[str, Any]:
        """As the protocol tells it, with the cursor to go on from (0: this was the last piece)."""
        return {
            "looked": int(self.counts.total()),
            "outcomes": dict(self.counts),
            "failed": self.failed,
            "next_after_id": next_after_id,
        }


def last_id(reply: Reply) -> int:
    """Where to go on behind a piece that is only remembered: there may be nothing more."""
    return int(reply.ids.max()) if len(reply.ids) else 0
