"""What can be asked of logs and their groups, and what storage answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s
from fasti.core.command import Command
from fasti.errors import FastiError

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Truncate(Command):
    """Rows below the offset are gone."""

    topic: str
    partition: int
    before: int


@dataclass(slots=True)
class ReadLog(Command):
    """Where the next rows lie, from an offset on."""

    topic: str
    partition: int
    offset: int
    rows_max: int = 65_536


@dataclass(slots=True)
class LogPiece:
    """Rows side by side in one frame or block; `rows` where they are not a range there."""

    first_offset: int
    count: int
    location: int
    at_us: int
    rows: NDArray[np.uint16] | None = None


@dataclass(slots=True)
class LogPage:
    """The answer to ReadLog. `end` is the offset that the next row will get."""

    earliest: int
    end: int
    pieces: list[LogPiece] = field(default_factory=list)
    error: FastiError | None = None


@dataclass(slots=True)
class FindOffset(Command):
    """A LogPage with the piece that holds the first row at or after the time, if there is one."""

    topic: str
    partition: int
    time_us: int


@dataclass(slots=True)
class DescribeLog(Command):
    """Done(value=list of dicts, one per partition)."""

    topic: str


@dataclass(slots=True)
class LogsInstalled(Command):
    """A checkpoint wrote rows to blocks: (first offset, rows, block, first_us, last_us) each."""

    topic: int
    partition: int
    from_offset: int
    upto_offset: int
    blocks: list[tuple[int, int, int, int, int]]


@dataclass(slots=True)
class KeysLoaded(Command):
    """Storage answers LoadKeys: the first 64 bits of each row's key hash, 0 for none."""

    topic: int
    partition: int
    first_offset: int
    hashes: UInt64s


@dataclass(slots=True)
class CreateGroup(Command):
    """A group that begins at these offsets, one per partition (-1: the earliest, -2: the end)."""

    topic: str
    group: str
    offsets: Int64s | int = -1
    ordered: bool = False


@dataclass(slots=True)
class DeleteGroup(Command):
    """Forgets a group."""

    topic: str
    group: str


@dataclass(slots=True)
class ResetGroup(Command):
    """Goes on elsewhere: offsets as for CreateGroup; one partition, or all (-1)."""

    topic: str
    group: str
    offsets: Int64s | int
    partition: int = -1


@dataclass(slots=True)
class SumLog(Command):
    """A log as a whole, and each of its groups, without a look at partitions.

    Done(value=`LogSums`).
    """

    topic: str


@dataclass(slots=True)
class LogSums:
    """Offsets are those of all partitions, added up. Of groups: by name, their lag and `Sums`."""

    partitions: int
    earliest: int
    end: int
    size_bytes: int
    dropped: dict[str, int]
    groups: dict[str, tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class ReadBacklog(Command):
    """What each group of a log has to do. Done(value=`GroupBacklog` by name)."""

    topic: str


class GroupBacklog(NamedTuple):
    """Rows that the group could have now, or has; and when it next tries one again."""

    rows: int
    retry_us: int | None


@dataclass(slots=True)
class DescribeGroups(Command):
    """Done(value=list of dicts)."""

    topic: str
    group: str = ""


@dataclass(slots=True)
class ListDead(Command):
    """Dead rows of a group, in id order."""

    topic: str
    group: str
    after_id: int = 0
    limit: int = 1000
    reason: str | None = None
