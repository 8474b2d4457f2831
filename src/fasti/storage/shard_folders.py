"""Which folders a data directory has its shards in.

With one shard the directory is that shard's folder, as it always was. With more it has a file ``SHARDS``
(JSON: format, how many, the cluster's name) and the folders ``shard-0``, ``shard-1``, ... The file is
written once, before any folder is made, and linked into place whole: of several processes that make one
directory at the same time, one does, and the others find what it wrote. How many shards there are never
changes after that.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fasti.core.layout import SHARDS_MAX
from fasti.errors import Corruption, InvalidArgument, NewerFormat
from fasti.storage.files.disk import translated
from fasti.storage.files.safe_open import make_folder, open_file, open_folder, tighten

SHARDS_NAME = "SHARDS"
_FORMAT = 1
_BYTES_MAX = 1 << 16
# What a directory has that is itself a shard's.
_ONE_SHARD = ("journal", "blocks", "HOME")


@dataclass(frozen=True, slots=True)
class ShardFolders:
    """The shards of a data directory. `cluster` is empty where there is one."""

    root: Path
    shards: int = 1
    cluster: str = ""

    def folder(self, number: int) -> Path:
        """Where a shard's files are."""
        return self.root / f"shard-{number}" if self.shards > 1 else self.root

    def label(self, number: int) -> str:
        """For messages of tools that go over all folders; empty where there is one."""
        return f"shard-{number}" if self.shards > 1 else ""

    def folders(self) -> list[Path]:
        """All of them, by number."""
        return [self.folder(number) for number in range(self.shards)]


def read_folders(path: str | os.PathLike[str]) -> ShardFolders:
    """What is there, for whoever only looks; a directory without the file has one shard.

    Raises `Corruption` or `NewerFormat` for a file that isn't ours to read, `PermissionDenied`.
    """
    root = Path(path)
    try:
        stored = _read(root)
    except FileNotFoundError:
        stored = None
    return ShardFolders(root) if stored is None else _parse(root, stored)


def open_folders(path: str | os.PathLike[str], shards: int | None = None) -> ShardFolders:
    """The folders of a directory that a broker is about to open, made if there is nothing yet.

    `shards` is for a new directory; None takes what is there, or one. Raises `invalid_argument` if the
    directory has another number.
    """
    if shards is not None and not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgument(
            f"shards must be between 1 and {SHARDS_MAX}", field="shards", limit=SHARDS_MAX
        )
    found = read_folders(path)
    if found.shards == 1 and shards is not None and shards > 1:
        if _is_one_shard(found.root):
            raise InvalidArgument(
                f"{path} has one shard and can't get {shards}: the number is fixed when a directory is "
                "made. Make a new one and move the topics there, for instance with `fasti changes` or "
                "Spark; or leave `shards` out",
                field="shards",
                limit=1,
            )
        found = _make(found.root, shards)
    if shards is not None and found.shards != shards:
        raise InvalidArgument(
            f"{path} has {found.shards} shards, not {shards}: the number is fixed when a directory is "
            "made. Leave `shards` out to take what is there",
            field="shards",
            limit=found.shards,
        )
    if found.shards > 1:
        _prepare(found)
    return found


def check_one_shard(path: str | os.PathLike[str], what: str) -> None:
    """Raises `invalid_argument` where `what` is for one shard's folder and there are several."""
    found = read_folders(path)
    if found.shards > 1:
        raise InvalidArgument(
            f"{path} has {found.shards} shards: {what} takes the folder of one of them, as "
            f"{found.folder(0)}",
            field="data",
        )


def _is_one_shard(root: Path) -> bool:
    return any((root / name).exists() for name in _ONE_SHARD)


def _make(root: Path, shards: int) -> ShardFolders:
    """Writes the file, unless another process did a moment ago: then that one's word counts."""
    document = {"format": _FORMAT, "shards": shards, "cluster": secrets.token_hex(8)}
    with _translating(root):
        _make_root(root)
        with open_folder(root, "") as folder:
            temporary = f"{SHARDS_NAME}.{secrets.token_hex(4)}.tmp"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            descriptor = open_file(folder, root / temporary, flags)
            try:
                os.write(descriptor, json.dumps(document).encode())
                os.fsync(descriptor)
                with suppress(FileExistsError):
                    os.link(temporary, SHARDS_NAME, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.close(descriptor)
                os.unlink(temporary, dir_fd=folder)
            os.fsync(folder)
    return read_folders(root)


def _make_root(root: Path) -> None:
    if not root.exists():
        for missing in reversed([path for path in (root, *root.parents) if not path.exists()]):
            make_folder(missing)
            with open_folder(missing.parent, "") as outer:
                os.fsync(outer)
    tighten(root)


def _prepare(folders: ShardFolders) -> None:
    """Each shard's folder is there, durably: what a shard finds missing in it is missing."""
    with _translating(folders.root), open_folder(folders.root, "") as outer:
        # A process before this one may have died before the file's name was durable.
        os.fsync(outer)
        names = [f"shard-{number}" for number in range(folders.shards)]
        missing = [name for name in names if not (folders.root / name).exists()]
        for name in missing:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=outer)
        if missing:
            os.fsync(outer)


def _read(root: Path) -> bytes | None:
    path = root / SHARDS_NAME
    with _translating(path, missing=True), open_folder(root, "") as folder:
        descriptor = open_file(folder, path, os.O_RDONLY)
        try:
            return os.read(descriptor, _BYTES_MAX)
        finally:
            os.close(descriptor)


def _parse(root: Path, stored: bytes) -> ShardFolders:
    try:
        document = json.loads(stored)
        found = int(document["format"])
        if found == _FORMAT:
            shards, cluster = int(document["shards"]), str(document["cluster"])
            if not 1 < shards <= SHARDS_MAX:
                raise ValueError(shards)
            return ShardFolders(root, shards, cluster)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(
            f"{root / SHARDS_NAME} can't be read: {error!r}", file=SHARDS_NAME, offset=0
        ) from error
    raise NewerFormat(
        f"{root / SHARDS_NAME} is of format {found}, which this version can't read",
        found=found,
        supported=_FORMAT,
    )


@contextmanager
def _translating(path: Path, missing: bool = False) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if missing:
            raise
        raise translated(error, str(path)) from error
    except OSError as error:
        raise translated(error, str(path)) from error
