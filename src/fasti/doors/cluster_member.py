"""A broker's place in its cluster: hears the others, and leads the shards that fall to it.

`Members` (cluster/members.py) decides, this one acts: it sends beats and pings, has its host take over a shard
(`Host.add` opens the shard's storage, which fences whoever led it) and let one go (`Host.drop`), and tells the
host's map where the others are. Taking over and letting go take time, so each has a thread that ends with it;
everything else happens in `poll`, the one step of a thread that never waits for NATS.

Of the shards that it stands by for it has standbys (doors/cluster_standbys.py), which beats tell how far to read;
a ping that finds nobody has them read to the end, so that they have it all when the leader is given up.

A handover: the leader holds what callers ask for, both tell each other at once how far they are, and when the
other has it all the leader lets go: `LeaderYielded` is in the stream, its callers are told where to go.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fasti.broker.host import Host
from fasti.broker.logs import fields
from fasti.broker.shard import Shard
from fasti.broker.threads import Poller
from fasti.cluster.bulletins import MemberSubjects, decode_beat, encode_beat, is_urgent
from fasti.cluster.cluster_view import ClusterView, standing_by, view_cluster
from fasti.cluster.member_records import MemberRecord, MemberSettings
from fasti.cluster.members import (
    FollowShard,
    LeaveShard,
    Members,
    PingMember,
    ResumeAdmitting,
    SendBeat,
    StandForShard,
    StopAdmitting,
    YieldShard,
    find_heir,
)
from fasti.cluster.nats import NatsConnection
from fasti.cluster.standby import Standby
from fasti.cluster.stream_journal import StreamJournal
from fasti.cluster.stream_storage import OpenStream, StreamStorage
from fasti.cluster.writer_actions import Role
from fasti.core.engine import Engine
from fasti.core.layout import ShardPlace
from fasti.doors.cluster_clock import ClockWatch
from fasti.doors.cluster_standbys import Standbys
from fasti.errors import Corruption, FastiError
from fasti.settings.values import read_address

_log = logging.getLogger("fasti.broker.cluster")

# A ping that takes longer says nothing.
_PING_S = 1.0
# A door that takes longer to answer says nothing either.
_KNOCK_S = 0.5
# After a take-over that failed.
_PAUSE_MS = 500
# For so long after a word of a handover everything is told at once.
_HASTE_MS = 1_000
# So often it is looked at how far a shard is whose callers wait.
_HELD_S = 0.01
# After one that found that something is lost: every server and every broker was asked for it.
_LOST_PAUSE_MS = 10_000
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
        make_storage: Callable[[int], StreamStorage],
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
        self._standbys = Standbys(host, self._make_standby, self._caught_up)
        # Until when it is urgent what this broker and others say.
        self._haste_until = 0
        self._beat_now = False
        # Shards whose callers wait for a handover, and how far the other was told that they are.
        self._held: dict[int, int] = {}
        self._yields: dict[int, tuple[int, str]] = {}
        self._yielded_ms: dict[int, int] = {}
        # What the last beat of each member said that the time is.
        self._beat_us: dict[str, int] = {}
        # These are replaced as a whole.
        self._standing: dict[int, list[str]] = {}
        self._leaders: dict[int, str] = {}
        self._view: ClusterView | None = None
        self._watch = ClockWatch(host, self._members.clocks)
        # Members at whose doors somebody knocks.
        self._knocks: set[str] = set()
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
        self._host.standby_addresses = lambda shard: self._standing.get(shard, [])
        self._standbys.start()
        self._stops = [
            self._connection.listen(self._subjects.beats, self._take_beat),
            self._connection.listen(self._subjects.ping(self.name), self._answer_ping),
        ]
        self._poller.start()

    def stop(self) -> None:
        """Leaves: lets its shards go, one after the other, to whoever takes them."""
        self._stopping.set()
        self._poller.stop()
        self._standbys.stop()
        for shard in self._host.all_shards():
            number, now_ms = shard.place.number, self._now_ms()
            to = find_heir(self._members, number, now_ms) or ""
            epoch = self._drop(shard, to)
            self._yields[number] = (epoch, to)
            self._members.play(number, Role.IDLE, epoch, 0, now_ms)
            # The others went on meanwhile: a beat says how far all is at its time.
            self._play(self._now_ms())
            self._send_beat(urgent=True)
        for stop in self._stops:
            stop()

    # The connection's thread

    def _take_beat(self, data: bytes, _: str) -> None:
        self._heard.append((self._hear, (data, self._monotonic())))
        if is_urgent(data):
            self._haste_until = self._now_ms() + _HASTE_MS
        if self._haste_until > self._now_ms():
            self._poller.wake()

    def _answer_ping(self, _: bytes, reply_to: str) -> None:
        if reply_to:
            self._connection.send(reply_to, b"")

    def _take_pong(self, name: str, answered: bool | None) -> None:
        if answered is not None:
            self._heard.append((self._hear_pong, (name, answered)))
            if not answered:
                self._poller.wake()

    # The standbys' thread

    def _make_standby(self, shard: int) -> Standby:
        settings, place = self._host.settings, ShardPlace(shard, self._host.shards)

        def make_engine() -> Engine:
            return Engine(settings.memory_bytes, settings.leases_max, settings.limits, place)

        return Standby(shard, self._make_storage(shard), make_engine)

    def _caught_up(self) -> None:
        """A leader that hands over waits for this, and so does whoever was yielded to."""
        if self._haste_until > self._now_ms():
            self._beat_now = True
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
        self._watch.look(self._members.alive(now_ms))
        plan = self._members.decide(now_ms)
        self._note_leaders(now_ms)
        for duty in plan.duties:
            self._do(duty, now_ms)
        self._tell_held()
        if self._beat_now:
            self._beat_now = False
            self._send_beat(urgent=True)
        wait_s = max(0.0, (plan.wake_ms - self._now_ms()) / 1000)
        return min(wait_s, _HELD_S) if self._held else wait_s

    def _tell_held(self) -> None:
        """While callers wait for a handover, the other hears of each pack at once."""
        for number, told in list(self._held.items()):
            led = self._find(number)
            if led is None:
                del self._held[number]
                continue
            journal = led.store.journal
            assert isinstance(journal, StreamJournal)
            if journal.stream_sequence != told:
                self._held[number], self._beat_now = journal.stream_sequence, True

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
        self._members.hear(beat, now_ms, self._watch.time_us(came_s))
        for shard, (epoch, to) in yields.items():
            if 0 <= shard < self._host.shards:
                self._members.yielded(shard, epoch, to)
                self._host.map.forget(shard, epoch)
        # What it had when it said the time the last time, it tells now.
        before_us, self._beat_us[record.name] = self._beat_us.get(record.name, 0), beat.now_us
        for item in beat.shards:
            if item.role is Role.LEADER and 0 <= item.shard < self._host.shards and item.epoch:
                self._host.map.note(item.shard, item.epoch, record.address)
                self._standbys.hear(item.shard, item.sequence, item.version, before_us)

    def _hear_pong(self, name: str, answered: bool) -> None:
        if answered:
            self._members.answer(name, self._now_ms())
        else:
            self._members.miss(name)
            self._knock(name)
            self._standbys.hurry(shard for shard, led in self._leaders.items() if led == name)

    def _knock(self, name: str) -> None:
        """Nobody listens in NATS for a member. If its door refuses as well there is no process: the next ping
        need not be waited for.
        """
        other = self._members.others.get(name)
        if other is None or name in self._knocks:
            return
        self._knocks.add(name)

        def run() -> None:
            if _is_refused(other.record.address):
                self._heard.append((self._members.refuse, (name,)))
                self._poller.wake()
            self._knocks.discard(name)

        self._host.threads.runtime.thread(f"fasti-knock-{name}", run).start()

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
                assert isinstance(journal, StreamJournal)
                place = journal.epoch, journal.stream_sequence
                version = shard.store.version
                self._members.play(number, Role.LEADER, *place, now_ms, version)
                if self._members.epoch(number) > journal.epoch and not self._stopping.is_set():
                    # Its next append would say so; but where nothing happens there is none, and sessions wait.
                    self._move(number, Role.IDLE, self._step_down)
            elif (standby := self._standbys.find(number)) is not None:
                place = standby.epoch, standby.sequence
                self._members.play(number, Role.STANDBY, *place, now_ms)
                if standby.yielded is not None:
                    self._members.yielded(number, *standby.yielded)
            else:
                self._members.play(number, Role.IDLE, 0, 0, now_ms)
        for number in [n for n, since in self._yielded_ms.items() if now_ms - since > _YIELDS_MS]:
            del self._yielded_ms[number]
            self._yields.pop(number, None)

    def _note_leaders(self, now_ms: int) -> None:
        found = ((n, self._members.leader(n, now_ms)) for n in range(self._host.shards))
        self._leaders = {number: name for number, name in found if name is not None}
        self._standing = {n: standing_by(self._members, n) for n in range(self._host.shards)}
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
                self._standbys.follow(shard)
            case LeaveShard(shard):
                self._standbys.leave(shard)
            case StandForShard(shard):
                if shard not in self._moving and now_ms >= self._pause_until.get(shard, 0):
                    self._move(shard, Role.CANDIDATE, self._take_over)
            case YieldShard(shard, to):
                if shard not in self._moving:
                    self._move(shard, Role.LEADER, lambda shard: self._let_go(shard, to))
            case StopAdmitting(shard):
                self._held[shard] = 0
                self._hold(shard, True)
                self._haste_until = now_ms + _HASTE_MS
            case ResumeAdmitting(shard):
                self._held.pop(shard, None)
                self._hold(shard, False)

    def _hold(self, shard: int, held: bool) -> None:
        led = self._find(shard)
        if led is not None:
            led.sequencer.hold(held)

    def _find(self, shard: int) -> Shard | None:
        """A shard that this broker leads."""
        return {each.place.number: each for each in self._host.all_shards()}.get(shard)

    def _send_beat(self, urgent: bool = False) -> None:
        beat = self._members.beat(self._watch.time_us(self._monotonic()))
        told = encode_beat(self._members.record, beat, self._yields, urgent)
        self._connection.send(self._subjects.beats, told)

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
        standby = self._standbys.take(shard)
        try:
            storage = self._make_storage(shard) if standby is None else standby.hand_over()
            warm = storage.followed is not None
            self._host.add(shard, storage, None)
        except BaseException as error:
            if standby is not None:
                standby.take_back()
                self._standbys.put_back(shard)
            if not isinstance(error, FastiError):
                raise
            pause_ms = _LOST_PAUSE_MS if isinstance(error, Corruption) else _PAUSE_MS
            self._pause_until[shard] = self._now_ms() + pause_ms
            extra = fields(shard=shard, code=error.code, why=error)
            _log.warning("a shard could not be taken over", extra=extra)
            return
        self._standbys.leave(shard)
        seconds, led = round(self._monotonic() - began, 3), self._find(shard)
        replayed = 0 if led is None else led.store.replayed
        extra = fields(shard=shard, seconds=seconds, warm=warm, replayed=replayed)
        _log.info("took a shard over", extra=extra)

    def _let_go(self, shard: int, to: str) -> None:
        led = self._find(shard)
        if led is None:
            return
        began = self._monotonic()
        epoch = self._drop(led, to)
        self._yields[shard], self._yielded_ms[shard] = (epoch, to), self._now_ms()
        self._haste_until, self._beat_now = self._now_ms() + _HASTE_MS, True
        seconds = round(self._monotonic() - began, 3)
        _log.info("handed a shard over", extra=fields(shard=shard, to=to, seconds=seconds))

    def _drop(self, shard: Shard, to: str) -> int:
        """Lets a shard go to that broker, or to whoever takes it; the epoch that is over."""
        epoch, storage = shard.store.journal.epoch, shard.store.storage
        if to and isinstance(storage, OpenStream):
            storage.heir = to
        other = self._members.others.get(to)
        self._host.drop(shard.place.number, other.record.address if other else None, epoch)
        return epoch

    def _step_down(self, shard: int) -> None:
        """Another leads it, under a higher epoch; where, the map has from its beats."""
        leader = self._host.map.leader(shard)
        self._host.drop(shard, leader.address, leader.epoch)

    def _now_ms(self) -> int:
        return int(self._monotonic() * 1000)


def _is_refused(address: str) -> bool:
    """Whether nothing listens at an address; one that doesn't answer may be anything."""
    try:
        socket.create_connection(read_address(address), _KNOCK_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        pass
    return False
