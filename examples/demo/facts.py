"""What the demo saw, and what follows from it.

Nothing here trusts the broker: what must be true is worked out from what it promised, and compared
with what user code got. All times are of this machine's clock, taken by those who saw something
happen, not by the SDK. A change that was under way when the broker was killed may have happened or
not; it is counted as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
# What is shown while it runs: what goes on, how many arrived, and how many there are.
Show = Callable[[str, int, int], None]

# Upper ends of the bars of the histogram, in microseconds.
BARS_US = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late first deliveries were, in milliseconds; `bars` counts them up to each of BARS_US."""

    count: int
    earliest_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    bars: list[int]

    @classmethod
    def of(cls, late_us: Int64s) -> Lateness:
        """From microseconds."""
        if not len(late_us):
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, [0] * (len(BARS_US) + 1))
        found = np.percentile(late_us, [0, 50, 95, 99, 100]) / 1000
        earliest, p50, p95, p99, highest = found.round(3).tolist()
        places = np.searchsorted(BARS_US, late_us)
        bars = np.bincount(places, minlength=len(BARS_US) + 1).tolist()
        return cls(len(late_us), earliest, p50, p95, p99, highest, bars)


@dataclass(slots=True)
class Verdict:
    """The outcome of a run. The first seven must be 0."""

    lost: int
    undelivered: int
    misplaced: int
    early: int
    after_cancel: int
    after_ack: int
    sent_twice: int
    scheduled: int
    delivered: int
    delivered_again: int
    moved: int
    cancelled: int
    unknown: int
    # Of first deliveries: before the kill, of what had to wait for the new start, of what fell due
    # after it (some of it behind the backlog), and all but those that had to wait.
    before: Lateness
    outage: Lateness
    after: Lateness
    up: Lateness
    outage_seconds: float
    story: list[tuple[float, str]]
    states: dict[str, int] = field(default_factory=dict)
    forecast: list[tuple[int, int]] = field(default_factory=list)
    size_bytes: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        broken = (self.lost, self.undelivered, self.misplaced, self.early, self.sent_twice)
        return not any((*broken, self.after_cancel, self.after_ack))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Change:
    """A batch of moves or cancels that was asked for; `due` is None in a cancel."""

    ids: list[int]
    due: list[int] | None
    asked_us: int


