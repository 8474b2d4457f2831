"""What the demo heard from its process, and what follows from it.

Nothing here trusts the shard: what must be true is worked out from what it promised, and compared
with what it did. A promise that was under way when the process was killed may be kept or not; it
is counted as unknown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

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
    """The outcome of a run. The first five must be 0."""

    lost: int
    misplaced: int
    early: int
    after_cancel: int
    after_ack: int
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
    open_seconds: float
    close_seconds: float
    checkpoints: int
    states: dict[str, int]
    forecast: list[tuple[int, int]]
    size_bytes: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        kept = (self.lost, self.misplaced, self.early, self.after_cancel, self.after_ack)
        return not any(kept)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class Facts:
    """All that was told so far. One thread only."""

    due: dict[int, int] = field(default_factory=dict)
    produced_at: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    # Of each message, the first time that user code had it; and all times, in order.
    first_started: dict[int, int] = field(default_factory=dict)
    deliveries: list[tuple[int, int]] = field(default_factory=list)
    remaining: dict[int, int] = field(default_factory=dict)
    window: tuple[int, int] = (0, 0)
    killed_at_us: int = 0
    opened: list[dict[str, Any]] = field(default_factory=list)
    closed: dict[str, Any] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    forecast: list[tuple[int, int]] = field(default_factory=list)
    moved: int = 0
    after_ack: int = 0
    _asked: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def take(self, told: dict[str, Any]) -> None:
        """One line from the process."""
        getattr(self, f"_{told['fact']}")(told)

    @property
    def left_in_window(self) -> int:
        """How many messages that fall due while we watch have not arrived yet."""
        end_us = self.window[1] + 1_000_000
        unsure = self._unknown_cancels()
        near = (number for number, due_us in self.due.items() if due_us < end_us)
        done = self.first_started.keys() | self.cancelled | unsure
        return sum(number not in done for number in near)

    def _opened(self, told: dict[str, Any]) -> None:
        self.opened.append(told)

    def _window(self, told: dict[str, Any]) -> None:
        self.window = (told["from_us"], told["to_us"])

    def _produced(self, told: dict[str, Any]) -> None:
        for number, due_us, status in zip(told["ids"], told["due"], told["status"], strict=True):
            if status == 0:
                self.due[number] = due_us
                self.produced_at[number] = told["at_us"]

    def _moving(self, told: dict[str, Any]) -> None:
        self._asked[len(self.opened), told["call"]] = told

    _cancelling = _moving

    def _moved(self, told: dict[str, Any]) -> None:
        asked = self._asked.pop((len(self.opened), told["call"]))
        for number, due_us, status in zip(asked["ids"], asked["due"], told["status"], strict=True):
            if status == 0:
                self.due[number] = due_us
                self.moved += 1

    def _cancelled(self, told: dict[str, Any]) -> None:
        asked = self._asked.pop((len(self.opened), told["call"]))
        answers = zip(asked["ids"], told["status"], strict=True)
        self.cancelled |= {number for number, status in answers if status == 0}

    def _delivered(self, told: dict[str, Any]) -> None:
        for number, started_us in zip(told["ids"], told["started"], strict=True):
            self.after_ack += number in self.acked
            self.first_started.setdefault(number, started_us)
            self.deliveries.append((number, started_us))

    def _acked(self, told: dict[str, Any]) -> None:
        answers = zip(told["ids"], told["status"], strict=True)
        self.acked |= {number for number, status in answers if status == 0}

    def _remaining(self, told: dict[str, Any]) -> None:
        self.remaining |= dict(zip(told["ids"], told["due"], strict=True))

    def _counts(self, told: dict[str, Any]) -> None:
        self.states = told["states"]

    def _forecast(self, told: dict[str, Any]) -> None:
        self.forecast = list(zip(told["start"], told["count"], strict=True))

    def _closed(self, told: dict[str, Any]) -> None:
        self.closed = told

    def _unknown_cancels(self) -> set[int]:
        asked = (told for told in self._asked.values() if told["fact"] == "cancelling")
        return {number for told in asked for number in told["ids"]}

    def _unknown_moves(self) -> dict[int, int]:
        asked = [told for told in self._asked.values() if told["fact"] == "moving"]
        return {n: due for told in asked for n, due in zip(told["ids"], told["due"], strict=True)}

    def verdict(self) -> Verdict:
        """What follows, once the last process has closed."""
        moves, cancels = self._unknown_moves(), self._unknown_cancels()
        seen = self.first_started.keys()
        lost = self.due.keys() - self.cancelled - cancels - seen - self.remaining.keys()
        early = sum(
            started_us < min(self.due[number], moves.get(number, self.due[number]))
            for number, started_us in self.deliveries
            if number in self.due
        )
        misplaced = sum(
            due_us not in (self.due[number], moves.get(number))
            for number, due_us in self.remaining.items()
            if number in self.due
        )
        before, outage, after, up = self._lateness()
        reopened_us = self.opened[-1]["at_us"]
        return Verdict(
            lost=len(lost),
            misplaced=misplaced,
            early=early,
            after_cancel=len(self.cancelled & seen),
            after_ack=self.after_ack,
            scheduled=len(self.due),
            delivered=len(seen),
            delivered_again=len(self.deliveries) - len(seen),
            moved=self.moved,
            cancelled=len(self.cancelled),
            unknown=len(moves.keys() | cancels),
            before=before,
            outage=outage,
            after=after,
            up=up,
            outage_seconds=(reopened_us - self.killed_at_us) / 1e6,
            open_seconds=self.opened[-1]["seconds"],
            close_seconds=self.closed["seconds"],
            checkpoints=self.closed["checkpoints"],
            states=self.states,
            forecast=self.forecast,
        )

    def _lateness(self) -> tuple[Lateness, Lateness, Lateness, Lateness]:
        known = [number for number in self.first_started if number in self.due]
        started = np.array([self.first_started[n] for n in known], dtype=np.int64)
        due = np.array([max(self.due[n], self.produced_at[n]) for n in known], dtype=np.int64)
        late = started - due
        before = started < self.killed_at_us
        waited = ~before & (due < self.opened[-1]["at_us"])
        groups = (before, waited, ~before & ~waited, ~waited)
        first, second, third, fourth = (Lateness.of(late[group]) for group in groups)
        return first, second, third, fourth
