"""Brokers in virtual time that do what `Members` says, over streams that never fail.

A beat is heard by all after 5 ms. A take-over, a handover's yield and what is read in a stream take one
step of 10 ms. A broker can be killed (its pings get *no responders*), cut off, stopped for a while, take its
time to load, and have a wrong clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fasti.cluster.member_records import Beat, MemberRecord, MemberSettings
from fasti.cluster.members import (
    Duty,
    FollowShard,
    LeaveShard,
    Members,
    PingMember,
    ResumeAdmitting,
    SendBeat,
    StandForShard,
    StopAdmitting,
    YieldShard,
)
from fasti.cluster.writer_actions import Role

STEP_MS = 10


@dataclass
class Stream:
    epoch: int = 0
    leader: str | None = None
    sequence: int = 0
    events: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass
class Station:
    """One broker of the crowd."""

    members: Members
    roles: dict[int, Role]
    heard: dict[int, int]
    wake_ms: int
    dead: bool = False
    stopped_until_ms: int = 0
    clock_ms: int = 0
    # It follows, and has applied nothing yet.
    loads: bool = False
    inbox: list[Beat] = field(default_factory=list)


class Crowd:
    def __init__(self, names: str, shards: int = 4, **settings: int) -> None:
        self.now_ms = 0
        self.settings = MemberSettings(**settings)
        self.streams = {shard: Stream() for shard in range(shards)}
        self.stations: dict[str, Station] = {}
        self.incarnations: dict[str, int] = {}
        # What was done: (time, name, duty), without beats and pings.
        self.log: list[tuple[int, str, Duty]] = []
        for name in names:
            self.join(name)

    def join(self, name: str, weight: float = 1.0) -> None:
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        record = MemberRecord(name, f"{name}:1", weight, incarnation=incarnation)
        members = Members(record, self.streams, self.now_ms, self.settings)
        for other, station in self.stations.items():
            if other != name:
                station.members.learn(record, self.now_ms)
                members.learn(station.members.record, self.now_ms)
        roles = dict.fromkeys(self.streams, Role.IDLE)
        self.stations[name] = Station(members, roles, dict.fromkeys(self.streams, 0), self.now_ms)

    def kill(self, name: str) -> None:
        self.stations[name].dead = True

    def leaders(self) -> dict[int, str | None]:
        return {shard: stream.leader for shard, stream in self.streams.items()}

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            for name, station in self.stations.items():
                if not station.dead and station.stopped_until_ms <= self.now_ms:
                    self.live(name, station)

    def live(self, name: str, station: Station) -> None:
        members = station.members
        members_now = self.now_ms
        # As after a SIGSTOP: the timer comes first, then what has waited in the socket.
        if members_now >= station.wake_ms:
            plan = members.decide(members_now)
            assert plan.wake_ms > members_now
            station.wake_ms = plan.wake_ms
            for duty in plan.duties:
                self.do(name, station, duty)
        for beat in station.inbox:
            members.hear(beat, members_now, self.wall_us(station))
        station.inbox.clear()
        for shard in self.streams:
            self.read(name, station, shard)

    def wall_us(self, station: Station) -> int:
        return (self.now_ms + station.clock_ms) * 1000

    def do(self, name: str, station: Station, duty: Duty) -> None:
        if isinstance(duty, SendBeat):
            beat = station.members.beat(self.wall_us(station))
            for other, its in self.stations.items():
                if other != name and not its.dead:
                    its.inbox.append(beat)
            return
        if isinstance(duty, PingMember):
            if self.stations[duty.name].dead:
                station.members.miss(duty.name)
            return
        self.log.append((self.now_ms, name, duty))
        stream = self.streams[duty.shard]
        if isinstance(duty, FollowShard):
            self.play(station, duty.shard, Role.STANDBY)
        elif isinstance(duty, LeaveShard):
            self.play(station, duty.shard, Role.IDLE)
        elif isinstance(duty, StandForShard):
            stream.epoch, stream.leader = stream.epoch + 1, name
            stream.events.append(("started", name, stream.epoch))
            self.play(station, duty.shard, Role.LEADER)
        elif isinstance(duty, YieldShard):
            if stream.leader == name:
                stream.leader = None
            stream.events.append(("yielded", duty.to, stream.epoch))
            self.play(station, duty.shard, Role.STANDBY)
        else:
            assert isinstance(duty, StopAdmitting | ResumeAdmitting)

    def read(self, name: str, station: Station, shard: int) -> None:
        stream = self.streams[shard]
        if station.roles[shard] is Role.LEADER and stream.leader != name:
            self.play(station, shard, Role.FENCED)
        for kind, who, epoch in stream.events[station.heard[shard] :]:
            if kind == "started":
                station.members.started(shard, who, epoch)
            else:
                station.members.yielded(shard, epoch, who)
        station.heard[shard] = len(stream.events)
        if station.roles[shard] in (Role.LEADER, Role.STANDBY):
            self.play(station, shard, station.roles[shard])

    def play(self, station: Station, shard: int, role: Role) -> None:
        station.roles[shard] = role
        stream = self.streams[shard]
        behind = station.loads and role is Role.STANDBY
        sequence = 0 if behind else stream.sequence
        station.members.play(shard, role, stream.epoch, sequence, self.now_ms)

    def did(self, kind: type, since_ms: int = 0) -> list[tuple[int, str, Duty]]:
        return [item for item in self.log if item[0] >= since_ms and isinstance(item[2], kind)]
