"""Watches the NATS servers of a cluster: their settings, who is there, and damage of what they keep.

Every five seconds each server is asked for its own state (`server_reports.py`); every broker does so. Of the shards
that a broker leads it also has each copy of their streams read through (`roll_call.py`): when it begins to lead
one, when a server was started anew, when a reader has met something that can't be right, and each hour. It takes a
quarter of one thread at most while it reads.

What is damaged is said aloud once, told to the other brokers and to whoever asks (`cluster status`, health, metrics).
The leader of the shard moves the stream to a server whose copy is whole, makes a checkpoint, and removes nothing
from the shard's streams until they are whole again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any

from fasti.broker.host import Host
from fasti.broker.logs import fields
from fasti.broker.threads import Poller
from fasti.cluster.damage import (
    Damage,
    DamageBook,
    Run,
    confirmed,
    damage_in_rolls,
    damage_in_states,
)
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection
from fasti.cluster.rescue import lead_by
from fasti.cluster.roll_call import RollCall
from fasti.cluster.server_checks import ServerProblem, problems_of
from fasti.cluster.server_reports import ReplicaState, ServerReport, Servers
from fasti.cluster.server_room import ServerRoom
from fasti.cluster.server_view import ServersView, view_servers
from fasti.errors import FastiError, TimedOut, Unavailable

_log = logging.getLogger("fasti.broker.cluster")

LOOK_S = 5.0
# While the servers have little room left.
_LOW_S = 1.0
# A copy that may only have lagged is read once more after so long.
_AGAIN_S = 1.0
_EVERY_S = 3_600.0
# While something is damaged it is looked whether it is whole again.
_CURED_S = 30.0
_FAILED_S = 10.0
# A server that is damaged all over leads many streams: the rest is moved with the next look.
_MOVES_S = 5.0
_TELLS_S = 30.0
# Of the time that a reading takes, so much more is paused.
_PAUSES = 3.0


def damage_subject(cluster: str) -> str:
    """Where brokers tell each other what they have found."""
    return f"{cluster}.damage"


class _Reading:
    """How a stream was read last."""

    def __init__(self, at: float, servers: frozenset[tuple[str, str]]) -> None:
        self.at, self.servers = at, servers


class ClusterWatch:
    """One per process. `start` and `stop` are for one thread, `view` and `alarms` for any."""

    def __init__(
        self,
        host: Host,
        connection: NatsConnection,
        cluster: str,
        broker: str,
        servers: Servers,
        book: DamageBook,
        replicas: int,
        server_room: ServerRoom | None = None,
    ) -> None:
        """`server_room` is told what the servers say of their room."""
        self._server_room = server_room or ServerRoom(replicas)
        self._replicas = replicas
        self._host, self._connection, self._servers, self._book = host, connection, servers, book
        self._cluster, self._broker = cluster, broker
        self._monotonic = host.threads.runtime.monotonic
        self._reports: list[ServerReport] = []
        # Names of all servers that were ever seen, so that one that is away is missed.
        self._seen: set[str] = set()
        self._problems: list[ServerProblem] = []
        self._look_at = self._measure_at = 0.0
        self._readings: dict[str, _Reading] = {}
        # Those of shards that are led elsewhere, and since when.
        self._left: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._reading: Generator[float, None, None] | None = None
        self._reads = ""
        self._known: set[tuple[str, str]] = set()
        self._view: ServersView | None = None
        self._stops: list[Callable[[], None]] = []
        self._poller = Poller(host.threads, "fasti-watch", self.poll, parks=False)

    @property
    def view(self) -> ServersView | None:
        """As of the last look; None before the first."""
        return self._view

    def alarms(self) -> list[str]:
        """What an operator must know, in sentences."""
        found = list(map(str, self._problems))
        return found + list(map(str, self._book.all_known(self._monotonic())))

    def start(self) -> None:
        """Looks at once."""
        self._stops = [self._connection.listen(damage_subject(self._cluster), self._hear)]
        self._poller.start()

    def stop(self) -> None:
        """Looks no more."""
        self._poller.stop()
        for stop in self._stops:
            stop()
        self._servers.close()

    def _hear(self, data: bytes, _: str) -> None:
        """In the connection's thread."""
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(data)
            found = [Damage(*map(str, each)) for each in told["damages"][:1_000]]
            if told["broker"] != self._broker:
                until = self._monotonic() + 3 * LOOK_S
                self._book.hear(str(told["broker"]), found, until)

    # The step

    def poll(self) -> float:
        """Does what is due; returns when it wants to be called again."""
        if self._monotonic() >= self._look_at:
            self._look()
            self._look_at = self._monotonic() + LOOK_S
        elif self._server_room.is_low and self._monotonic() >= self._measure_at:
            self._ask()
        if self._reading is None:
            self._begin_reading()
        pause_s = LOOK_S
        if self._reading is not None:
            pause_s = self._read_on(self._reading)
        if self._server_room.is_low:
            pause_s = min(pause_s, self._measure_at - self._monotonic())
        return max(0.0, min(pause_s, self._look_at - self._monotonic()))

    def _ask(self) -> list[ServerReport]:
        """What each server says now; and how much room there is."""
        written_bytes = self._server_room.written_bytes
        reports = self._servers.ask()
        self._server_room.take(reports, written_bytes)
        self._measure_at = self._monotonic() + _LOW_S
        return reports

    def _look(self) -> None:
        before, self._reports = self._reports, self._ask()
        self._seen |= {report.name for report in self._reports}
        self._note_problems(problems_of(self._reports))
        led = self._led()
        streams: dict[str, bool] = {}
        for number in range(self._host.shards):
            streams |= self._names(number).streams
        self._book.note_states(damage_in_states(self._reports, before, streams))
        self._forget_left(led)
        self._act(led)
        told = {"broker": self._broker, "damages": self._book.own_findings}
        self._connection.send(damage_subject(self._cluster), json.dumps(told).encode())
        self._show()

    def _forget_left(self, led: Mapping[str, bool]) -> None:
        """What was found in shards that left is told for a while: until their new leader has read them."""
        now = self._monotonic()
        self._left = {
            stream: self._left.get(stream, now) for stream in self._readings if stream not in led
        }
        gone = {stream for stream, since in self._left.items() if now - since > _TELLS_S}
        self._book.forget(gone | {stream for stream in self._book.doubts if stream not in led})
        for stream in gone:
            del self._readings[stream]

    def _show(self) -> None:
        self._view = view_servers(
            self._reports,
            self._seen,
            self._problems,
            self._book.all_known(self._monotonic()),
            [self._names(number) for number in range(self._host.shards)],
            self._replicas,
        )

    def _names(self, shard: int) -> ShardNames:
        return ShardNames(self._cluster, shard)

    def _led(self) -> dict[str, bool]:
        """The streams of the shards that are led here."""
        streams: dict[str, bool] = {}
        for number in self._host.numbers:
            streams |= self._names(number).streams
        return streams

    def _note_problems(self, problems: list[ServerProblem]) -> None:
        for problem in problems:
            if problem not in self._problems:
                _log.error("%s", problem, extra=fields(server=problem.server))
        self._problems = problems

    # What is done about damage

    def _act(self, led: Mapping[str, bool]) -> None:
        damages = self._book.damages
        fresh = [each for each in damages if (each.server, each.stream) not in self._known]
        cured = self._known - {(each.server, each.stream) for each in damages}
        # Of a shard that is led elsewhere by now its leader tells.
        for server, stream in sorted(each for each in cured if each[1] in led):
            _log.warning("the copy of %s on NATS server %s is whole again", stream, server)
        self._known = {(each.server, each.stream) for each in damages}
        for damage in fresh:
            extra = fields(server=damage.server, stream=damage.stream)
            _log.error("damage: %s", damage, extra=extra)
        self._checkpoint({each.stream for each in fresh if each.stream in led})
        until = self._monotonic() + _MOVES_S
        for stream in dict.fromkeys(each.stream for each in damages if each.stream in led):
            with suppress(TimedOut, Unavailable):
                if self._monotonic() < until:
                    self._move(stream)

    def _move(self, stream: str) -> None:
        """Has a server lead it whose copy is whole, if there is one."""
        damaged = self._book.damaged_servers(stream)
        state = self._connection.stream_state(stream, 1.0)
        if state is None or state.leader not in damaged:
            return
        for server in state.followers:
            if server not in damaged:
                lead_by(self._connection, stream, server)
                _log.warning("%s is led by NATS server %s now, whose copy is whole", stream, server)
                return

    def _checkpoint(self, streams: set[str]) -> None:
        """Nobody waits for it: what the journal has is in blocks as well then."""
        for shard in self._host.all_shards():
            if streams & self._names(shard.place.number).streams.keys():
                with suppress(FastiError):
                    shard.housekeeper.checkpoint_now()

    # Reading all copies

    def _begin_reading(self) -> None:
        now, led = self._monotonic(), self._led()
        due = [each for each in self._book.doubts if each in led]
        due += [stream for stream in led if self._is_due(stream, now)]
        for stream in due:
            if now >= self._not_before.get(stream, 0.0):
                self._reads = stream
                self._reading = self._inspect(stream, led[stream])
                return

    def _is_due(self, stream: str, now: float) -> bool:
        last = self._readings.get(stream)
        if last is None or self._keepers(stream) - last.servers:
            return True
        pause_s = _CURED_S if self._book.damaged_servers(stream) else _EVERY_S
        return now - last.at > pause_s

    def _keepers(self, stream: str) -> frozenset[tuple[str, str]]:
        """The servers that have it, each in the life that it has now."""
        having = (report for report in self._reports if stream in report.streams)
        return frozenset((report.name, report.identity) for report in having)

    def _states(self, stream: str) -> dict[str, ReplicaState]:
        reports = (report for report in self._reports if stream in report.streams)
        return {report.name: report.streams[stream] for report in reports}

    def _read_on(self, reading: Generator[float, None, None]) -> float:
        began = self._monotonic()
        try:
            pause_s = next(reading)
        except StopIteration:
            self._reading = None
            self._act(self._led())
            self._show()
            return 0.0
        except FastiError as error:
            # It is not known what is there: that is no damage.
            self._reading = None
            self._not_before[self._reads] = self._monotonic() + _FAILED_S
            _log.info("the copies of %s could not be read: %s", self._reads, error)
            return 0.0
        return pause_s + _PAUSES * (self._monotonic() - began)

    def _inspect(self, stream: str, is_whole: bool) -> Generator[float, None, None]:
        keepers = self._keepers(stream)
        states = self._states(stream)
        lacks = damage_in_rolls((yield from self._roll(stream)), is_whole, states)
        lost: dict[str, int] = {}
        if lacks:
            yield _AGAIN_S
            states = self._states(stream)
            again = damage_in_rolls((yield from self._roll(stream)), is_whole, states)
            lost = confirmed(lacks, again)
        self._book.note_roll(stream, lost)
        self._not_before.pop(stream, None)
        self._readings[stream] = _Reading(self._monotonic(), keepers)

    def _roll(self, stream: str) -> Generator[float, None, dict[str, list[Run]]]:
        state = self._connection.stream_state(stream, 1.0)
        if state is None:
            raise Unavailable(f"there is no stream {stream}")
        servers = {state.leader, *state.followers} - {""} or {self._connection.server_name}
        call = RollCall(self._connection, stream, servers)
        for _ in call.steps():
            yield 0.0
        return call.rolls

    def to_json(self) -> dict[str, Any]:
        """What the protocol's `cluster` answers of it."""
        return {} if self._view is None else self._view.to_json()
