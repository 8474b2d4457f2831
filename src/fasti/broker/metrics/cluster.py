"""What a scrape tells of a cluster: its NATS servers, damage, and this broker's clock beside the others'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fasti.broker.metrics.families import Families

_TABLE = """
fasti_cluster_nats_servers{state}  NATS servers of the cluster: good, refused (settings or version), damaged, away.
fasti_cluster_damaged_copies{server}  Copies of streams on a NATS server that have lost messages.
fasti_clock_ahead_seconds  How far this broker's clock is ahead of the median of its cluster's.
fasti_cluster_quorum{shard}  Whether enough NATS servers keep the shard's streams: 1 or 0.
"""
_STATES = ("good", "refused", "damaged", "away")


def collect(view: Mapping[str, Any]) -> Families:
    """Called once per scrape, with what the action `cluster` answers."""
    families = Families(_TABLE)
    servers = view.get("servers", ())
    states = Counter(server["state"] for server in servers)
    for state in _STATES if servers else ():
        families.add("fasti_cluster_nats_servers", state, states[state])
    damages = Counter(damage["server"] for damage in view.get("damages", ()))
    for server in servers:
        families.add("fasti_cluster_damaged_copies", server["name"], damages[server["name"]])
    for stream in view.get("streams", ()):
        families.add("fasti_cluster_quorum", str(stream["shard"]), int(stream["has_quorum"]))
    for member in view["members"]:
        if member["name"] == view["broker"]:
            families.add("fasti_clock_ahead_seconds", member["clock_ahead_ms"] / 1000)
    return families
