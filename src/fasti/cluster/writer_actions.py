"""What a shard's writer asks its caller to do, and with what it ends: small values, no logic.

`Ask` is work whose result the caller brings back to the `Writer`; an `End` is the answer to the caller's
own call. What each means is in `writer.py`. They are dataclasses and no tuples, which would be equal
whatever their kinds: `Settle(2)` is not `ReadPack(2)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

from fasti.cluster.pack_reader import PackHeader


class Role(Enum):
    """What a broker is to a shard."""

    IDLE = "idle"
    STANDBY = "standby"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FENCED = "fenced"


class NoPack(Enum):
    """Why a read gave no pack: the place is not taken yet, or was trimmed."""

    MISSING = "missing"
    TRIMMED = "trimmed"


MISSING: Final = NoPack.MISSING
TRIMMED: Final = NoPack.TRIMMED
# The name by which the modules that read streams know it. A class of the SDK has it too.
Absence = NoPack


class PointerHeader(NamedTuple):
    """What leadership needs to know of a shard's pointer; revision 0 stands for one never written.

    `manifest` is the name of a block, `sequence` the place in the stream that the manifest stands for.
    """

    revision: int
    epoch: int
    broker: str
    manifest: str
    sequence: int


@dataclass(frozen=True, slots=True)
class ReadPack:
    """Read this place of the stream; then `read`."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ApplyPack:
    """Apply the pack that was just read, without held frames from `drop_from` on; then `applied`."""

    header: PackHeader
    drop_from: int | None


@dataclass(frozen=True, slots=True)
class AppendPack:
    """Publish a pack with this header; then `appended`, `refused` or `unanswered`."""

    header: PackHeader
    expected_last: int


@dataclass(frozen=True, slots=True)
class ReadPointer:
    """Read the shard's pointer; then `pointer_read`."""


@dataclass(frozen=True, slots=True)
class InstallManifest:
    """Load the manifest of this pointer, or move to it what is in memory; then `installed`."""

    pointer: PointerHeader


@dataclass(frozen=True, slots=True)
class ClaimPointer:
    """Write the pointer if its revision is still this; then `pointer_claimed` or `refused`."""

    expected_revision: int
    value: PointerHeader


@dataclass(frozen=True, slots=True)
class Serve:
    """This broker leads, and nothing is in flight."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A standby has applied all up to this place."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The pack is durable at this place: its callers can be answered."""

    sequence: int


@dataclass(frozen=True, slots=True)
class StandDown:
    """Another candidate was first; this broker is a standby and has applied that one's start."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LoseShard:
    """Fenced. The outcome is that of the pack in flight; None: there was none. Epoch 0: not known."""

    by_epoch: int
    outcome: Literal["moved", "unknown"] | None


@dataclass(frozen=True, slots=True)
class ReportHole:
    """What was read at this place can't follow what was before it."""

    sequence: int


Ask = ReadPack | ApplyPack | AppendPack | ReadPointer | InstallManifest | ClaimPointer
End = Serve | CaughtUp | Settle | StandDown | LoseShard | ReportHole
Action = Ask | End
ENDS: Final = (Serve, CaughtUp, Settle, StandDown, LoseShard, ReportHole)
