"""A `StorageEngine` in memory: what was synced outlives an opening, and nothing outlives the object."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fasti.config import ShardSettings
from fasti.errors import Corruption, DataDirLocked
from fasti.storage.damages import ScrubFinding
from fasti.storage.follower import Follower
from fasti.storage.manifest import Manifest
from fasti.storage.memory.blocks import MemoryBlocks
from fasti.storage.memory.journal import MemoryJournal

_UNLIMITED = 1 << 62


class MemoryStorage:
    """`MemoryJournal` and `MemoryBlocks`, handed to one opening after the other."""

    def __init__(self) -> None:
        self.journal: MemoryJournal | None = None
        self.blocks = MemoryBlocks()
        self.is_open = False

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenMemory:
        """What was not synced is gone, whatever `cut_after` says."""
        if self.is_open:
            raise DataDirLocked("this storage is open already")
        version, manifest = Manifest.read(self.blocks) or Manifest.begin(self.blocks)
        if self.journal is None:
            self.journal = MemoryJournal(incarnation=manifest.incarnation)
        else:
            self.journal = self.journal.reopened()
        self.is_open = True
        return OpenMemory(self, self.journal, (version, manifest))


class OpenMemory:
    """An `OpenStorage`; also its `Capacity`. There is no disk to fill, to copy or to rot."""

    copy_warning: str | None = None
    follower: Follower | None = None
    allocated_bytes = 0

    def __init__(
        self, storage: MemoryStorage, journal: MemoryJournal, manifest: tuple[int, Manifest]
    ) -> None:
        self._storage = storage
        self.journal, self.blocks, self.manifest = journal, storage.blocks, manifest

    @property
    def capacity(self) -> OpenMemory:
        return self

    def room_bytes(self) -> int:
        return self.journal.room_bytes()

    def free_bytes(self) -> int:
        return _UNLIMITED

    def prepare_spare(self) -> bool:
        return False

    def explain(self, error: Corruption) -> Corruption:
        return error

    def settle(self) -> None:
        return

    def close(self) -> None:
        self.journal.close()
        self._storage.is_open = False

    def holds(self, file: str) -> bool:
        return True

    def scrub(self, manifest: Manifest, pace: Callable[[int], None]) -> Iterator[ScrubFinding]:
        return iter(())

    def scrub_bytes(self, manifest: Manifest) -> int:
        return 0

    def read_clock_record(self) -> bytes | None:
        return None

    def write_clock_record(self, record: bytes) -> None:
        return
