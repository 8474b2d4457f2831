"""What one broker believes of the others, and what it does about it: who stands, who yields, when.

Pure: the caller brings records, beats, pings' results and what it reads in the streams, and calls
`decide` at the time that the last `DutyPlan` named, or sooner. All of it is advice. A wrong belief costs a
take-over, never safety: the stream decides (`writer.py`). The rules:

- Members that live and can read the cluster's format are ranked for every shard (`placement.py`).
- A living leader is never deposed. Only when a shard has no leader (`shard_claims.py`) its members
  stand, rank r after r × 300 ms, those first that have followed it nearly to its end; after `LeaderYielded` its heir at once and the others one turn later. While
  one of them says that it stands, the others wait: to load a large shard takes time.
- The first in rank and the standbys follow the shard, and ping its leader. Who stood by before them goes on until
  they have caught up.
- A leader hands over to another that has ranked first for 10 s while it led, one shard at a time: it admits nothing,
  lets the other catch up, and yields. If that takes too long, or the other goes, or the journal doesn't answer, it admits again.
- A leader whose clock is off the members' median by more than `max_skew` (`member_clocks.py`) hands over at
  once, to the best in rank whose clock is right; a candidate so far ahead does not stand.
- A leader of weight 0 (its operator empties it) hands over at once as well, one shard after the other, to the
  first in rank that is near its end and whose clock is right. If nobody can take a shard it goes on leading it.
- One that has just started listens before it stands. One that has slept (`decide` came late) has heard
  nobody because it slept: it listens as well, and takes none for dead because of its own sleep. One that
  doesn't hear its own beats either is cut off itself, and does the same until it has heard them for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fasti.cluster.member_clocks import MemberClocks
from fasti.cluster.member_records import (
    BEAT_MS,
    Beat,
    Liveness,
    MemberRecord,
    MemberSettings,
    ShardBeat,
    Sighting,
)
from fasti.cluster.placement import RANK_WAIT_MS, Ranking, rank_members
from fasti.cluster.shard_claims import ShardClaim
from fasti.cluster.writer_actions import Role

# `decide` comes every beat. After such a gap the process has slept.
_SLEEP_MS = 1_000
# Own beats come back within milliseconds. Behind such a gap the others may be on their way back as well.
_DEAF_MS = 1_000
_BACK_MS = 3_000
# To read and apply so many small packs takes about as long as a rank's turn.
_TURN_PACKS = 1_000


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Publish this broker's beat."""


@dataclass(frozen=True, slots=True)
class PingMember:
    """Ask whether this member is there."""

    name: str


