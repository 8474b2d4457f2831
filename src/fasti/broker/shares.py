"""Limits that callers share: each caller may use a part of a limit, and all together the whole.

A limit that one caller could use up would keep every other one from working. So each has a bound in
all (a setting) and a share per caller, which is `limits.caller_share` percent of it; beyond either the
call is refused with `overloaded`, and nothing has changed.

What callers hold for a while is counted when it is taken and given back (`CountedShare`), what ends by
itself by a look at what is there (`SeenShare`). What stays when they are gone (topics, sinks) is
remembered by name (`NameShare`), and names that exist no more are dropped when a caller comes to its
share; what was made before the broker's process began has no owner. The process that a broker is
embedded in has no other caller to share with.

The share of the leases is kept by bounding the credit of a caller's sessions (`LeaseShare`). A lease is
given for credit, so a caller never has more leases than it had and the credit that its sessions have
open. Together both stay within its share of `leases_max`:

* its sessions may have half of the share as open credit, an equal part each; a session that asks for
  more gets less, and asks again as it finishes messages;
* a session without any gets one, so that none waits for ever, unless the caller has its share already:
  then credit is refused.

How many leases a caller has is looked up only when so many are out that it could be too many. Leases
belong to the caller whose session last had the consumer's name on the topic; those of consumers that
did not come back since the broker started have no owner.

Any thread may call anything here.
"""

from __future__ import annotations

import threading
from collections import ChainMap, Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fasti.broker.caller import Caller
from fasti.core.queries import ReadLeases
from fasti.errors import Closed, Moved, NoQuorum, Overloaded

if TYPE_CHECKING:
    from fasti.broker.placement import Placement


_RETRY_US = 1_000_000
# So long a shard may take to say who has how many leases.
_ANSWER_S = 1.0
# Callers that have series of their own in the metrics; all others are one.
_NAMED_MAX = 100
OTHERS = "_other"


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit: what it counts, the setting that has it, how many in all and for one caller."""

    what: str
    setting: str
    most: int
    percent: int

    def share_of(self, caller: Caller) -> int:
        """How many one caller may hold."""
        return self.most if caller.is_local else max(1, self.most * self.percent // 100)


class Share:
    """One limit. The classes below say how many each caller holds."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        # Taken again by a thread that has it if garbage is collected there, and with it a read that
        # was given up.
        self._lock = threading.RLock()
        self._refused: Counter[str] = Counter()

    def held(self) -> dict[str, int]:
        """How many each caller holds."""
        raise NotImplementedError

    def refusals(self) -> dict[str, int]:
        """How often each caller was refused, since the broker started."""
        with self._lock:
            return dict(self._refused)

    def refuse(self, caller: Caller, held: int) -> Overloaded:
        """The error for a caller that wants more, counted."""
        with self._lock:
            return self._refuse(caller, held)

    def _refuse(self, caller: Caller, held: int) -> Overloaded:
        known = caller.name in self._refused or len(self._refused) < _NAMED_MAX
        self._refused[caller.name if known else OTHERS] += 1
        bound, share = self.bound, self.bound.share_of(caller)
        if held >= share < bound.most:
            text = (
                f"{caller.name!r} has {held:,} {bound.what}, which is all that one caller may have: "
                f"{bound.percent} % (limits.caller_share) of {bound.most:,} ({bound.setting}). End "
                "some, or have the operator raise one of the two"
            )
        else:
            text = (
                f"there are {bound.most:,} {bound.what}, and there may be no more ({bound.setting}); "
                f"{held:,} of them are of {caller.name!r}. Try again when some have ended, or have "
                "the operator raise it"
            )
        details = {"setting": bound.setting, "limit": bound.most, "share": share}
        details |= {"caller": caller.name, "held": held}
        return Overloaded(text, retry_after_us=_RETRY_US, details=details)