@dataclass(slots=True)
class Facts:
    """All that is known so far. For one thread at a time."""

    due: dict[int, int] = field(default_factory=dict)
    asked_at: dict[int, int] = field(default_factory=dict)
    # The number in each message's payload; each number was sent once.
    number: dict[int, int] = field(default_factory=dict)
    # When the cancel that answered ok was asked for.
    cancelled: dict[int, int] = field(default_factory=dict)
    # When the answer to the ack had come.
    acked: dict[int, int] = field(default_factory=dict)
    # Id and time of each delivery, as it was told.
    deliveries: list[tuple[int, int]] = field(default_factory=list)
    first_started: dict[int, int] = field(default_factory=dict)
    remaining: dict[int, int] = field(default_factory=dict)
    window: tuple[int, int] = (0, 0)
    killed_at_us: int = 0
    started_again_us: int = 0
    moved: int = 0
    story: list[tuple[int, str]] = field(default_factory=list)
    _unknown_cancels: set[int] = field(default_factory=set)
    _unknown_moves: dict[int, int] = field(default_factory=dict)

    def happened(self, at_us: int, what: str) -> None:
        """One line of the story."""
        self.story.append((at_us, what))

    def produced(self, ids: list[int], due: list[int], numbers: list[int], asked_us: int) -> None:
        """Messages whose receipt has come."""
        self.due |= zip(ids, due, strict=True)
        self.number |= zip(ids, numbers, strict=True)
        self.asked_at |= dict.fromkeys(ids, asked_us)

    def answered(self, change: Change, ok: list[bool]) -> None:
        """A batch of changes whose outcomes are known; a row that is not ok changed nothing."""
        good = [number for number, fine in zip(change.ids, ok, strict=True) if fine]
        if change.due is None:
            self.cancelled |= dict.fromkeys(good, change.asked_us)
            return
        wanted = dict(zip(change.ids, change.due, strict=True))
        self.due |= {number: wanted[number] for number in good}
        self.moved += len(good)

    def unanswered(self, change: Change) -> None:
        """A batch of changes that was under way when the broker went."""
        if change.due is None:
            self._unknown_cancels |= set(change.ids)
        else:
            self._unknown_moves |= zip(change.ids, change.due, strict=True)

    def delivered(self, id: int, number: int, started_us: int) -> None:
        """User code has a message."""
        self.number.setdefault(id, number)
        self.first_started.setdefault(id, started_us)
        self.deliveries.append((id, started_us))

    def acknowledged(self, id: int, at_us: int) -> None:
        """The broker has said that it knows that a message is done."""
        self.acked.setdefault(id, at_us)

    def left_in_window(self) -> set[int]:
        """The messages that fall due while we watch and have not arrived yet."""
        end_us = self.window[1] + 1_000_000
        near = {number for number, due_us in self.due.items() if due_us < end_us}
        near -= self.first_started.keys() | self.cancelled.keys()
        return near - self._unknown_cancels - self._unknown_moves.keys()

    def verdict(self) -> Verdict:
        """What follows, when all is told."""
        seen = self.first_started.keys()
        unsure = self._unknown_cancels | self.cancelled.keys()
        lost = self.due.keys() - unsure - seen - self.remaining.keys()
        before, outage, after, up = self._lateness()
        begun_us = self.story[0][0] if self.story else 0
        return Verdict(
            lost=len(lost),
            undelivered=len(self.left_in_window() - lost),
            misplaced=sum(not self._may_be_due(*each) for each in self.remaining.items()),
            early=sum(self._is_early(*each) for each in self.deliveries),
            after_cancel=self._after(self.cancelled),
            after_ack=self._after(self.acked),
            sent_twice=self._sent_twice(),
            scheduled=len(self.due),
            delivered=len(seen),
            delivered_again=len(self.deliveries) - len(seen),
            moved=self.moved,
            cancelled=len(self.cancelled),
            unknown=len(self._unknown_moves.keys() | self._unknown_cancels),
            before=before,
            outage=outage,
            after=after,
            up=up,
            outage_seconds=round((self.started_again_us - self.killed_at_us) / 1e6, 3),
            story=[(round((at - begun_us) / 1e6, 2), what) for at, what in self.story],
        )

    def _may_be_due(self, number: int, due_us: int) -> bool:
        return due_us in (self.due.get(number, due_us), self._unknown_moves.get(number))

    def _is_early(self, number: int, started_us: int) -> bool:
        due_us = self.due.get(number)
        if due_us is None:
            return False
        return started_us < min(due_us, self._unknown_moves.get(number, due_us))

    def _after(self, ends: dict[int, int]) -> int:
        """How many deliveries began later than what should have been the end of the message."""
        never = 1 << 62
        return sum(started_us > ends.get(number, never) for number, started_us in self.deliveries)

    def _sent_twice(self) -> int:
        """How many messages carry a number that another one carries too."""
        return len(self.number) - len(set(self.number.values()))

    def _lateness(self) -> tuple[Lateness, Lateness, Lateness, Lateness]:
        sure = self.due.keys() - self._unknown_moves.keys()
        known = [number for number in self.first_started if number in sure]
        started = np.array([self.first_started[n] for n in known], dtype=np.int64)
        due = np.array([max(self.due[n], self.asked_at[n]) for n in known], dtype=np.int64)
        late = started - due
        before = started < self.killed_at_us
        waited = ~before & (due < self.started_again_us)
        groups = (before, waited, ~before & ~waited, ~waited)
        first, second, third, fourth = (Lateness.of(late[group]) for group in groups)
        return first, second, third, fourth
