"""What a shard stands on: a journal, blocks, and the little that it must know of what carries them.

A `StorageEngine` is made where a broker is composed (`directory.py` for files, `memory_storage.py` for
tests and brokers that keep nothing) and handed to the shard. The shard opens it, and after a failure
closes what it got and opens the engine again. `OpenStorage` is one such opening.

What only files have (spare segments, a disk that fills, a lock, copies of a directory, a scrub) is
asked for here and nowhere else, in questions to which another engine has a one-line answer.

Threads: `open` and `close` are for one thread; everything else may be called by any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fasti.config import ShardSettings
from fasti.errors import Corruption
from fasti.storage.blocks import BlockStore
from fasti.storage.damages import ScrubFinding
from fasti.storage.follower import Follower
from fasti.storage.journal import Journal
from fasti.storage.manifest import Manifest


class Capacity(Protocol):
    """How much more can be stored. An engine without a bound answers with large numbers."""

    def room_bytes(self) -> int:
        """What ordinary appends can still take without new space. Asked for each batch."""

    def free_bytes(self) -> int:
        """What the medium has left beside that."""

    def prepare_spare(self) -> bool:
        """Make room ahead of need, in a background thread; True if something was done.

        To be called after opening and after appends, until it answers False.  Raises
        `StorageFull` when there is no space for it, which harms nothing yet.
        """

    @property
    def allocated_bytes(self) -> int:
        """What the journal takes beside its sealed pieces."""


class OpenStorage(Protocol):
    """An engine that is open, for one shard alone until `close`."""

    @property
    def journal(self) -> Journal:
        """Of the manifest's incarnation."""

    @property
    def blocks(self) -> BlockStore:
        """With a manifest, which the first opening wrote."""

    @property
    def manifest(self) -> tuple[int, Manifest]:
        """The manifest that was in force at the opening, and its version."""

    @property
    def follower(self) -> Follower | None:
        """An engine that has followed this journal until now; None: the shard loads one."""

    @property
    def capacity(self) -> Capacity:
        """How much more it can take."""

    @property
    def copy_warning(self) -> str | None:
        """The warning for an operator who opens what looks like a copy of another shard's storage."""

    def explain(self, error: Corruption) -> Corruption:
        """The error that tells why, if the engine knows: as of a copy with files of two moments."""

    def settle(self) -> None:
        """Everything was read and found good: from now on it is in use here."""

    def close(self) -> None:
        """Lets go of everything. Syncs nothing."""

    def holds(self, file: str) -> bool:
        """Whether a file that an error named is still there."""

    def scrub(self, manifest: Manifest, pace: Callable[[int], None]) -> Iterator[ScrubFinding]:
        """Reads everything stored; `pace` is called after each piece with its bytes, and may wait."""

    def scrub_bytes(self, manifest: Manifest) -> int:
        """About how much a scrub reads."""

    def read_clock_record(self) -> bytes | None:
        """What `write_clock_record` left on this machine; None if nothing."""

    def write_clock_record(self, record: bytes) -> None:
        """Leaves a word for the next start on this machine."""


class StorageEngine(Protocol):
    """Makes a shard's journal and blocks, as often as the shard opens."""

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenStorage:
        """Raises `DataDirLocked` if it is open elsewhere, `Corruption`, or what the medium raises.

        Frames behind ``cut_after`` are dropped: no client was told of them.
        """