@dataclass(frozen=True, slots=True)
class FollowShard:
    """Become a standby of this shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class LeaveShard:
    """Stand by for this shard no more, and forget it."""

    shard: int


@dataclass(frozen=True, slots=True)
class StandForShard:
    """Take this shard over."""

    shard: int


@dataclass(frozen=True, slots=True)
class StopAdmitting:
    """Admit nothing more to this shard: it will be handed over."""

    shard: int
    to: str


@dataclass(frozen=True, slots=True)
class YieldShard:
    """The other has all that this broker has: append `LeaderYielded(to)`, then follow."""

    shard: int
    to: str


@dataclass(frozen=True, slots=True)
class ResumeAdmitting:
    """The handover is called off."""

    shard: int


Duty = (
    SendBeat | PingMember | FollowShard | LeaveShard | StandForShard | StopAdmitting | YieldShard
    | ResumeAdmitting
)  # fmt: skip


class DutyPlan(NamedTuple):
    """What to do now, and when to ask again at the latest."""

    duties: list[Duty]
    wake_ms: int


class HandoverState(NamedTuple):
    """A handover under way."""

    to: str
    since_ms: int
    yielding: bool = False


class Members:
    """The cluster as this broker sees it. One thread at a time; `now_ms` is a clock that never jumps."""

    def __init__(
        self,
        record: MemberRecord,
        shards: Iterable[int],
        now_ms: int,
        settings: MemberSettings | None = None,
    ) -> None:
        self.record = record
        self._settings = settings or MemberSettings()
        self._others: dict[str, Sighting] = {}
        self.clocks = MemberClocks(record.name, self._others, self._settings.max_skew_ms)
        self._claims = {shard: ShardClaim() for shard in shards}
        self._own: dict[int, ShardBeat] = {}
        # Since when which member ranks first.
        self._first: dict[int, tuple[str | None, int]] = {}
        self._handovers: dict[int, HandoverState] = {}
        # By shard, while it has no leader: who stands or stood for it, and since when.
        self._candidates: dict[int, dict[str, int]] = {}
        self._decided_ms = now_ms
        self._listen_until_ms = now_ms + self._settings.listen_ms
        self._beat_ms = now_ms
        # When it last heard its own beat; None: it never did.
        self._echo_ms: int | None = None
        # Shards of this leader whose journal doesn't answer: nobody could take them now, so they stay.
        self.stalled: frozenset[int] = frozenset()

    # What comes in

    def learn(self, record: MemberRecord, now_ms: int) -> None:
        """A member's record, when it is read or changes; also this broker's own."""
        if record.name == self.record.name:
            self.record = record
        elif record.name in self._others:
            other = self._others[record.name]
            if record.incarnation != other.record.incarnation:
                for claim in self._claims.values():
                    claim.lapse(record.name, now_ms)
            other.update(record, now_ms)
        else:
            self._others[record.name] = Sighting(record, now_ms)

    def forget(self, name: str) -> None:
        """A member's record was deleted."""
        self._others.pop(name, None)

    def hear(self, beat: Beat, now_ms: int, wall_us: int) -> bool:
        """A beat. False: its record is not known, or of another incarnation; read it, then."""
        other = self._others.get(beat.name)
        if other is None or not other.hear(beat, now_ms, wall_us):
            return beat.name == self.record.name
        for shard, claim in self._claims.items():
            claim.hear(beat.name, other.shards.get(shard), now_ms)
        return True

    def echo(self, now_ms: int) -> None:
        """This broker's own beat came back."""
        self._echo_ms = now_ms

    def answer(self, name: str, now_ms: int) -> None:
        """A ping was answered."""
        if name in self._others:
            self._others[name].answer(now_ms)

    def miss(self, name: str) -> None:
        """A ping got *no responders*."""
        if name in self._others:
            self._others[name].miss()

    def refuse(self, name: str) -> None:
        """A member's door refused a connection."""
        if name in self._others:
            self._others[name].refuse()

    def started(self, shard: int, name: str, epoch: int) -> None:
        """`LeaderStarted` was read in a shard's stream."""
        self._claims[shard].start(name, epoch)

    def yielded(self, shard: int, epoch: int, to: str) -> None:
        """`LeaderYielded` was read in a shard's stream."""
        self._claims[shard].give_up(epoch, to)

    def play(
        self, shard: int, role: Role, epoch: int, sequence: int, now_ms: int, version: int = 0
    ) -> None:
        """This broker's own part in a shard, whenever it changes: what its beats say."""
        item = ShardBeat(shard, role, epoch, sequence, version)
        if role is Role.LEADER and self.role(self.record.name, shard) is not Role.LEADER:
            # It may lead because the one that ranks first could not: that one gets time.
            self._first[shard] = (self._first.get(shard, (None, 0))[0], now_ms)
        if role in (Role.IDLE, Role.FENCED):
            self._own.pop(shard, None)
        else:
            self._own[shard] = item
        if role is not Role.LEADER:
            self._handovers.pop(shard, None)
        self._claims[shard].hear(self.record.name, item, now_ms)

    # What is believed

    def liveness(self, name: str, now_ms: int) -> Liveness:
        """What to think of another member."""
        return self._others[name].liveness(now_ms, self._settings.silence_ms)

    def alive(self, now_ms: int) -> set[str]:
        """The members that live, this one among them."""
        names = {name for name in self._others if self.liveness(name, now_ms) == "alive"}
        return names | {self.record.name}

    def beat(self, now_us: int) -> Beat:
        """This broker's own beat."""
        shards = tuple(self._own[shard] for shard in sorted(self._own))
        return Beat(self.record.name, self.record.incarnation, now_us, shards)

    def leader(self, shard: int, now_ms: int) -> str | None:
        """Who leads a shard."""
        return self._claims[shard].leader(self.alive(now_ms), now_ms)

    @property
    def others(self) -> Mapping[str, Sighting]:
        """The other members, by name; those that are gone as well."""
        return self._others

    def listens(self, now_ms: int) -> bool:
        """Whether it has just started, or slept, and may not have heard the others yet."""
        return now_ms < self._listen_until_ms

    def epoch(self, shard: int) -> int:
        """The highest epoch that was heard of; 0: none was."""
        return self._claims[shard].epoch

    def role(self, name: str, shard: int) -> Role:
        """A member's part in a shard, by its last beat."""
        item = self.part(name, shard)
        return Role.IDLE if item is None else item.role

    def part(self, name: str, shard: int) -> ShardBeat | None:
        """The same with its epoch and how far it is; None if it has none."""
        parts = self._own if name == self.record.name else self._others[name].shards
        return parts.get(shard)

    def ranking(self, shard: int, alive: set[str]) -> Ranking:
        """The members of a shard in order."""
        records = [other.record for other in self._others.values()] + [self.record]
        weights: Mapping[str, float] = {
            record.name: record.weight
            for record in records
            if record.name in alive and self._settings.level in record.formats
        }
        return rank_members(shard, weights, self._settings.standbys)

    # What to do

    def decide(self, now_ms: int) -> DutyPlan:
        """All that is due. To follow, leave, stand and yield are named again until `play` shows it done."""
        self._wake_up(now_ms)
        duties: list[Duty] = []
        alive = self.alive(now_ms)
        # What came late tells nothing about clocks.
        early, skewed = (set(), set()) if self.listens(now_ms) else self.clocks.skewed(alive)
        wakes: list[int] = []
        pings: set[str] = set()
        for shard, claim in self._claims.items():
            ranking = self.ranking(shard, alive)
            leader = claim.leader(alive, now_ms)
            duties += self._follow(shard, ranking)
            if leader is not None:
                self._candidates.pop(shard, None)
            if leader == self.record.name:
                duties += self._lead(shard, ranking, skewed, now_ms)
            elif leader is None:
                duties += self._stand(shard, ranking, early, now_ms, wakes)
            elif shard in self._own:
                pings.add(leader)
            self._watch_first(shard, ranking, now_ms)
        if now_ms >= self._beat_ms:
            duties += [SendBeat(), *(PingMember(name) for name in sorted(pings))]
            self._beat_ms = now_ms + BEAT_MS
        return DutyPlan(duties, min([self._beat_ms, *wakes]))

    def _wake_up(self, now_ms: int) -> None:
        slept_ms = now_ms - self._decided_ms
        self._decided_ms = now_ms
        deaf = self._echo_ms is not None and now_ms - self._echo_ms > _DEAF_MS
        if slept_ms > _SLEEP_MS or deaf:
            listen_ms = _BACK_MS if deaf else self._settings.listen_ms
            self._listen_until_ms = now_ms + listen_ms
            for other in self._others.values():
                other.heard_ms = min(now_ms, other.heard_ms + slept_ms)

    def _follow(self, shard: int, ranking: Ranking) -> list[Duty]:
        """The first and the standbys follow. Who is none of them any more leaves when they are as far as it is; a
        leader or a candidate is never told to.
        """
        wanted = ranking.names[: self._settings.standbys + 1]
        item = self._own.get(shard)
        if item is None:
            return [FollowShard(shard)] if self.record.name in wanted else []
        if item.role is not Role.STANDBY or self.record.name in wanted:
            return []
        relieved = all(_is_as_far(self, shard, name, item.sequence) for name in wanted)
        return [LeaveShard(shard)] if relieved else []

    def _stand(
        self, shard: int, ranking: Ranking, early: set[str], now_ms: int, wakes: list[int]
    ) -> list[Duty]:
        item, claim, name = self._own.get(shard), self._claims[shard], self.record.name
        wait_ms = _in_turn(self, shard, ranking).wait_ms(name)
        if wait_ms is None or name in early or (item is not None and item.role is Role.CANDIDATE):
            return []
        if claim.heir is not None:
            wait_ms = 0 if claim.heir == name else wait_ms + RANK_WAIT_MS
        assert claim.leaderless_since_ms is not None
        due_ms = max(claim.leaderless_since_ms, self._listen_until_ms) + wait_ms
        since_ms = self._candidates.setdefault(shard, {})
        for other in _candidates(self, shard, now_ms):
            # To load a large shard takes time; but each has it once.
            due_ms = max(due_ms, since_ms.setdefault(other, now_ms) + self._settings.candidate_ms)
        if now_ms >= due_ms:
            return [StandForShard(shard)]
        wakes.append(due_ms)
        return []

    def _lead(self, shard: int, ranking: Ranking, skewed: set[str], now_ms: int) -> list[Duty]:
        handover = self._handovers.get(shard)
        if handover is not None:
            return self._go_on(shard, handover, ranking, skewed, now_ms)
        if shard in self.stalled:
            return []
        target = self._successor(shard, ranking, skewed, now_ms)
        own = self._own.get(shard)
        if target is None or own is None or own.role is not Role.LEADER:
            return []
        if self._handovers:
            # One after the other: callers wait meanwhile.
            return []
        if not self._is_near(shard, target):
            return []
        self._handovers[shard] = HandoverState(target, now_ms)
        return [StopAdmitting(shard, target)]

    def _successor(self, shard: int, ranking: Ranking, skewed: set[str], now_ms: int) -> str | None:
        """To whom to hand over; None: to nobody."""
        me = self.record.name
        if me in skewed:
            able = (name for name in ranking.names if name != me and name not in skewed)
            return min(able, key=lambda name: _lag(self, shard, name), default=None)
        if self.record.weight == 0:
            near = (
                name for name in ranking.names if name not in skewed and self._is_near(shard, name)
            )
            return None if self._handovers else next(near, None)
        first, since_ms = self._first.get(shard, (None, now_ms))
        if first is None or first in (me, *skewed) or first != ranking.first:
            return None
        return first if now_ms - since_ms >= self._settings.hand_over_after_ms else None

    def _go_on(
        self, shard: int, handover: HandoverState, ranking: Ranking, skewed: set[str], now_ms: int
    ) -> list[Duty]:
        if handover.yielding:
            # `LeaderYielded` may be in the stream already: there is no way back but a take-over.
            return [YieldShard(shard, handover.to)]
        lost = handover.to not in ranking.names or handover.to in skewed or shard in self.stalled
        late = now_ms - handover.since_ms >= self._settings.hand_over_max_ms
        if lost or late:
            del self._handovers[shard]
            self._first[shard] = (ranking.first, now_ms)
            return [ResumeAdmitting(shard)]
        if _lag(self, shard, handover.to) > 0:
            return []
        self._handovers[shard] = handover._replace(yielding=True)
        return [YieldShard(shard, handover.to)]

    def _is_near(self, shard: int, name: str) -> bool:
        return _lag(self, shard, name) <= self._settings.lag_packs_max

    def _watch_first(self, shard: int, ranking: Ranking, now_ms: int) -> None:
        if self._first.get(shard, (None, 0))[0] != ranking.first:
            self._first[shard] = (ranking.first, now_ms)


