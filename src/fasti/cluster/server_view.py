"""The NATS servers of a cluster as one broker sees them, for operators: a picture that doesn't change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fasti.cluster.damage import Damage
from fasti.cluster.names import ShardNames
from fasti.cluster.server_checks import ServerProblem
from fasti.cluster.server_reports import ServerReport


class ServerView(NamedTuple):
    """``state`` is `good`, `refused` (its settings or version), `damaged`, or `away`: it doesn't answer."""

    name: str
    version: str | None
    state: str
    # What is wrong with its settings, and what to do.
    problem: str | None
    # How many of the cluster's streams it leads.
    leads: int


class StreamsView(NamedTuple):
    """Of one shard: how many servers answer for the stream that has the fewest, and which one leads the journal."""

    shard: int
    copies: int
    has_quorum: bool
    leader: str | None


class ServersView(NamedTuple):
    """``streams`` has no shard of which no server says anything."""

    servers: tuple[ServerView, ...]
    streams: tuple[StreamsView, ...]
    damages: tuple[Damage, ...]

    def to_json(self) -> dict[str, Any]:
        """As the protocol's `cluster` answers it."""
        return {
            "servers": [server._asdict() for server in self.servers],
            "streams": [stream._asdict() for stream in self.streams],
            "damages": [damage._asdict() for damage in self.damages],
        }


def view_servers(
    reports: Sequence[ServerReport],
    seen: Iterable[str],
    problems: Iterable[ServerProblem],
    damages: Sequence[Damage],
    shards: Sequence[ShardNames],
    replicas: int,
) -> ServersView:
    """`seen` are the names of all servers that ever were there."""
    wrong = {problem.server: str(problem) for problem in problems}
    damaged = {damage.server for damage in damages}
    own = {stream for names in shards for stream in names.streams}
    answers = {report.name: report for report in reports}

    def server(name: str) -> ServerView:
        report = answers.get(name)
        if report is None:
            state = "damaged" if name in damaged else "away"
            return ServerView(name, None, state, None, 0)
        state = "damaged" if name in damaged else "refused" if name in wrong else "good"
        leads = sum(copy.leads for stream, copy in report.streams.items() if stream in own)
        return ServerView(name, report.version, state, wrong.get(name), leads)

    names = sorted({*seen, *answers})
    streams = (_streams(shard, reports, replicas) for shard in shards)
    there = tuple(view for view in streams if view is not None)
    return ServersView(tuple(map(server, names)), there, tuple(damages))


def _streams(
    names: ShardNames, reports: Sequence[ServerReport], replicas: int
) -> StreamsView | None:
    """None: no server that answers has anything of the shard; perhaps nobody has led it yet."""
    keepers = {
        stream: having
        for stream in names.streams
        if (having := [report for report in reports if stream in report.streams])
    }
    if not keepers:
        return None
    leaders = {
        stream: [report.name for report in having if report.streams[stream].leads]
        for stream, having in keepers.items()
    }
    copies = min(map(len, keepers.values()))
    # One that is alone may believe for a while that it leads.
    has_quorum = all(leaders.values()) and 2 * copies > replicas
    leader = next(iter(leaders.get(names.journal_stream, ())), None)
    return StreamsView(names.shard, copies, has_quorum, leader)
