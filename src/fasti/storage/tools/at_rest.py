"""A data directory at rest: its manifest, its journal, and an engine that holds what it holds.

Every offline tool begins here. Reading changes nothing, and the caller has the directory's lock, because a
running shard would change files underneath. A tool that must not change anything either reads through
`OverlayFiles`: opening the blocks removes what an unfinished write left, there in memory only.

One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fasti.core.engine import Engine
from fasti.errors import Corruption, DataDirLocked, NotFound
from fasti.storage.files import Files, LocalFiles, read_whole
from fasti.storage.files.blocks import MANIFEST_PATH, FileBlocks, decode_manifest
from fasti.storage.files.journal_recovery import Chain, close_chain, read_chain
from fasti.storage.files.journal_table import SegmentTable
from fasti.storage.files.rebase import rebase
from fasti.storage.frames import StoredFrame
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads
from fasti.storage.recovery import delete_leftovers, recover, replay
from fasti.storage.shard_folders import read_folders

# For tools that read a directory of whatever budget: address space, taken as it is needed.
TOOL_MEMORY_BYTES = 64 << 30


def existing_files(path: Path) -> LocalFiles:
    """The files of a data directory that must be there already; `NotFound` if it isn't."""
    if not (path / "journal").is_dir() and not (path / "blocks").is_dir():
        raise NotFound(f"{path} is not a data directory: it has neither journal nor blocks")
    return LocalFiles(path)


def shard_files(path: Path) -> Iterator[tuple[str, LocalFiles]]:
    """The folders of a directory's shards, with a word for each where there are several."""
    folders = read_folders(path)
    for number in range(folders.shards):
        yield folders.label(number), existing_files(folders.folder(number))


def holder(files: Files) -> DataDirLocked | None:
    """The error that names who has the directory open; None if it is free."""
    try:
        files.lock().release()
    except DataDirLocked as error:
        return error
    return None


def read_manifest(files: Files) -> tuple[int, Manifest] | None:
    """The manifest and its version; None before a shard was opened."""
    if not files.exists(MANIFEST_PATH):
        return None
    version, data = decode_manifest(read_whole(files, MANIFEST_PATH), MANIFEST_PATH)
    return version, Manifest.decode(data)


def existing_manifest(files: Files) -> tuple[int, Manifest]:
    """The same; raises `NotFound` if no shard was ever opened, `Corruption` if only a journal is left."""
    stored = read_manifest(files)
    if stored is not None:
        return stored
    if files.list("journal/"):
        raise Corruption("there is a journal but no manifest", file=MANIFEST_PATH, offset=0)
    raise NotFound(f"{MANIFEST_PATH} does not exist: no shard was ever opened here")


class JournalAtRest:
    """A `JournalReader`, also of a journal with gaps."""

    def __init__(self, files: Files, chain: Chain) -> None:
        self._table = SegmentTable(files, chain.segments, chain.last_sequence)
        self.first_sequence = self._table.first_sequence
        self.last_sequence, self.epoch = chain.last_sequence, chain.epoch
        self.finished_sequence = chain.last_sequence
        self.segments = len(chain.segments)
        self.size_bytes = sum(len(segment.view) for segment in chain.segments)

    def frames(self, after: int) -> Iterator[StoredFrame]:
        """The frames of whole groups above a position; sequences that are missing are gaps."""
        begin = max(after, self.first_sequence - 1)
        return iter(()) if begin >= self.last_sequence else self.replay(begin)

    def replay(self, after: int) -> Iterator[StoredFrame]:
        """All frames above a position, as a journal has them: raises if some are missing."""
        return self._table.replay(after, self.last_sequence)

    def body(self, sequence: int) -> memoryview:
        """A frame's body, for payloads."""
        return self._table.read(sequence)[1]


@contextmanager
def open_journal(files: Files) -> Iterator[JournalAtRest]:
    """The journal, to be read. Raises `Corruption`, `NewerFormat`, or what the disk raises."""
    chain = read_chain(files, "journal", None)
    try:
        yield JournalAtRest(files, chain)
    finally:
        close_chain(chain)


@dataclass(slots=True)
class DirectoryAtRest:
    """What a directory has on the disk."""

    version: int
    manifest: Manifest
    blocks: FileBlocks
    journal: JournalAtRest

    def load(self) -> tuple[Engine, int]:
        """An engine brought up to date, as an opening would do it, and how many frames that took."""
        engine = Engine(TOOL_MEMORY_BYTES)
        recover(engine, self.blocks, self.manifest, self.version)
        return engine, replay(engine, self.journal, self.manifest)


@contextmanager
def open_directory(files: Files) -> Iterator[DirectoryAtRest]:
    """Manifest, blocks and journal. Raises what `existing_manifest` and `open_journal` raise."""
    version, manifest = existing_manifest(files)
    with open_journal(files) as journal:
        yield DirectoryAtRest(version, manifest, FileBlocks(files), journal)


def rebase_directory(
    files: Files, stored: DirectoryAtRest, engine: Engine, *, keep_journal: bool = True
) -> Manifest:
    """Has the directory begin a new life with what the engine holds (rebase.py)."""
    manifest = stored.manifest
    # Of a checkpoint that was not finished, or of an earlier try: they would be in the way.
    epoch = manifest.next_epoch(stored.journal.epoch)
    delete_leftovers(stored.blocks, manifest, epoch)
    payloads = Payloads(stored.journal, stored.blocks, manifest.payload_names)
    place = (manifest, stored.version, epoch)
    return rebase(files, engine, payloads, *place, keep_journal=keep_journal)