class CountedShare(Share):
    """A limit of what is taken and given back."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self._held: Counter[str] = Counter()
        self._total = 0

    def take(self, caller: Caller, count: int = 1) -> None:
        """Raises `overloaded`, but a caller that has none gets one thing however large it is."""
        with self._lock:
            held = self._held[caller.name]
            beyond = held + count > self.bound.share_of(caller) and (held or count == 1)
            if beyond or (self._total and self._total + count > self.bound.most):
                raise self._refuse(caller, held)
            self._held[caller.name] += count
            self._total += count

    def give_back(self, caller: Caller, count: int = 1) -> None:
        with self._lock:
            self._total -= count
            self._held[caller.name] -= count
            if self._held[caller.name] <= 0:
                del self._held[caller.name]

    @contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """One for the length of a block. Raises `overloaded`."""
        self.take(caller)
        try:
            yield
        finally:
            self.give_back(caller)

    def held(self) -> dict[str, int]:
        with self._lock:
            held = dict(self._held)
        return {name: count for name, count in held.items() if count}


class SeenShare(Share):
    """A limit of what ends by itself: counted by a look at what is there."""

    def __init__(self, bound: Bound, look: Callable[[], dict[str, int]]) -> None:
        super().__init__(bound)
        self._look = look

    def held(self) -> dict[str, int]:
        return self._look()

    def has_room(self, caller: Caller) -> bool:
        """Whether the caller may have one more."""
        held = self._look()
        mine = held.get(caller.name, 0)
        return mine < self.bound.share_of(caller) and sum(held.values()) < self.bound.most

    def check(self, caller: Caller) -> None:
        """Raises `overloaded` unless the caller may have one more."""
        if not self.has_room(caller):
            raise self.refuse(caller, self._look().get(caller.name, 0))


class NameShare(Share):
    """A limit of what callers made, by name. The engine enforces the bound in all."""

    def __init__(self, bound: Bound, existing: Callable[[], Container[str]]) -> None:
        super().__init__(bound)
        self._existing = existing
        self._names: dict[str, set[str]] = {}

    @contextmanager
    def making(self, caller: Caller, name: str) -> Iterator[None]:
        """Around what makes it, if it isn't there yet. Raises `overloaded`."""
        if name in self._existing():
            yield
            return
        self.claim(caller, name)
        try:
            yield
        except BaseException:
            with self._lock:
                self._names.get(caller.name, set()).discard(name)
            raise

    def claim(self, caller: Caller, name: str) -> None:
        """The caller makes it. Raises `overloaded`."""
        share = self.bound.share_of(caller)
        with self._lock:
            names = self._names.setdefault(caller.name, set())
            if name in names:
                return
            if len(names) >= share:
                existing = self._existing()
                names.intersection_update([old for old in names if old in existing])
            # A caller that may have all is refused by the engine.
            if share <= len(names) and share < self.bound.most:
                raise self._refuse(caller, len(names))
            names.add(name)

    def held(self) -> dict[str, int]:
        existing = self._existing()
        with self._lock:
            for caller in list(self._names):
                self._names[caller] = {n for n in self._names[caller] if n in existing}
                if not self._names[caller]:
                    del self._names[caller]
            return {caller: len(names) for caller, names in self._names.items()}


class Shares:
    """The limits of one broker that callers share."""

    # Set by the parts of the service that know what there is.
    snapshots: SeenShare
    backups: SeenShare
    leases: LeaseShare

    def __init__(self, placement: Placement) -> None:
        settings = placement.settings
        self.placement = placement
        self._limits = settings.limits

        def topics() -> Container[str]:
            return ChainMap(*(shard.engine.state.by_name for shard in placement.shards()))

        def sinks() -> Container[str]:
            return ChainMap(*(shard.engine.state.sinks.all for shard in placement.shards()))

        def stages() -> Container[str]:
            return ChainMap(*(shard.engine.state.stages for shard in placement.shards()))

        self.sessions = CountedShare(self.bound("open sessions", "sessions_max"))
        self.intakes = CountedShare(self.bound("open produce streams", "intakes_max"))
        self.reads = CountedShare(self.bound("reads under way", "reads_max"))
        self.calls = CountedShare(self.bound("calls under way", "calls_max"))
        self.call_streams = CountedShare(self.bound("streams of calls", "call_streams_max"))
        self.watchers = CountedShare(self.bound("followers and watchers", "watchers_max"))
        rows = ("rows that wait", "inbox_rows_max", settings.inbox_rows_max)
        self.inbox_rows = CountedShare(Bound(*rows, self._limits.caller_share))
        self.topics = NameShare(self.bound("topics", "topics_max"), topics)
        self.inboxes = NameShare(self.bound("inboxes", "inboxes_max"), topics)
        self.sinks = NameShare(self.bound("sinks", "sinks_max"), sinks)
        self.stages = NameShare(self.bound("stages", "stages_max"), stages)

    def bound(self, what: str, field: str) -> Bound:
        """The limit that the settings have under this name."""
        limits = self._limits
        return Bound(what, f"limits.{field}", getattr(limits, field), limits.caller_share)

    def named(self) -> dict[str, Share]:
        """Those that the metrics show, by name."""
        return {name: share for name, share in vars(self).items() if isinstance(share, Share)}


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
        settings = placement.settings
        percent = settings.limits.caller_share
        super().__init__(Bound("leases", "leases_max", settings.leases_max, percent))
        self._placement, self._clock = placement, placement.clock
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
            try:
                pairs, names = shard.ask(ReadLeases(list(callers))).result(_ANSWER_S)
            except (Moved, NoQuorum, TimeoutError):
                continue  # It has left this process, or waits: the others don't wait for it.
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
