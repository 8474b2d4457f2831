"""What members tell each other on plain subjects of NATS: beats, pings and calls. Nothing of it is stored.

- `<cluster>.beat`: a member's record and its beat, as JSON. A beat says it all, so that one who has just
  come needs nothing else to know the members; that is why no records are stored.
- `<cluster>.ping.<name>`: answered by the member while it lives. That nobody answers comes at once when its
  connection is gone, which is how a killed broker is found within two beats.
- `<cluster>.call.<name>`: an action of a shard that the member leads, from another member: the catalogue.
  Whoever can write there has the credentials of NATS, and with them all that is stored.
"""

from __future__ import annotations

import json
from typing import Any

from fasti.cluster.member_records import Beat, MemberRecord, ShardBeat
from fasti.cluster.writer_actions import Role

BULLETIN_VERSION = 1


class MemberSubjects:
    """The subjects of one cluster."""

    def __init__(self, cluster: str) -> None:
        self.beats = f"{cluster}.beat"
        self._cluster = cluster

    def ping(self, name: str) -> str:
        """Where a member is asked whether it lives."""
        return f"{self._cluster}.ping.{name}"

    def call(self, name: str) -> str:
        """Where a member takes actions."""
        return f"{self._cluster}.call.{name}"


# How an urgent beat ends, so that whoever takes it needn't decode it to know.
_URGENT_END = b'"urgent":true}'


def is_urgent(data: bytes) -> bool:
    """Whether a beat is to be heard at once: a shard is being handed over."""
    return data.endswith(_URGENT_END)


def encode_beat(
    record: MemberRecord, beat: Beat, yields: dict[int, tuple[int, str]], urgent: bool = False
) -> bytes:
    """`yields`: shards that it led until lately, with the epoch that it gave up, and to whom."""
    return json.dumps(
        {
            "format": BULLETIN_VERSION,
            "name": record.name,
            "address": record.address,
            "weight": record.weight,
            "formats": sorted(record.formats),
            "incarnation": record.incarnation,
            "now_us": beat.now_us,
            "shards": [
                [item.shard, item.role.value, item.epoch, item.sequence, item.version]
                for item in beat.shards
            ],
            "yields": [[shard, epoch, to] for shard, (epoch, to) in yields.items()],
            "urgent": urgent,
        },
        separators=(",", ":"),
    ).encode()


def decode_beat(data: bytes) -> tuple[MemberRecord, Beat, dict[int, tuple[int, str]]] | None:
    """None if it is of a format that is not known here, or no beat: another program may write there."""
    try:
        told: dict[str, Any] = json.loads(data)
        if told["format"] != BULLETIN_VERSION:
            return None
        record = MemberRecord(
            str(told["name"]),
            str(told["address"]),
            float(told["weight"]),
            frozenset(map(int, told["formats"])),
            int(told["incarnation"]),
        )
        shards = tuple(
            ShardBeat(int(shard), Role(role), int(epoch), int(sequence), int(version))
            for shard, role, epoch, sequence, version in told["shards"]
        )
        beat = Beat(record.name, record.incarnation, int(told["now_us"]), shards)
        yields = {int(shard): (int(epoch), str(to)) for shard, epoch, to in told["yields"]}
    except (ValueError, KeyError, TypeError):
        return None
    return record, beat, yields
