"""What a broker process has of its cluster: the connection to NATS, its shards' storage, its place among members.

It is made before the host, which begins without a shard; `join` comes when the door answers, because from then
on clients are sent here.
"""

from __future__ import annotations

import re
import secrets
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from fasti.broker.host import Host
from fasti.broker.metrics.counts import Metrics
from fasti.cluster.bulletins import MemberSubjects
from fasti.cluster.charter import Charter, settle_charter
from fasti.cluster.damage import DamageBook
from fasti.cluster.local_caches import LocalCaches
from fasti.cluster.member_records import MemberRecord, MemberSettings
from fasti.cluster.nats import NatsConnection
from fasti.cluster.rescue import CacheAnswers
from fasti.cluster.server_room import UNBOUNDED, ServerRoom
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.doors.cluster_drain import Drains
from fasti.doors.cluster_member import ClusterMember
from fasti.doors.cluster_peers import ClusterPeers, PeerAnswers
from fasti.doors.cluster_watch import ClusterWatch
from fasti.doors.nats_check import check_servers, nats_options
from fasti.doors.nats_wait import NatsWait, ended_by_signals
from fasti.errors import Unavailable
from fasti.runtime import Runtime
from fasti.settings.load import ServeSettings
from fasti.settings.values import Address

# Of each shard's blocks, on the local disk.
_BLOCKS_CACHE_BYTES = 1 << 30


class ClusterProcess:
    """One per process of a cluster. For one thread."""

    def __init__(self, settings: ServeSettings, runtime: Runtime | None = None) -> None:
        """Waits for NATS. Raises `unavailable` if it doesn't answer in the end, `unauthenticated` if it doesn't
        want this broker, `invalid_argument` if its servers are not to be trusted, or the cluster is another one.
        """
        assert settings.cluster is not None
        assert settings.nats is not None
        self._settings, self._cluster, self._runtime = settings, settings.cluster, runtime
        self._book = DamageBook()
        self._server_room = ServerRoom(settings.nats_replicas)
        with ended_by_signals(), ExitStack() as undo:
            wait = NatsWait(settings.nats_wait / 1e6)
            options = nats_options(settings)
            self._connection = wait.insist("the connection", lambda: NatsConnection(options))
            undo.callback(self._connection.close)
            check = partial(check_servers, settings, self._connection)
            self._servers = wait.insist("the check of the servers", check)
            undo.callback(self._servers.close)
            self.charter = wait.insist("the cluster's stream", self._settle_charter)
            undo.pop_all()
        # A cluster that is made anew under its old name has blocks and packs of the same names.
        directory = settings.data / "cluster-cache" / self.charter.identity
        self._caches = LocalCaches(
            directory, settings.cluster, _BLOCKS_CACHE_BYTES, settings.nats_packs_size
        )
        self._member: ClusterMember | None = None
        self._watch: ClusterWatch | None = None
        self._answers: PeerAnswers | None = None
        self._cache_answers: CacheAnswers | None = None

    def _settle_charter(self) -> Charter:
        settings = self._settings
        return settle_charter(
            self._connection,
            self._cluster,
            settings.shards,
            settings.nats_replicas,
            secrets.token_hex(8),
        )

    def make_host(self, metrics: Metrics) -> Host:
        """A host without a shard."""
        settings = self._settings
        # A leap that the other members' clocks don't have is not believed before it is found out.
        leap_us = min(settings.shard.clock_leap_max_us, settings.max_skew)
        # Checkpoints make room in the streams: they come before these are full.
        streams_bytes = min(settings.nats_journal_size, settings.nats_blocks_size or UNBOUNDED)
        checkpoint_bytes = min(settings.shard.checkpoint_bytes, streams_bytes // 4)
        host = Host(
            {},
            replace(settings.shard, clock_leap_max_us=leap_us, checkpoint_bytes=checkpoint_bytes),
            shards=self.charter.shards,
            cluster=self.charter.identity,
            metrics=metrics,
            runtime=self._runtime,
        )
        host.cluster_view = self._view
        return host

    def _view(self) -> dict[str, Any]:
        """For the action `cluster`. Any thread."""
        view = None if self._member is None else self._member.view
        if view is None:
            raise Unavailable("this broker has not joined its cluster yet", retry_after_us=100_000)
        told = view.to_json()
        if self._watch is not None:
            told |= self._watch.to_json()
        return told

    def join(self, host: Host, listen: Address) -> None:
        """Clients are served at this address: shards may come."""
        address = str(self._settings.advertise or listen)
        name = self._settings.broker_name or re.sub(r"[^A-Za-z0-9_-]", "-", address)[-64:]
        host.address = address
        weight = self._settings.weight
        record = MemberRecord(name, address, weight, incarnation=secrets.randbits(53))
        subjects = MemberSubjects(self._cluster)
        member = ClusterMember(
            host,
            self._connection,
            self._cluster,
            record,
            partial(self._storage, name, address),
            MemberSettings(
                standbys=self._settings.standbys, max_skew_ms=self._settings.max_skew // 1000
            ),
        )
        host.peers = peers = ClusterPeers(self._connection, subjects, member.leader_of)
        host.cluster_drain = Drains(member, peers, weight).carry_out
        self._answers = PeerAnswers(host, self._connection, subjects.call(name))
        self._cache_answers = CacheAnswers(self._connection, self._cluster, self._caches)
        self._watch = ClusterWatch(
            host,
            self._connection,
            self._cluster,
            name,
            self._servers,
            self._book,
            self._settings.nats_replicas,
            self._server_room,
        )
        host.alarms = self._watch.alarms
        self._member = member
        member.start()
        self._watch.start()

    def _storage(self, name: str, address: str, shard: int) -> StreamStorage:
        settings = self._settings
        streams = StreamSettings(
            self._cluster,
            replicas=settings.nats_replicas,
            journal_bytes=settings.nats_journal_size,
            reserve_bytes=settings.nats_journal_size // 16,
            # Without a bound of their own NATS sets nothing aside for them.
            blocks_bytes=settings.nats_blocks_size or -1,
        )
        return StreamStorage(
            *(self._connection, streams, shard, name, address),
            caches=self._caches,
            book=self._book,
            server_room=self._server_room,
        )

    def leave(self) -> None:
        """Lets the shards go; behind the last session's end."""
        if self._watch is not None:
            self._watch.stop()
        if self._member is not None:
            self._member.stop()
        if self._answers is not None:
            self._answers.close()
        if self._cache_answers is not None:
            self._cache_answers.close()

    def close(self) -> None:
        """When the host is closed."""
        self._caches.close()
        self._servers.close()
        self._connection.close()
