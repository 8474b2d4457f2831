"""How the processes of one broker call each other: each has a door that only they can reach.

The doors are Unix sockets in the folder `peers` of the data directory (peer_folder.py). What comes in
there without a token is a process of this broker, the caller `PEER`: it may tell a shard what is in the
catalogue, which no client may. The HTTP process of a supervisor uses the same doors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from fasti.broker.host import SHARD_NUMBER, Host
from fasti.broker.peers import TIMEOUT_S
from fasti.doors.flight import Credentials, FlightDoor
from fasti.doors.link import BrokerLink
from fasti.doors.peer_folder import PeerFolder
from fasti.errors import Unavailable
from fasti.settings.peers import PeerMap, show_shards


class PeerDoor:
    """Of one process, at the socket of its lowest shard. For one thread."""

    def __init__(self, folder: PeerFolder, host: Host, credentials: Credentials | None) -> None:
        path = folder.socket_path(host.numbers[0])
        self._door = FlightDoor(host, path, credentials=credentials, inside=True)

    def stop(self) -> None:
        """Returns when every call that was under way has ended."""
        self._door.stop()


class PeerLinks:
    """The other processes, each connected to when it is first called. Any thread; `close` is for one."""

    def __init__(self, folder: PeerFolder, peers: PeerMap) -> None:
        self._folder, self._peers = folder, peers
        self._lock = threading.Lock()
        self._links: dict[int, BrokerLink] = {}

    def call(
        self, shard: int, action: str, header: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """As `broker.peers.Peers` says."""
        place = self._peers.place_of(shard)
        try:
            return self._link(place.first).call(
                action, timeout=timeout_s, header={**header, SHARD_NUMBER: shard}
            )
        except Unavailable as error:
            where = f"the process of shards {show_shards(place.shards)} at {place.address}"
            raise Unavailable(f"{where}: {error.message}", details={"shard": shard}) from error

    def _link(self, first_shard: int) -> BrokerLink:
        with self._lock:
            link = self._links.get(first_shard)
            if link is None:
                link = BrokerLink(self._folder.socket_path(first_shard))
                self._links[first_shard] = link
            return link

    def close(self) -> None:
        """Lets the connections go."""
        with self._lock:
            links, self._links = self._links, {}
        for link in links.values():
            link.close()
