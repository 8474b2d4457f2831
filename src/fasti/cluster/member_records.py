"""What brokers tell of themselves, and what one broker knows of another from it.

A record is stored and changes rarely. A beat is not stored: every 100 ms, on a plain subject. Of a member
one knows three things, and none of them is the truth:

- Whether it lives. *No responders* twice in a row, or a refused door: gone. `silence_ms` without a beat:
  suspected. A beat brings it back, and so does a record of a new incarnation.
- Its clock, beside one's own. A beat can only be late, never early, so of the last few differences the
  highest is nearest to the truth: a broker that slept doesn't take old beats for slow clocks.
- What it does for which shards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fasti.cluster.writer_actions import Role

BEAT_MS = 100
# So many differences of clocks are kept: those of a second.
_DIFFERENCES = 10
_NO_RESPONDERS_MAX = 2

Liveness = Literal["alive", "suspected", "gone"]


class MemberRecord(NamedTuple):
    """A broker as it is written down. `formats`: the versions of the data formats that it reads."""

    name: str
    address: str
    weight: float = 1.0
    formats: frozenset[int] = frozenset({1})
    incarnation: int = 0


class ShardBeat(NamedTuple):
    """A broker's part in one shard. A candidate's epoch is the one that it stands for.

    `sequence` is the place of the stream that it has reached, `version` that of a leader's manifest.
    """

    shard: int
    role: Role
    epoch: int
    sequence: int
    version: int = 0


class Beat(NamedTuple):
    """What a broker says of itself every 100 ms."""

    name: str
    incarnation: int
    now_us: int
    shards: tuple[ShardBeat, ...] = ()


@dataclass(frozen=True)
class MemberSettings:
    """Times and limits of a cluster's members; all brokers of a cluster should have the same."""

    standbys: int = 1
    silence_ms: int = 2_000
    max_skew_ms: int = 250
    # How long another must rank first before its shard is handed over to it.
    hand_over_after_ms: int = 10_000
    # A handover that takes longer is called off: callers wait meanwhile.
    hand_over_max_ms: int = 2_000
    # So long the others wait for one that says that it takes a shard over: to load a large one takes time.
    candidate_ms: int = 15_000
    # The target of a handover may be so many packs behind when it begins: what a busy shard appends between
    # two of its beats, and what it reads within a tenth of a second.
    lag_packs_max: int = 256
    # A broker that has just started, or slept, hears the others before it stands.
    listen_ms: int = 500
    # The format that leaders write.
    level: int = 1


class Sighting:
    """One broker's view of another. One thread at a time."""

    def __init__(self, record: MemberRecord, now_ms: int) -> None:
        self._begin(record, now_ms)

    def _begin(self, record: MemberRecord, now_ms: int) -> None:
        self.record = record
        self.heard_ms = now_ms
        self.shards: dict[int, ShardBeat] = {}
        self._gone = False
        self._no_responders = 0
        self._differences_us: deque[int] = deque(maxlen=_DIFFERENCES)

    def update(self, record: MemberRecord, now_ms: int) -> None:
        """The record was written anew; a new incarnation begins with nothing."""
        if record.incarnation != self.record.incarnation:
            self._begin(record, now_ms)
        self.record = record

    def hear(self, beat: Beat, now_ms: int, wall_us: int) -> bool:
        """A beat came, at this moment by one's own clock. False: it is of another incarnation."""
        if beat.incarnation != self.record.incarnation:
            return False
        self.heard_ms, self._gone, self._no_responders = now_ms, False, 0
        self.shards = {item.shard: item for item in beat.shards}
        self._differences_us.append(beat.now_us - wall_us)
        return True

    def forget_clock(self) -> None:
        """One's own clock was set: what was known beside it says nothing any more."""
        self._differences_us.clear()

    def miss(self) -> None:
        """A ping found nobody who listens."""
        self._no_responders += 1
        self._gone = self._gone or self._no_responders >= _NO_RESPONDERS_MAX

    def answer(self, now_ms: int) -> None:
        """A ping was answered: it lives, though its beats may not come through."""
        self.heard_ms, self._gone, self._no_responders = now_ms, False, 0

    def refuse(self) -> None:
        """Its door refused a connection: there is no process."""
        self._gone = True

    def liveness(self, now_ms: int, silence_ms: int) -> Liveness:
        """What to think of it now."""
        if self._gone:
            return "gone"
        return "suspected" if now_ms - self.heard_ms >= silence_ms else "alive"

    @property
    def ahead_us(self) -> int | None:
        """How far its clock is ahead of one's own; None: not known."""
        return max(self._differences_us, default=None)
