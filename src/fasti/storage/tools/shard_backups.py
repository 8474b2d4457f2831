"""Backups of several shards, and what is restored from them: a folder for each, as in a data directory.

A backup of one shard is exact at one position. Of several, each is exact by itself, and they are not of one
moment: what was acknowledged before the backup began is in it, and of what came meanwhile some shards
may have more than others. Shard 0, which has the catalogue, is taken last, so that none knows of a topic
that it doesn't.

A directory that is being restored has a file ``RESTORING`` beside ``SHARDS`` until all folders are there, and
can't be opened before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from fasti.errors import AlreadyExists, InvalidArgument
from fasti.storage.files import LocalFiles
from fasti.storage.files.rebase import BACKUP_NAME, RESTORING_NAME
from fasti.storage.shard_folders import ShardFolders, make_folders, read_folders
from fasti.storage.tools.backup import Backup, Progress, Source, back_up, directory_source
from fasti.storage.tools.restore import Restored, check_empty, restore


def back_up_shards(
    source: Callable[[int], AbstractContextManager[Source]],
    shards: int,
    cluster: str,
    path: Path,
    progress: Progress | None = None,
) -> Backup:
    """Backs up each shard into a folder of its own below `path`; `source` opens one by its number.

    Raises `invalid_argument` if the directory has a backup of something else.
    """
    folders = _backup_folders(path, shards, cluster)
    taken: dict[int, Backup] = {}
    for number in (*range(1, shards), 0):
        with source(number) as opened:
            taken[number] = back_up(opened, folders.folder(number), progress)
    each = [taken[number] for number in range(shards)]
    return Backup(
        path=str(path),
        shard=cluster,
        position=each[0].position,
        at_us=min(backup.at_us for backup in each),
        files=sum(backup.files for backup in each),
        size_bytes=sum(backup.size_bytes for backup in each),
        copied_bytes=sum(backup.copied_bytes for backup in each),
        damaged=[f"shard-{n}/{name}" for n in range(shards) for name in taken[n].damaged],
        shards=each,
    )


def back_up_directory(data: Path, path: Path, progress: Progress | None = None) -> Backup:
    """The same of a data directory that no broker has open, however many shards it has."""
    folders = read_folders(data)
    if folders.shards == 1:
        with directory_source(data) as opened:
            return back_up(opened, path, progress)

    def source(number: int) -> AbstractContextManager[Source]:
        return directory_source(folders.folder(number))

    return back_up_shards(source, folders.shards, folders.cluster, path, progress)


def _backup_folders(path: Path, shards: int, cluster: str) -> ShardFolders:
    if (path / BACKUP_NAME).exists():
        raise InvalidArgument(f"{path} has a backup of a broker with one shard", field="path")
    folders = make_folders(path, shards, cluster)
    if (folders.shards, folders.cluster) != (shards, cluster):
        raise InvalidArgument(
            f"{path} has a backup of another broker: {folders.shards} shards of {folders.cluster}, not "
            f"{shards} of {cluster}",
            field="path",
        )
    return folders


def restore_any(backup: Path, target: Path, progress: Progress | None = None) -> Restored:
    """Makes a data directory from a backup, of one shard or of several. Raises what `restore` does."""
    found = read_folders(backup)
    if found.shards == 1:
        return restore(backup, target, progress)
    for number in range(found.shards):
        if not (found.folder(number) / BACKUP_NAME).exists():
            raise InvalidArgument(
                f"{backup} is no complete backup: {found.label(number)} is missing; run it again",
                field="backup",
            )
    check_empty(target)
    files = LocalFiles(target)
    files.replace(RESTORING_NAME, b"")
    # Of a restore that was interrupted: it begins anew.
    for folder in ShardFolders(target, found.shards).folders():
        if folder.is_symlink():
            raise AlreadyExists(f"{folder} is a link: restore into a new or empty directory")
        shutil.rmtree(folder, ignore_errors=True)
    made = make_folders(target, found.shards)
    if made.shards != found.shards:
        raise AlreadyExists(f"{target} has {made.shards} shards: restore into a new directory")
    each = [
        restore(found.folder(number), made.folder(number), progress)
        for number in range(found.shards)
    ]
    files.delete(RESTORING_NAME)
    files.sync_directory("")
    return Restored(
        str(target),
        found.cluster,
        each[0].position,
        min(one.at_us for one in each),
        made.cluster,
        each[0].topics,
        sum(one.size_bytes for one in each),
    )
