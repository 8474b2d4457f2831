"""How much the NATS servers of a cluster may still keep, by what they say of themselves.

A server has a bound for all of its streams together (`max_file`). When it is reached the server refuses everything
and leads no stream any more; when it is reached on all servers, no stream has a leader, and none gets one, so that
nothing can be purged either, until somebody raises the bound and starts the servers again. That was tried. So
brokers stop before: of each server's bound a sixteenth is a reserve. What is produced leaves it alone; checkpoints
leave a quarter of it; acks, cancels and all else that frees room may have it all.

A shard has the room of a majority of the servers that keep it: one that is full does not stop the others. Of
servers that don't answer, or name no bound, nothing is known, and nothing is refused.

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fasti.cluster.server_reports import ServerReport

UNBOUNDED: Final = 1 << 62
_RESERVE_PART = 16
_CHECKPOINT_PART = 4
# With less room than so many reserves the servers are asked more often.
_LOW_RESERVES = 4


class _Room(NamedTuple):
    """What is left of a server's bound, and how much of it is the reserve."""

    left_bytes: int
    reserve_bytes: int


class ServerRoom:
    """One per process, for all its shards. What it writes counts until the servers have told of it."""

    def __init__(self, replicas: int) -> None:
        self._majority = replicas // 2 + 1
        self._lock = threading.Lock()
        self._written_bytes = 0
        # Both are replaced together: the room of each stream, and what was written when it was asked for.
        self._rooms: Mapping[str, _Room] = {}
        self._asked_at_bytes = 0

    def note_written(self, size_bytes: int) -> None:
        """A journal or a checkpoint of this process has written so much."""
        with self._lock:
            self._written_bytes += size_bytes

    @property
    def written_bytes(self) -> int:
        """To be read before the servers are asked, for `take`."""
        return self._written_bytes

    def take(self, reports: Sequence[ServerReport], written_bytes: int) -> None:
        """What the servers say."""
        rooms: dict[str, list[_Room]] = {}
        for report in reports:
            if report.bytes_max is not None:
                left_bytes = report.bytes_max - report.used_bytes
                room = _Room(left_bytes, report.bytes_max // _RESERVE_PART)
                for stream in report.streams:
                    rooms.setdefault(stream, []).append(room)
        majority = self._majority
        known = {
            stream: sorted(each, reverse=True)[majority - 1]
            for stream, each in rooms.items()
            if len(each) >= majority
        }
        with self._lock:
            self._rooms, self._asked_at_bytes = known, written_bytes

    @property
    def is_low(self) -> bool:
        """Whether the servers should be asked often."""
        return any(
            room.left_bytes < _LOW_RESERVES * room.reserve_bytes for room in self._rooms.values()
        )

    def for_messages(self, stream: str) -> int:
        """What may still be produced into a shard, by one of its streams; below 0: the reserve is used."""
        return self._beyond(stream, 1)

    def for_checkpoints(self, stream: str) -> int:
        """What a checkpoint may still write."""
        return self._beyond(stream, _CHECKPOINT_PART)

    def _beyond(self, stream: str, part: int) -> int:
        with self._lock:
            room = self._rooms.get(stream)
            if room is None:
                return UNBOUNDED
            since_bytes = self._written_bytes - self._asked_at_bytes
            return room.left_bytes - since_bytes - room.reserve_bytes // part
