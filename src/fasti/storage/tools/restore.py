"""Restoring a backup: a data directory from it, with a life of its own.

Every file is checked against the backup's list while it is copied; then everything is read into an
engine, as an opening would, and written out under a new incarnation (rebase.py), so that positions of
the change feed from before answer `gone`. The backup is not changed.

The target must be empty. A file ``RESTORING`` stands in it until all is done: a directory with one
doesn't open, and a restore that was interrupted is run again and begins anew.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_64

from fasti.errors import AlreadyExists, Corruption, NotFound
from fasti.storage.file_storage import check_sizes
from fasti.storage.files import LOCK_NAME, Files, LocalFiles, read_whole
from fasti.storage.files.blocks import MANIFEST_PATH, decode_manifest
from fasti.storage.files.journal_segment import read_segment_header
from fasti.storage.files.rebase import RESTORING_NAME
from fasti.storage.manifest import Manifest
from fasti.storage.shard_folders import ShardFolders, open_folders, read_folders
from fasti.storage.tools.at_rest import open_directory, rebase_directory
from fasti.storage.tools.backup import CHUNK_BYTES, Description, Progress, describe
from fasti.storage.tools.inspect import inspect


@dataclass(frozen=True, slots=True)
class Restored:
    """A directory that was made from a backup."""

    path: str
    # Of the backup: its shard, its last frame, and when it was taken. Of several shards all of them,
    # with commas, and no frame: 0.
    shard: str
    position: int
    at_us: int
    # What positions belong to from now on.
    new_shard: str
    topics: int
    size_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def restore(backup: Path, target: Path, progress: Progress | None = None) -> Restored:
    """Makes a data directory from a backup.

    Raises `AlreadyExists` if the target isn't empty, and `NewerFormat` if another version took the
    backup: nothing was written then. Raises `Corruption` if the backup is incomplete or damaged; after
    that, and after any other failure, the target can't be opened.
    """
    if not backup.is_dir():
        raise NotFound(f"{backup} does not exist")
    folders = read_folders(backup)
    if folders.shards > 1:
        return _restore_shards(folders, target, progress)
    done = _restore_shard(backup, target, progress)
    _finish(target)
    return done


def _restore_shards(folders: ShardFolders, target: Path, progress: Progress | None) -> Restored:
    """All shards of a backup. None can be opened before all are there: the mark of the whole directory is
    its first file, and the last to go.
    """
    for folder in folders.folders():
        source = LocalFiles(folder)
        _check_formats(source, describe(source, str(folder)))
    _check_empty(target)
    LocalFiles(target).replace(RESTORING_NAME, b"")
    places = open_folders(target, folders.shards).folders()
    for place in places:
        LocalFiles(place).replace(RESTORING_NAME, b"")
    parts = [
        _restore_shard(folder, place, progress)
        for folder, place in zip(folders.folders(), places, strict=True)
    ]
    for place in (*places, target):
        _finish(place)
    return Restored(
        str(target),
        ",".join(part.shard for part in parts),
        0,
        min(part.at_us for part in parts),
        ",".join(part.new_shard for part in parts),
        max(part.topics for part in parts),
        sum(part.size_bytes for part in parts),
    )


def _finish(target: Path) -> None:
    """From now on a broker may open it."""
    files = LocalFiles(target)
    files.delete(RESTORING_NAME)
    files.sync_directory("")


def _restore_shard(backup: Path, target: Path, progress: Progress | None) -> Restored:
    source = LocalFiles(backup)
    described = describe(source, str(backup))
    _check_formats(source, described)
    _check_empty(target)
    files = LocalFiles(target)
    lock = files.lock()
    try:
        for leftover in files.list(""):
            if leftover not in (LOCK_NAME, RESTORING_NAME):
                files.delete(leftover)
        files.replace(RESTORING_NAME, b"")
        size = _copy(source, files, described, progress)
        manifest, topics = begin_life(files)
    finally:
        lock.release()
    _check(files)
    place = (described.shard, described.last, described.at_us)
    return Restored(str(target), *place, f"{manifest.incarnation:016x}", topics, size)


def _check_formats(source: Files, described: Description) -> None:
    """Raises `NewerFormat` before anything is written; damage is found while files are copied.

    The format of a segment grows with every other one, so that blocks need not be looked at.
    """
    for name in described.files:
        with suppress(Corruption, NotFound):
            if name == MANIFEST_PATH:
                Manifest.decode(decode_manifest(read_whole(source, name), name)[1])
            elif name.startswith("journal/"):
                read_segment_header(source, name)


def _check_empty(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise AlreadyExists(f"{target} is a file: restore into a new or empty directory")
    there = {path.name for path in target.iterdir()} - {LOCK_NAME}
    if there and RESTORING_NAME not in there:
        raise AlreadyExists(f"{target} is not empty: restore into a new or empty directory")


def _copy(source: Files, files: Files, described: Description, progress: Progress | None) -> int:
    total, done = sum(size for size, _ in described.files.values()), 0
    for name, (size, digest) in described.files.items():
        if not source.exists(name):
            raise Corruption(f"{name} is missing, though the backup names it", file=name, offset=0)
        read, copy = source.open(name, writable=False), files.create(name, 0)
        state = xxh3_64()
        try:
            for offset in range(0, size, CHUNK_BYTES):
                piece = read.read_at(offset, min(CHUNK_BYTES, size - offset))
                state.update(piece)
                copy.write_at(offset, [piece])
                done += len(piece)
                if progress is not None:
                    progress(done, total)
            copy.sync()
            if read.size != size or state.intdigest() != digest:
                message = f"{name} differs from what was there when the backup was taken"
                raise Corruption(message, file=name, offset=0)
        finally:
            read.close()
            copy.close()
    for folder in ("blocks", "journal"):
        files.sync_directory(folder)
    return done


def begin_life(files: Files) -> tuple[Manifest, int]:
    """Writes what a directory holds under a new incarnation, in place; also how many topics it has.

    The caller has the lock. A crash leaves either life, or one that `rebase.finish` completes.
    """
    with open_directory(files) as stored:
        check_sizes(files, stored.manifest)
        engine, _ = stored.load()
        return rebase_directory(files, stored, engine, keep_journal=False), len(engine.state.topics)


def _check(files: Files) -> None:
    report = inspect(files)
    for finding in report.findings:
        if finding.kind == "damaged_block" and finding.file.endswith(".payloads"):
            # The copy is as it was taken: it was damaged then, and costs what it costs there.
            continue
        if not finding.harmless and finding.file != RESTORING_NAME:
            raise Corruption(
                f"{finding.file}: {finding.message}", file=finding.file, offset=finding.offset
            )
