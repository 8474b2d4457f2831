"""What is fixed when a cluster is made: how many shards it has, and a name that no other cluster has.

One message in a stream of its own, written once: the first broker writes what it was told, and whoever comes
later reads it. Two that begin at once both write for a subject that has nothing; one of them is refused, and reads.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection, Refused, StoredMessage
from fasti.errors import InvalidArgument, TimedOut, Unavailable
from fasti.storage.formats import check_format

CHARTER_VERSION = 1
SHARDS = 12
_TRIES = 5


class Charter(NamedTuple):
    """Of one cluster. `identity` is drawn when it is made: clients tell clusters apart by it."""

    shards: int
    identity: str

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps({"format": CHARTER_VERSION, **self._asdict()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Charter:
        """Raises `NewerFormat`."""
        document = json.loads(data)
        check_format("the cluster's charter", document.pop("format"), CHARTER_VERSION)
        return cls(**document)


def settle_charter(
    connection: NatsConnection, cluster: str, shards: int | None, replicas: int, identity: str
) -> Charter:
    """The cluster's charter; `identity` is taken if there is none yet.

    Raises `InvalidArgument` if the cluster has another number of shards than is asked for, `Unavailable` if
    NATS can't tell.
    """
    ShardNames.of(cluster, 0)
    stream, subject = f"{cluster}-c", f"{cluster}.c"
    connection.ensure_stream(
        {
            "name": stream,
            "subjects": [subject],
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "deny_delete": True,
        }
    )
    stored = _read_or_write(connection, stream, subject, Charter(shards or SHARDS, identity))
    charter = Charter.decode(stored.data)
    if shards is not None and shards != charter.shards:
        raise InvalidArgument(
            f"the cluster {cluster!r} was made with {charter.shards} shards, and shards is {shards}: "
            "their number is fixed",
            field="shards",
        )
    return charter


def _read_or_write(
    connection: NatsConnection, stream: str, subject: str, mine: Charter
) -> StoredMessage:
    for _ in range(_TRIES):
        stored = connection.get(stream, subject=subject)
        if stored is not None:
            return stored
        try:
            connection.publish(subject, mine.encode(), last_subject_sequence=0)
        except (Refused, TimedOut, Unavailable):
            continue  # Only reading tells what is there now.
    raise Unavailable(f"the stream {stream} takes no message, and has none")
