"""A `StorageEngine` on files: a data directory with its lock, journal, blocks and marks.

The order of an opening: lock, refuse what is half repaired or restored, read the manifest, compare the
sizes of blocks with it, finish what a clone began, open the journal. Nothing is deleted before
`settle`, which the shard calls when everything has been read and found good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fasti.config import ShardSettings
from fasti.errors import Corruption
from fasti.storage.damages import ScrubFinding
from fasti.storage.files import Files, copies, homes, read_whole, size_of
from fasti.storage.files.blocks import MANIFEST_PATH, FileBlocks
from fasti.storage.files.journal import FileJournal
from fasti.storage.files.journal_segment import too_short
from fasti.storage.files.rebase import finish as finish_rebase
from fasti.storage.files.rebase import refuse_unfinished
from fasti.storage.files.scrub import scrub, total_bytes
from fasti.storage.follower import Follower
from fasti.storage.manifest import Manifest
from fasti.storage.recovery import missing_block

CLOCK_NAME = "CLOCK"
_CLOCK_BYTES_MAX = 1 << 16


class FileStorage:
    """Below one folder of files."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenFiles:
        lock = self.files.lock()
        try:
            return OpenFiles(self.files, settings, cut_after, lock.release)
        except BaseException:
            lock.release()
            raise


class OpenFiles:
    """An `OpenStorage`; also its `Capacity`."""

    follower: Follower | None = None

    def __init__(
        self,
        files: Files,
        settings: ShardSettings,
        cut_after: int | None,
        unlock: Callable[[], None],
    ) -> None:
        self._files, self._unlock = files, unlock
        refuse_unfinished(files)
        # Of which directory this is a copy that was made while it was open, in words.
        self._copied_from = copies.copied_from(files)
        lived_elsewhere = homes.lived_elsewhere(files)
        self.copy_warning: str | None = None
        if self._copied_from is not None:
            self.copy_warning = copies.warning(self._copied_from)
        elif lived_elsewhere is not None:
            self.copy_warning = homes.warning(lived_elsewhere)
        try:
            self.blocks = FileBlocks(files)
            self.manifest = _, manifest = self._open_manifest()
            check_sizes(files, manifest)
            # A clone that was interrupted when all was decided.
            finish_rebase(files, manifest, keep_journal=False)
            self.journal = FileJournal(
                files,
                segment_bytes=settings.segment_bytes,
                incarnation=manifest.incarnation,
                cut_after=cut_after,
            )
        except Corruption as error:
            raise self.explain(error) from error
        self._is_settled = False
        self.allocated_bytes = settings.segment_bytes
        # Asked often: nothing stands in between.
        self.room_bytes, self.prepare_spare = self.journal.room_bytes, self.journal.prepare_spare
        self.free_bytes = files.free_bytes

    @property
    def capacity(self) -> OpenFiles:
        return self

    def _open_manifest(self) -> tuple[int, Manifest]:
        stored = Manifest.read(self.blocks)
        if stored is not None:
            # The process before may have died before this name was durable; soon blocks are
            # deleted that only the manifest before it names.
            self._files.sync_directory("blocks")
            return stored
        if self._files.list("journal/"):
            raise Corruption("there is a journal but no manifest", file=MANIFEST_PATH, offset=0)
        if homes.read_home(self._files) is not None:
            raise Corruption(
                "blocks and journal of this directory are gone; restore it from a backup, or remove "
                f"the file {homes.HOME_NAME} to begin with nothing",
                file=MANIFEST_PATH,
                offset=0,
            )
        return Manifest.begin(self.blocks)

    def explain(self, error: Corruption) -> Corruption:
        return error if self._copied_from is None else copies.explain(error, self._copied_from)

    def settle(self) -> None:
        copies.mark_open(self._files)
        homes.settle(self._files)
        self._is_settled = True

    def close(self) -> None:
        try:
            self.journal.close()
            self.blocks.close()
            if self._is_settled:
                copies.mark_closed(self._files)
        finally:
            self._unlock()

    def holds(self, file: str) -> bool:
        return self._files.exists(file)

    def scrub(self, manifest: Manifest, pace: Callable[[int], None]) -> Iterator[ScrubFinding]:
        return scrub(self._files, self.blocks, manifest, pace)

    def scrub_bytes(self, manifest: Manifest) -> int:
        return total_bytes(self._files, manifest)

    def read_clock_record(self) -> bytes | None:
        if self._files.place is None or not self._files.exists(CLOCK_NAME):
            return None
        return read_whole(self._files, CLOCK_NAME, _CLOCK_BYTES_MAX)

    def write_clock_record(self, record: bytes) -> None:
        if self._files.place is not None:
            self._files.replace(CLOCK_NAME, record)


def check_sizes(files: Files, manifest: Manifest) -> None:
    """Raises `Corruption` if an object that the manifest names is missing or has become shorter.

    Payloads are not read when a directory is opened; by their lengths it costs nothing to tell.
    """
    stored = set(files.list("blocks/"))
    listed = [(block.names, block.size_bytes) for block in manifest.blocks]
    listed += [([block.name], block.size_bytes) for block in manifest.logs]
    for names, size_bytes in listed:
        sizes = {name: _size(files, name, stored) for name in names}
        if sum(sizes.values()) < size_bytes:
            # The one that is empty, or the payloads: rows are read and checked in full.
            name = min(names, key=lambda name: (sizes[name] > 0, name))
            raise too_short(f"blocks/{name}", sum(sizes.values()), size_bytes)
    if manifest.state_name and f"blocks/{manifest.state_name}" not in stored:
        raise missing_block(manifest.state_name)


def _size(files: Files, name: str, stored: set[str]) -> int:
    if f"blocks/{name}" not in stored:
        raise missing_block(name)
    return size_of(files, f"blocks/{name}")
