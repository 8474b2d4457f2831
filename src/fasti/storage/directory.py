"""The local composition: the storage of a broker that keeps its data in a directory of this machine.

Here, and nowhere else beside the offline tools, it is decided that a shard lives in files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

from fasti.errors import InvalidArgument
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files, LocalFiles, homes
from fasti.storage.files.blocks import FileBlocks
from fasti.storage.files.copies import mark_closed
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.files.rebase import finish, refuse_unfinished
from fasti.storage.files.safe_open import tighten
from fasti.storage.manifest import Manifest
from fasti.storage.shard_folders import ShardFolders, check_one_shard, open_folders, read_folders
from fasti.storage.tools.restore import begin_life

_log = logging.getLogger("fasti.storage")


def directory_storage(path: str | os.PathLike[str], clone: bool = False) -> FileStorage:
    """The storage of a directory that a broker is about to open: made, closed to other users, cloned if
    that is wanted.

    Raises `PermissionDenied`, `StorageFull` or `StorageFailed` if it can't be made or looked at; with
    `clone` also `DataDirLocked` beside a broker, and what opening it would; `InvalidArgument` if it
    has several shards.
    """
    check_one_shard(path, "this")
    return _storage(path, clone)


def _storage(path: str | os.PathLike[str], clone: bool) -> FileStorage:
    files = LocalFiles(path)
    warning = tighten(Path(path))
    if warning is not None:
        _log.warning("%s", warning)
    if clone:
        shard = clone_directory(files)
        if shard is not None:
            _log.warning("%s is a directory of its own now: shard %s", path, shard)
    return FileStorage(files)


def shard_storages(
    path: str | os.PathLike[str],
    shards: int | None = None,
    numbers: Collection[int] | None = None,
    clone: bool = False,
) -> tuple[ShardFolders, dict[int, FileStorage]]:
    """The storages of a directory's shards, or of those with these numbers, for a process that has them.

    Raises what `open_folders` and `directory_storage` do.
    """
    if clone and read_folders(path).shards > 1:
        raise InvalidArgument(
            f"{path} has several shards, and clone is for one: take a backup of the copy (`fasti backup "
            "--data`) and restore that, which gives it names of its own",
            field="clone",
        )
    folders = open_folders(path, shards)
    chosen = range(folders.shards) if numbers is None else sorted(numbers)
    for number in chosen:
        if not 0 <= number < folders.shards:
            raise InvalidArgument(
                f"there is no shard {number}: {path} has {folders.shards}", field="shard_number"
            )
    if folders.shards == 1:
        return folders, {0: directory_storage(path, clone)}
    refuse_unfinished(LocalFiles(path))
    return folders, {number: _storage(folders.folder(number), False) for number in chosen}


def passing_storage() -> FileStorage:
    """Files in memory: all code of a directory runs on it, and nothing is left of it."""
    return FileStorage(MemoryFiles())


def clone_directory(files: Files) -> str | None:
    """Gives a copy of a directory a life of its own; its new shard name, or None if it has one.

    All that it holds stays, under a new incarnation, as after a restore. It is done once: a directory
    that was cloned where it is, or that is new, is left as it is, so that a broker may be started this
    way each time. Run again after a crash it completes what was begun, and so does an opening.
    """
    lock = files.lock()
    try:
        refuse_unfinished(files)
        home = homes.read_home(files)
        if home is not None and home.cloned and homes.is_at_home(files, home):
            return None
        stored = Manifest.read(FileBlocks(files))
        if stored is None:
            return None
        _, manifest = stored
        if not finish(files, manifest, keep_journal=False):
            manifest, _ = begin_life(files)
        # What a copy says of who had it open is about the original.
        mark_closed(files)
        homes.settle(files, cloned=True)
        return f"{manifest.incarnation:016x}"
    finally:
        lock.release()