def find_heir(members: Members, shard: int, now_ms: int) -> str | None:
    """Who should lead a shard that this broker gives up because it leaves: the first that follows it."""
    alive = members.alive(now_ms) - {members.record.name}
    names = members.ranking(shard, alive).names
    following = [name for name in names if members.role(name, shard) is Role.STANDBY]
    return next(iter([*following, *names]), None)


def _lag(members: Members, shard: int, name: str) -> float:
    """By how many packs a member is behind this leader; one that doesn't follow, or loads: for ever."""
    item, own = members.part(name, shard), members.part(members.record.name, shard)
    if item is None or own is None or item.role is not Role.STANDBY:
        return float("inf")
    if own.sequence and not item.sequence:
        return float("inf")
    return max(0, own.sequence - item.sequence)


def _in_turn(members: Members, shard: int, ranking: Ranking) -> Ranking:
    """In which order they stand: who would have much to read first lets those stand that have not."""
    furthest = max((_sequence(members, shard, name) for name in ranking.names), default=0)
    warm = [name for name in ranking.names if _is_as_far(members, shard, name, furthest)]
    cold = [name for name in ranking.names if name not in warm]
    return Ranking((*warm, *cold), ranking.standbys)


def _is_as_far(members: Members, shard: int, name: str, sequence: int) -> bool:
    """Whether a member has about all of a shard up to a place: it could lead it as soon."""
    return sequence - _sequence(members, shard, name) <= _TURN_PACKS


def _sequence(members: Members, shard: int, name: str) -> int:
    """How far a member is with a shard, by its last beat; 0 if it loads, or doesn't follow."""
    item = members.part(name, shard)
    return 0 if item is None else item.sequence


def _candidates(members: Members, shard: int, now_ms: int) -> list[str]:
    """Other members that are about to lead a shard."""
    others = members.alive(now_ms) - {members.record.name}
    return [name for name in others if members.role(name, shard) is Role.CANDIDATE]
