"""What a broker process has of its cluster: the connection to NATS, its shards' storage, its place among members.

It is made before the host, which begins without a shard; `join` comes when the door answers, because from then
on clients are sent here.
"""

from __future__ import annotations

import re
import secrets
import ssl
from functools import partial
from typing import Any

from fasti.broker.host import Host
from fasti.broker.metrics.counts import Metrics
from fasti.cluster.bulletins import MemberSubjects
from fasti.cluster.charter import settle_charter
from fasti.cluster.member_records import MemberRecord, MemberSettings
from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.stream_storage import StreamSettings, StreamStorage
from fasti.doors.cluster_drain import Drains
from fasti.doors.cluster_member import ClusterMember
from fasti.doors.cluster_peers import ClusterPeers, PeerAnswers
from fasti.errors import Unavailable
from fasti.settings.load import ServeSettings
from fasti.settings.values import Address


class ClusterProcess:
    """One per process of a cluster. For one thread."""

    def __init__(self, settings: ServeSettings) -> None:
        """Raises `unavailable` if NATS doesn't answer, `invalid_argument` if the cluster is another one."""
        assert settings.cluster is not None
        assert settings.nats is not None
        self._settings, self._cluster = settings, settings.cluster
        credentials = settings.nats_credentials
        tls = ssl.create_default_context(cafile=str(settings.nats_ca)) if settings.nats_ca else None
        self._connection = NatsConnection(
            NatsOptions(settings.nats, tls, str(credentials) if credentials else None)
        )
        try:
            self.charter = settle_charter(
                self._connection,
                settings.cluster,
                settings.shards,
                settings.nats_replicas,
                secrets.token_hex(8),
            )
        except BaseException:
            self._connection.close()
            raise
        self._member: ClusterMember | None = None
        self._answers: PeerAnswers | None = None

    def make_host(self, metrics: Metrics) -> Host:
        """A host without a shard."""
        host = Host(
            {},
            self._settings.shard,
            shards=self.charter.shards,
            cluster=self.charter.identity,
            metrics=metrics,
        )
        host.cluster_view = self._view
        return host

    def _view(self) -> dict[str, Any]:
        """For the action `cluster`. Any thread."""
        view = None if self._member is None else self._member.view
        if view is None:
            raise Unavailable("this broker has not joined its cluster yet", retry_after_us=100_000)
        return view.to_json()

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
            MemberSettings(standbys=self._settings.standbys),
        )
        host.peers = peers = ClusterPeers(self._connection, subjects, member.leader_of)
        host.cluster_drain = Drains(member, peers, weight).carry_out
        self._answers = PeerAnswers(host, self._connection, subjects.call(name))
        self._member = member
        member.start()

    def _storage(self, name: str, address: str, shard: int) -> StreamStorage:
        settings = self._settings
        streams = StreamSettings(
            self._cluster,
            replicas=settings.nats_replicas,
            journal_bytes=settings.nats_journal_size,
            reserve_bytes=settings.nats_journal_size // 16,
            # No bound of their own: NATS would set so much aside at once.
            blocks_bytes=-1,
            cache_directory=settings.data / "cluster-cache",
        )
        return StreamStorage(self._connection, streams, shard, name, address)

    def leave(self) -> None:
        """Lets the shards go; behind the last session's end."""
        if self._member is not None:
            self._member.stop()
        if self._answers is not None:
            self._answers.close()

    def close(self) -> None:
        """When the host is closed."""
        self._connection.close()
