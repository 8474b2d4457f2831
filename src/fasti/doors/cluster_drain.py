"""The action `drain`: a broker is emptied, so that it can be stopped without anybody noticing.

Any broker takes it and passes it on to the one that is meant, over NATS. That one says from then on that its
weight is 0: it ranks nowhere, hands its shards over one after the other and stands by for none
(cluster/members.py). It is kept in the process's memory alone: one that is started again has the weight of its
settings.
"""

from __future__ import annotations

import threading
from typing import Any

from fasti.cluster.cluster_view import ClusterView
from fasti.doors.cluster_member import ClusterMember
from fasti.doors.cluster_peers import ClusterPeers
from fasti.errors import InvalidArgument, NotFound, Unavailable


class Drains:
    """One per process of a cluster. Any thread."""

    def __init__(self, member: ClusterMember, peers: ClusterPeers, weight: float) -> None:
        """`weight` is that of the settings."""
        self._member, self._peers, self._weight = member, peers, weight
        self._lock = threading.Lock()

    def carry_out(self, broker: str, undo: bool) -> dict[str, Any]:
        """Its name, its weight from now on, and whether that changed. Returns before any shard is handed over.

        Raises `not_found` if it is not there, `unavailable` if it went meanwhile, `invalid_argument` if nobody
        else could lead.
        """
        if broker != self._member.name:
            self._check_is_there(broker)
            return self._peers.call_broker(broker, "drain", {"broker": broker, "undo": undo})
        with self._lock:
            weight = self._weight if undo else 0.0
            if undo and weight == 0:
                raise InvalidArgument(
                    f"the weight of {broker} is 0 by its settings: change it there", field="broker"
                )
            if not undo and self._member.weight > 0:
                self._check_others()
            changed = self._member.change_weight(weight)
        return {"broker": broker, "weight": weight, "changed": changed}

    def _check_is_there(self, broker: str) -> None:
        states = {member.name: member.state for member in self._view().members}
        state = states.get(broker)
        if state == "alive":
            return
        known = ", ".join(states)
        why = (
            f"there is no broker {broker!r} in this cluster: there are {known}"
            if state is None
            else f"{broker} is {state}: nothing was changed"
        )
        raise NotFound(why, details={"brokers": list(states)})

    def _check_others(self) -> None:
        name = self._member.name
        others = (member for member in self._view().members if member.name != name)
        if not any(other.state == "alive" and other.weight > 0 for other in others):
            raise InvalidArgument(
                f"{name} is the last broker that can lead: start another one, or undrain one, first",
                field="broker",
            )

    def _view(self) -> ClusterView:
        if self._member.view is None:
            raise Unavailable("this broker has not joined its cluster yet", retry_after_us=100_000)
        return self._member.view
