"""The cluster as one broker sees it, for operators: a picture that doesn't change, and that any thread may read.

Another broker may see it otherwise for a moment: all of it is belief, as `members.py` says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fasti.cluster.member_records import Liveness, MemberRecord
from fasti.cluster.members import Members
from fasti.cluster.writer_actions import Role


class MemberView(NamedTuple):
    """A broker. `clock_ahead_ms` is how far its clock is ahead of the members' median."""

    name: str
    address: str
    state: Liveness
    weight: float
    clock_ahead_ms: float = 0.0


class ShardView(NamedTuple):
    """A shard. Without a leader its epoch is the last one that was heard of."""

    shard: int
    leader: str | None
    epoch: int
    address: str | None
    standbys: tuple[str, ...]
    # By how many packs each standby is behind; None: it loads the shard, or has no room for it.
    lags: dict[str, int | None]


class ClusterView(NamedTuple):
    """By name, and by number. `broker` is who sees it so."""

    cluster: str
    broker: str
    members: tuple[MemberView, ...]
    shards: tuple[ShardView, ...]

    def to_json(self) -> dict[str, Any]:
        """As the protocol's `cluster` answers it."""
        return {
            "cluster": self.cluster,
            "broker": self.broker,
            "members": [member._asdict() for member in self.members],
            "shards": [
                {**shard._asdict(), "standbys": list(shard.standbys)} for shard in self.shards
            ],
            "leaderless": [shard.shard for shard in self.shards if shard.leader is None],
        }


def view_cluster(cluster: str, members: Members, shards: int, now_ms: int) -> ClusterView:
    """For the thread that `members` belongs to."""
    own = members.record
    addresses = {own.name: own.address}
    alive = members.alive(now_ms)
    seen = [_member(own, "alive", members.clocks.ahead_ms(own.name, alive))]
    for name, other in members.others.items():
        addresses[name] = other.record.address
        ahead_ms = members.clocks.ahead_ms(name, alive)
        seen.append(_member(other.record, members.liveness(name, now_ms), ahead_ms))
    return ClusterView(
        cluster,
        own.name,
        tuple(sorted(seen)),
        tuple(_shard(members, shard, addresses, now_ms) for shard in range(shards)),
    )


def standing_by(members: Members, shard: int) -> list[str]:
    """The addresses of those who follow a shard, by their last beats, however old those are.

    For readers who don't mind: where the servers are away nobody hears anybody.
    """
    records = [other.record for other in members.others.values()] + [members.record]
    follows = (Role.STANDBY, Role.CANDIDATE)
    return sorted(each.address for each in records if members.role(each.name, shard) in follows)


def _member(record: MemberRecord, state: Liveness, ahead_ms: float) -> MemberView:
    clock_ahead_ms = round(ahead_ms, 1)
    return MemberView(record.name, record.address, state, record.weight, clock_ahead_ms)


def _shard(members: Members, shard: int, addresses: dict[str, str], now_ms: int) -> ShardView:
    leader = members.leader(shard, now_ms)
    address = None if leader is None else addresses.get(leader)
    alive = sorted(members.alive(now_ms))
    standbys = tuple(name for name in alive if members.role(name, shard) is Role.STANDBY)
    lags = {name: _lag(members, shard, leader, name) for name in standbys}
    return ShardView(shard, leader, members.epoch(shard), address, standbys, lags)


def _lag(members: Members, shard: int, leader: str | None, name: str) -> int | None:
    led = None if leader is None else _sequence(members, shard, leader)
    follows = _sequence(members, shard, name)
    if led is None or not follows:
        return None
    return max(0, led - follows)


def _sequence(members: Members, shard: int, name: str) -> int | None:
    """How far a member has come in a shard, by its last beat."""
    own = name == members.record.name
    parts = members.beat(0).shards if own else members.others[name].shards.values()
    return next((item.sequence for item in parts if item.shard == shard), None)
