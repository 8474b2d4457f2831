"""What a cluster's streams and subjects are called. Everything begins with the cluster's name, so that
two clusters can share one NATS without meeting.

A block's name has characters that mean something in a subject (`.`) or in a path (`/`). They are
escaped with `%`, which no block's name contains, so that the way back is exact.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fasti.errors import InvalidArgument

_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BROKER_BYTES_MAX = 255


class ShardNames(NamedTuple):
    """The streams and subjects of one shard of one cluster."""

    cluster: str
    shard: int

    @classmethod
    def of(cls, cluster: str, shard: int) -> ShardNames:
        """Raises `InvalidArgument` for a cluster's name that can't be part of a subject."""
        if not _CLUSTER.fullmatch(cluster):
            raise InvalidArgument(
                f"{cluster!r} is not a cluster's name", field="cluster", limit=_CLUSTER.pattern
            )
        if not 0 <= shard < 1 << 31:
            raise InvalidArgument(f"{shard} is not a shard's number", field="shard")
        return cls(cluster, shard)

    @property
    def journal_stream(self) -> str:
        return f"{self.cluster}-j-{self.shard}"

    @property
    def journal_subject(self) -> str:
        return f"{self.cluster}.j.{self.shard}"

    @property
    def blocks_stream(self) -> str:
        return f"{self.cluster}-b-{self.shard}"

    @property
    def blocks_subjects(self) -> str:
        """All subjects of the blocks' stream."""
        return f"{self.cluster}.b.{self.shard}.>"

    @property
    def pointer_stream(self) -> str:
        return f"{self.cluster}-p-{self.shard}"

    @property
    def pointer_subject(self) -> str:
        return f"{self.cluster}.p.{self.shard}"

    @property
    def streams(self) -> dict[str, bool]:
        """Its streams, and whether such a stream has no gaps: blocks go one by one."""
        return {self.journal_stream: True, self.blocks_stream: False, self.pointer_stream: True}

    def part_subject(self, space: str, name: str, part: int | str) -> str:
        """Where one part of a block is; `space` tells blocks from manifests. `*` stands for any part."""
        return f"{self.cluster}.b.{self.shard}.{space}.{to_token(name)}.{part}"


def check_broker(name: str) -> str:
    """The name itself, if it fits into a pack's header."""
    if not 1 <= len(name.encode()) <= _BROKER_BYTES_MAX:
        raise InvalidArgument(
            f"a broker's name must have 1 to {_BROKER_BYTES_MAX} bytes",
            field="broker",
            limit=_BROKER_BYTES_MAX,
        )
    return name


def to_token(name: str) -> str:
    """A block's name as one token of a subject."""
    return name.replace(".", "%d").replace("/", "%s")


def from_token(token: str) -> str:
    """The block's name that `to_token` made the token of."""
    return token.replace("%s", "/").replace("%d", ".")
