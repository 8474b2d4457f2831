"""The share that a caller has of the leases: kept by bounding the credit of its sessions.

A lease is given for credit, so a caller never has more leases than it had and the credit that its
sessions have open. Together both stay within its share of `leases_max`:

* its sessions may have half of the share as open credit, an equal part each; whoever asks for more gets
  less, and asks again as it finishes messages;
* a session without any gets one, so that none waits for ever, unless the caller has its share already:
  then credit is refused.

How many leases a caller has is looked up only when so many are out that it could be too many. Leases
belong to the caller whose session last had the consumer's name on the topic; those of consumers that did
not come back since the broker started are nobody's. Any thread.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from fasti.broker.caller import Caller
from fasti.broker.shares import Bound, Share
from fasti.core.queries import ReadLeases
from fasti.errors import Closed

if TYPE_CHECKING:
    from fasti.broker.placement import Placement

# A look at all leases holds for so long; what was handed out since is added.
_LOOK_US = 100_000
_NAMES_SPARE = 1_000

# Topic and consumer.
Name = tuple[str, str]


class SessionCredit:
    """What one session may still be leased. Made by `LeaseShare.open`."""

    def __init__(self, share: LeaseShare, caller: Caller, name: Name) -> None:
        self._share, self.caller, self.name = share, caller, name
        # Guarded by the share's lock.
        self.open = 0

    def admit(self, count: int, refused: bool = True) -> int:
        """How much of what it asks for it gets: maybe no more now.

        Raises `overloaded`, unless what comes with it must not be `refused`: acks make room.
        """
        return self._share.admit(self, count, refused)

    def leased(self, count: int) -> None:
        """So many were leased to it."""
        self._share.take_off(self, count, leased=True)

    def withdraw(self, count: int | None = None) -> None:
        """It waits for so many fewer, or for nothing any more."""
        self._share.take_off(self, self.open if count is None else count)

    def close(self) -> None:
        """The session has ended. Its leases stay its caller's."""
        self._share.close(self)


class LeaseShare(Share):
    """The leases of all callers."""

    def __init__(self, placement: Placement) -> None:
        settings = placement.catalogue.settings
        percent = settings.limits.caller_share
        super().__init__(Bound("leases", "leases_max", settings.leases_max, percent))
        self._placement, self._clock = placement, placement.catalogue.clock
        self._sessions: dict[str, set[SessionCredit]] = {}
        self._credit: Counter[str] = Counter()
        self._callers: dict[Name, str] = {}
        self._names_max = _NAMES_SPARE
        self._looked_us: int | None = None
        self._counts: dict[str, int] = {}
        # Handed out since the last look.
        self._since: Counter[str] = Counter()

    def open(self, caller: Caller, topic: str, consumer: str) -> SessionCredit:
        """A session begins."""
        made = SessionCredit(self, caller, (topic, consumer))
        with self._lock:
            self._sessions.setdefault(caller.name, set()).add(made)
            self._callers[made.name] = caller.name
            crowded = len(self._callers) > self._names_max
        if crowded:
            self.held()
        return made

    def close(self, session: SessionCredit) -> None:
        """It has ended. May be called again."""
        with self._lock:
            self._take_off(session, session.open)
            sessions = self._sessions.get(session.caller.name, set())
            sessions.discard(session)
            if not sessions:
                self._sessions.pop(session.caller.name, None)

    def admit(self, session: SessionCredit, count: int, refused: bool = True) -> int:
        """Grants a session credit: `SessionCredit.admit`. Raises `closed` when it has ended."""
        caller = session.caller
        if caller.is_local:
            return count
        share = self.bound.share_of(caller)
        with self._lock:
            sessions = self._sessions.get(caller.name, ())
            if session not in sessions:
                # Another thread has closed it: nobody would ever take this off.
                raise Closed("the session has ended")
            least = 0 if session.open else 1
            credit = self._credit[caller.name]
            even = max(1, share // 2 // len(sessions))
            granted = max(least, min(count, even - session.open, share // 2 - credit))
            # Before the look: what is handed out meanwhile is counted at least once.
            self._credit[caller.name] += granted
            session.open += granted
        # A caller has no more leases than there are.
        active = sum(s.engine.memory.leases.active for s in self._placement.shards())
        if active + credit + granted <= share:
            return granted
        held = self._held_by(caller, share - credit - granted)
        fits = max(0, min(granted, share - held - credit))
        if held < share // 2 or not refused:
            fits = max(fits, least)
        self.take_off(session, granted - fits)
        if fits < least:
            raise self.refuse(caller, held)
        return fits

    def take_off(self, session: SessionCredit, count: int, leased: bool = False) -> None:
        """A session has less credit, or has used some of it."""
        with self._lock:
            count = self._take_off(session, count)
            if leased:
                self._since[session.caller.name] += count

    def _take_off(self, session: SessionCredit, count: int) -> int:
        """How much it had of that. Leases from before it was connected again come without credit."""
        name = session.caller.name
        count = min(count, session.open)
        session.open -= count
        self._credit[name] -= count
        if not self._credit[name]:
            del self._credit[name]
        return count

    def _held_by(self, caller: Caller, enough: int) -> int:
        """Looks again if it may be more than `enough`: what was handed out since may be finished."""
        with self._lock:
            looked_us, now_us = self._looked_us, self._clock.tick()
            if looked_us is not None and 0 <= now_us - looked_us < _LOOK_US:
                since = self._since[caller.name]
                held = self._counts.get(caller.name, 0) + since
                if held <= enough or not since:
                    return held
        return self.held().get(caller.name, 0)

    def held(self) -> dict[str, int]:
        """A look at all leases: the engine copies them, and they are counted here."""
        with self._lock:
            self._since.clear()
            callers = dict(self._callers)
        counts: Counter[str] = Counter()
        alive: set[Name] = set()
        for shard in self._placement.shards():
            pairs, names = shard.ask(ReadLeases(list(callers))).result()
            distinct, numbers = np.unique(pairs, return_counts=True)
            for pair, number in zip(distinct.tolist(), numbers.tolist(), strict=True):
                if pair in names:
                    counts[callers[names[pair]]] += number
                    alive.add(names[pair])
        with self._lock:
            self._counts, self._looked_us = counts, self._clock.tick()
            if len(self._callers) > self._names_max:
                alive |= {each.name for sessions in self._sessions.values() for each in sessions}
                self._callers = {n: c for n, c in self._callers.items() if n in alive}
                self._names_max = 2 * len(self._callers) + _NAMES_SPARE
        return dict(counts)
