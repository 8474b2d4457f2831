"""What the demo of a cluster saw besides: who led what when, and how long each shard was silent.

A shard is silent between two deliveries of its messages. There is traffic for every shard all the time, so the
longest silence after a kill is what the kill cost, in the eyes of consumers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from examples.demo.facts import Facts, Lateness, Verdict
from fasti.model import partition_of


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run, until the next kill: how late what was due in it came, and the longest silence."""

    name: str
    lateness: Lateness
    silence_s: float


@dataclass(frozen=True, slots=True)
class Leadership:
    """From this moment on, in seconds of the run, a broker leads a shard."""

    at_s: float
    shard: int
    broker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """The outcome of a run on a cluster."""

    verdict: Verdict
    acknowledged: int
    phases: list[Phase]
    leaderships: list[Leadership]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.verdict.ok

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        own = {
            "acknowledged": self.acknowledged,
            "phases": [asdict(phase) for phase in self.phases],
            "leaderships": [asdict(each) for each in self.leaderships],
        }
        return {**self.verdict.to_dict(), **own}


@dataclass(slots=True)
class ClusterFacts(Facts):
    """All that is known so far. For one thread at a time."""

    # When each part of the run began, and what it is called.
    begins: list[tuple[int, str]] = field(default_factory=list)
    changes_of_leaders: list[tuple[int, int, str, int]] = field(default_factory=list)

    def led(self, at_us: int, shard: int, broker: str, epoch: int) -> None:
        """Another broker was seen to lead a shard, or the same one anew."""
        self.changes_of_leaders.append((at_us, shard, broker, epoch))

    def cluster_verdict(self, verdict: Verdict) -> ClusterVerdict:
        """What follows besides the verdict, when all is told."""
        begun_us = self.story[0][0] if self.story else 0
        return ClusterVerdict(
            verdict,
            len(self.acked),
            self._phases(),
            [
                Leadership(round((at - begun_us) / 1e6, 2), shard, broker, epoch)
                for at, shard, broker, epoch in self.changes_of_leaders
            ],
        )

    def _phases(self) -> list[Phase]:
        ends = [at_us for at_us, _ in self.begins[1:]] + [1 << 62]
        return [
            Phase(name, self._late_within(begin_us, end_us), self._silence_s(begin_us, end_us))
            for (begin_us, name), end_us in zip(self.begins, ends, strict=True)
        ]

    def _late_within(self, begin_us: int, end_us: int) -> Lateness:
        late = []
        for number in self.first_started.keys() & self.due.keys() - self._unknown_moves.keys():
            due_us = max(self.due[number], self.asked_at[number])
            if begin_us <= due_us < end_us:
                late.append(self.first_started[number] - due_us)
        return Lateness.of(np.array(late, dtype=np.int64))

    def _silence_s(self, begin_us: int, end_us: int) -> float:
        """Of all partitions; one that is silent when the part begins counts from there."""
        times: dict[int, list[int]] = defaultdict(list)
        end_us = min(end_us, max(self.first_started.values(), default=begin_us))
        for number, started_us in self.first_started.items():
            times[partition_of(number)].append(started_us)
        longest_us = 0
        for found in times.values():
            moments = sorted(at for at in found if begin_us <= at < end_us)
            marks = np.array([begin_us, *moments])
            longest_us = max(longest_us, int(np.diff(marks).max(initial=0)))
        return round(longest_us / 1e6, 3)
