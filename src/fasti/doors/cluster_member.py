"""A broker's place in its cluster: hears the others, and leads the shards that fall to it.

`Members` (cluster/members.py) decides, this one acts: it sends beats and pings, has its host take over a shard
(`Host.add` opens the shard's storage, which fences whoever led it) and let one go (`Host.drop`), and tells the
host's map where the others are. Taking over and letting go take time, so each has a thread that ends with it;
everything else happens in `poll`, the one step of a thread that never waits for NATS.

A standby is cold for now: it reads the shard when it takes it over.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fasti.broker.clock import ClockState
from fasti.broker.host import Host
from fasti.broker.logs import fields
from fasti.broker.threads import Poller
from fasti.cluster.bulletins import MemberSubjects, decode_beat, encode_beat
from fasti.cluster.cluster_view import ClusterView, view_cluster
from fasti.cluster.member_records import MemberRecord, MemberSettings
from fasti.cluster.members import (
    FollowShard,
    LeaveShard,
    Members,
    PingMember,
    SendBeat,
    StandForShard,
    YieldShard,
)
from fasti.cluster.nats import NatsConnection
from fasti.cluster.writer_actions import Role
from fasti.errors import FastiError
from fasti.storage.storage_engine import StorageEngine

_log = logging.getLogger("fasti.broker.cluster")

# A ping that takes longer says nothing.
_PING_S = 1.0
# After a take-over that failed.
_PAUSE_MS = 500
# A cold standby is as near to the leader's end as it can be.
_COLD = 1 << 62
# A clock that is off by so much more than at the last look was set.
_STEP_US = 50_000
# For so long beats say that a shard was let go.
_YIELDS_MS = 3_000


class ClusterMember:
    """One per process. `start` and `stop` are for one thread, `leader_of` and `view` for any."""

    def __init__(
        self,
        host: Host,
        connection: NatsConnection,
        cluster: str,
        record: MemberRecord,
        make_storage: Callable[[int], StorageEngine],
        settings: MemberSettings | None = None,
    ) -> None:
        self._host, self._connection, self._cluster = host, connection, cluster
        self._subjects = MemberSubjects(cluster)
        self._make_storage = make_storage
        self._clock = host.threads.runtime.clock
        self._monotonic = host.threads.runtime.monotonic
        self._members = Members(record, range(host.shards), self._now_ms(), settings)
        # Told from the next poll on.
        self.weight = record.weight
        # What the connection's thread has brought, for the next poll. Bounded: old beats are worth nothing.
        self._heard: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque(maxlen=10_000)
        self._moving: dict[int, Role] = {}
        self._pause_until: dict[int, int] = {}
        self._follows: set[int] = set()
        self._yields: dict[int, tuple[int, str]] = {}
        self._yielded_ms: dict[int, int] = {}
        # Both are replaced as a whole.
        self._leaders: dict[int, str] = {}
        self._view: ClusterView | None = None
        self._ahead_us = self._clock_ahead_us()
        self._stopping = threading.Event()
        self._stops: list[Callable[[], None]] = []
        self._poller = Poller(host.threads, "fasti-member", self.poll, parks=False)

    @property
    def name(self) -> str:
        """Of this broker."""
        return self._members.record.name

    @property
    def leaders(self) -> dict[int, str]:
        """Who leads which shard, as far as is known."""
        return self._leaders

    def leader_of(self, shard: int) -> str | None:
        """The name of the broker that leads a shard."""
        return self._leaders.get(shard)

    @property
    def view(self) -> ClusterView | None:
        """The cluster as it was at the last poll; None: it has just come, and hears the others first."""
        return self._view

    def change_weight(self, weight: float) -> bool:
        """From now on; whether it was another. For any thread, but one at a time."""
        before, self.weight = self.weight, weight
        self._poller.wake()
        return before != weight

    def start(self) -> None:
        """Joins: the others hear of it, and it of them."""
        self._host.on_fenced = lambda _: self._poller.wake()
        self._stops = [
            self._connection.listen(self._subjects.beats, self._take_beat),
            self._connection.listen(self._subjects.ping(self.name), self._answer_ping),
        ]
        self._poller.start()

    def stop(self) -> None:
        """Leaves: lets its shards go, one after the other, to whoever takes them."""
        self._stopping.set()
        self._poller.stop()
        for shard in self._host.all_shards():
            number, epoch = shard.place.number, shard.store.journal.epoch
            self._host.drop(number, None, epoch)
            self._yields[number] = (epoch, "")
            self._members.play(number, Role.IDLE, epoch, 0, self._now_ms())
            self._send_beat()
        for stop in self._stops:
            stop()

    # The connection's thread

    def _take_beat(self, data: bytes, _: str) -> None:
        self._heard.append((self._hear, (data, self._monotonic())))

    def _answer_ping(self, _: bytes, reply_to: str) -> None:
        if reply_to:
            self._connection.send(reply_to, b"")

    def _take_pong(self, name: str, answered: bool | None) -> None:
        if answered is not None:
            self._heard.append((self._hear_pong, (name, answered)))
            if not answered:
                self._poller.wake()

    # The step

    def poll(self) -> float:
        """Does what is due; returns when it wants to be called again."""
        while self._heard:
            hear, heard = self._heard.popleft()
            hear(*heard)
        now_ms = self._now_ms()
        self._members.learn(self._members.record._replace(weight=self.weight), now_ms)
        self._play(now_ms)
        self._watch_clock(now_ms)
        plan = self._members.decide(now_ms)
        self._note_leaders(now_ms)
        for duty in plan.duties:
            self._do(duty, now_ms)
        return max(0.0, (plan.wake_ms - self._now_ms()) / 1000)

    def _hear(self, data: bytes, came_s: float) -> None:
        told = decode_beat(data)
        if told is None:
            return
        record, beat, yields = told
        now_ms = self._now_ms()
        if record.name == self.name:
            self._members.echo(now_ms)
            return
        self._members.learn(record, now_ms)
        # Of when it came, by the clock as it is now.
        self._members.hear(beat, now_ms, int(came_s * 1e6) + self._clock_ahead_us())
        for shard, (epoch, to) in yields.items():
            if 0 <= shard < self._host.shards:
                self._members.yielded(shard, epoch, to)
        for item in beat.shards:
            if item.role is Role.LEADER and 0 <= item.shard < self._host.shards:
                self._host.map.note(item.shard, item.epoch, record.address)

    def _hear_pong(self, name: str, answered: bool) -> None:
        if answered:
            self._members.answer(name, self._now_ms())
        else:
            self._members.miss(name)

    def _play(self, now_ms: int) -> None:
        """Its own part in each shard, as it is now."""
        here = {shard.place.number: shard for shard in self._host.all_shards()}
        self._members.stalled = frozenset(
            number
            for number, shard in here.items()
            if shard.ticks.stand or shard.committer.no_quorum
        )
        for number in range(self._host.shards):
            shard, role = here.get(number), self._moving.get(number)
            if role is not None:
                self._members.play(number, role, 0, 0, now_ms)
            elif shard is not None:
                # While it is opened again there is a journal that is closed: its numbers stay.
                journal = shard.store.journal
                place = journal.epoch, journal.last_sequence
                self._members.play(number, Role.LEADER, *place, now_ms)
                if self._members.epoch(number) > journal.epoch:
                    # Its next append would say so; but where nothing happens there is none, and sessions wait.
                    self._move(number, Role.IDLE, self._step_down)
            elif number in self._follows:
                self._members.play(number, Role.STANDBY, 0, _COLD, now_ms)
            else:
                self._members.play(number, Role.IDLE, 0, 0, now_ms)
        for number in [n for n, since in self._yielded_ms.items() if now_ms - since > _YIELDS_MS]:
            del self._yielded_ms[number]
            self._yields.pop(number, None)

    def _note_leaders(self, now_ms: int) -> None:
        found = ((n, self._members.leader(n, now_ms)) for n in range(self._host.shards))
        self._leaders = {number: name for number, name in found if name is not None}
        if not self._members.listens(now_ms):
            self._view = view_cluster(self._cluster, self._members, self._host.shards, now_ms)

    def _do(self, duty: Any, now_ms: int) -> None:
        match duty:
            case SendBeat():
                self._send_beat()
            case PingMember(name):
                tell = partial(self._take_pong, name)
                self._connection.probe(self._subjects.ping(name), _PING_S, tell)
            case FollowShard(shard):
                self._follows.add(shard)
            case LeaveShard(shard):
                self._follows.discard(shard)
            case StandForShard(shard):
                if shard not in self._moving and now_ms >= self._pause_until.get(shard, 0):
                    self._move(shard, Role.CANDIDATE, self._take_over)
            case YieldShard(shard, to):
                if shard not in self._moving:
                    self._move(shard, Role.LEADER, lambda shard: self._let_go(shard, to))
            case _:
                pass  # A handover admits nothing while the shard is let go, and is over then.

    def _send_beat(self) -> None:
        beat = self._members.beat(int(self._monotonic() * 1e6) + self._clock_ahead_us())
        self._connection.send(
            self._subjects.beats, encode_beat(self._members.record, beat, self._yields)
        )

    # Threads that end with what they do

    def _move(self, shard: int, role: Role, act: Callable[[int], None]) -> None:
        self._moving[shard] = role

        def run() -> None:
            try:
                act(shard)
            except Exception:
                _log.exception("shard %d: moving it failed", shard)
                self._pause_until[shard] = self._now_ms() + _PAUSE_MS
            finally:
                self._moving.pop(shard, None)
                self._poller.wake()

        self._host.threads.runtime.thread(f"fasti-shard-{shard}", run).start()

    def _take_over(self, shard: int) -> None:
        began = self._monotonic()
        try:
            self._host.add(shard, self._make_storage(shard), None)
        except FastiError as error:
            self._pause_until[shard] = self._now_ms() + _PAUSE_MS
            extra = fields(shard=shard, code=error.code, why=error)
            _log.warning("a shard could not be taken over", extra=extra)
            return
        seconds = round(self._monotonic() - began, 3)
        _log.info("took a shard over", extra=fields(shard=shard, seconds=seconds))

    def _let_go(self, shard: int, to: str) -> None:
        led = {each.place.number: each for each in self._host.all_shards()}.get(shard)
        if led is None:
            return
        epoch = led.store.journal.epoch
        self._host.drop(shard, None, epoch)
        self._yields[shard], self._yielded_ms[shard] = (epoch, to), self._now_ms()

    def _clock_ahead_us(self) -> int:
        """How far the time that the broker goes by is ahead of time that can't be set; or the time that it will
        go by, if a leap of its machine's clock is believed.
        """
        now_us = max(self._host.clock.now_us(), self._clock.wall_ns() // 1000)
        return now_us - int(self._monotonic() * 1e6)

    def _watch_clock(self, now_ms: int) -> None:
        ahead_us = self._clock_ahead_us()
        if abs(ahead_us - self._ahead_us) > _STEP_US:
            self._members.clocks.forget()
        self._ahead_us = ahead_us
        doubts = self._host.clock.state is ClockState.DOUBTING
        if doubts and self._members.clocks.is_right(self._members.alive(now_ms)):
            # The others' clocks say the same: it was set right.
            self._host.clock.accept()

    def _step_down(self, shard: int) -> None:
        """Another leads it, under a higher epoch; where, the map has from its beats."""
        leader = self._host.map.leader(shard)
        self._host.drop(shard, leader.address, leader.epoch)

    def _now_ms(self) -> int:
        return int(self._monotonic() * 1000)
