"""Acks of single messages, on their way to be sent together.

User threads put them in and count without a lock, because there are hundreds of thousands a second;
what they read may be a little old, and then one more or one fewer travels with the others. Everything
else is a step of the machine.
"""

from __future__ import annotations

import numpy as np

from fasti.client.machines.returns import Return
from fasti.client.machines.run import Run

# They wait this long for others, unless the consumer has nothing left or needs the credit.
_LINGER_S = 0.025
_NEVER = -(1 << 62)


class Gathering:
    """The gathered acks of one consumer."""

    __slots__ = ("_linger_until", "eager", "hurry", "runs", "unsent", "urged")

    def __init__(self, prefetch: int) -> None:
        # Runs that have some.
        self.runs: list[Run] = []
        # The session's thread sleeps and no ack waits: the next one should wake the thread.
        self.eager = False
        # Acks since the last were sent, about. At `hurry` they are sent at once, for their credit
        # is a good part of what the consumer has.
        self.unsent, self.hurry = 0, 1
        self.urged = False
        self._linger_until = 0.0
        self.fit(prefetch)

    def fit(self, prefetch: int) -> None:
        """So many messages may be here."""
        self.hurry = max(1, prefetch // 4)

    # User threads

    def put(self, run: Run) -> bool:
        """The run has acks. True if the session's thread should be woken."""
        if not run.listed:
            run.listed = True
            self.runs.append(run)
        return self.eager or self.unsent >= self.hurry

    # Steps of the machine

    def wake(self) -> None:
        """The session's thread is being woken."""
        self.eager = False
        if self.unsent >= self.hurry:
            self.urged = True
            self.unsent = _NEVER  # Once is enough, until they are sent.

    def urge(self) -> bool:
        """They are to wait no longer. False if there are none, or they were urged before."""
        urged, self.urged = self.urged, self.urged or bool(self.runs)
        return self.urged and not urged

    def due(self, now: float, at_once: bool) -> bool:
        """Whether they have waited for others long enough; `at_once` if none will come."""
        if not self.runs:
            return False
        if not self._linger_until:
            self._linger_until = now + _LINGER_S
        return self.urged or at_once or now >= self._linger_until

    def wait_s(self, now: float) -> float:
        """How long they may wait on, once `due` was asked."""
        return self._linger_until - now

    def take(self) -> list[Return]:
        """All of them, as one return."""
        self.unsent, self._linger_until, self.urged = 0, 0.0, False
        count = len(self.runs)
        runs = self.runs[:count]
        del self.runs[:count]
        segments = []
        for run in runs:
            # An ack after this lists the run anew.
            run.listed = False
            size = len(run.acks)
            rows = run.acks[:size]
            del run.acks[:size]
            if rows:
                segments.append((run, np.array(rows)))
        return [Return("ack", None, segments)] if segments else []
