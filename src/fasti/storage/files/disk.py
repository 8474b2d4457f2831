"""The only door to the disk for everything in storage.

`Files` is deliberately tiny, so that a simulated disk (`fasti.testing.disk`) can stand in for the
real one and lose, tear and refuse everything that a real one may.  Its rules are those of POSIX,
taken at their strictest:

* Bytes are durable only after `File.sync` returned; a sync that failed says nothing about any
  byte written since the last good one, and is never tried again on the same file.
* A created, renamed or deleted *name* is durable only after `sync_directory` of its folder.
* `create` with a size gives a file whose blocks are really there (zero-filled and synced), so
  that no later write inside it can run out of space, and a sync need not change metadata.
* A map shows the file's bytes without copying them.  It stays readable for as long as any view
  of it is alive, whatever happens to the file's name; `File.busy` tells whether one is, so that
  no new content is written under an old reader.

* Nothing inside the folder is followed elsewhere: a symbolic link in place of a file or folder is
  refused, and so are fifos, devices and sockets; a file with more than one name is not written to.
  The path of the folder itself may be a link.

Names are relative paths with ``/``; ``""`` is the root folder.  Errors of the operating system
leave here as our own (`fasti.errors`), naming the path.

Thread-safety: `LocalFiles` has no state but its root and lock and may be used from any thread.
A `File` may be read from any thread; writes and syncs are the caller's to order.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fasti.errors import (
    AlreadyExists,
    Closed,
    DataDirLocked,
    FastiError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StorageFailed,
    StorageFull,
)
from fasti.storage.files.safe_open import make_folder, open_file, open_folder, open_lock
from fasti.storage.frames import flattened

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOCK_NAME = "LOCK"

# Zeros go out in pieces of the size in which the journal will write over them: the page cache
# keeps them in folios of that size, and larger ones made later syncs 5 to 8 % slower.  A sync
# after every few pieces keeps the journal's own syncs from queueing behind a whole segment.
_FILL_BYTES = 1 << 20
_FILLS_PER_SYNC = 8
_ZEROS = bytes(_FILL_BYTES)
_IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))

# On macOS an fsync leaves the data in the drive's cache; only this fcntl is a sync there.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
# A map of Python before 3.13 keeps a descriptor of its own, and thousands of segments that many.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def _sync_data(descriptor: int) -> None:
    if _FULL_SYNC is None:
        os.fdatasync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)


class File(Protocol):
    """One open file.  Closing it twice is fine; using it afterwards raises `Closed`."""

    @property
    def name(self) -> str:
        """The name under which it was opened."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers one after another at ``offset``; all of them, or raise."""

    def sync(self) -> None:
        """Make everything written so far durable (data and length, not the name)."""

    def read_at(self, offset: int, length: int) -> bytes:
        """A copy of the bytes; fewer than asked for only at the end of the file."""

    def map(self) -> memoryview:
        """A read-only view of the whole file as it is now; later writes inside it show."""

    def busy(self) -> bool:
        """Whether a view that `map` gave, or a slice of one, is alive; also when closed."""

    def close(self) -> None:
        """Let go of the file; views of it stay readable."""


class Lock(Protocol):
    """The right to use a data directory."""

    def release(self) -> None:
        """Let the next process have it.  Releasing twice is fine."""


class Files(Protocol):
    """A folder of files.

    Every call may raise `NotFound`, `AlreadyExists`, `StorageFull`, `StorageFailed` or
    `PermissionDenied`, and `InvalidArgument` for a name that leaves the folder.
    """

    def create(self, name: str, size_bytes: int) -> File:
        """A new writable file of that size, allocated, zero-filled and synced (not its name)."""

    def open(self, name: str, writable: bool) -> File: ...

    def exists(self, name: str) -> bool: ...

    def list(self, prefix: str) -> list[str]:
        """The names of all files that begin with ``prefix``, sorted."""

    def delete(self, name: str) -> None:
        """Remove the name; not durable before `sync_directory`."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give the file another name, replacing what had it; not yet durable."""

    def replace(self, name: str, data: bytes) -> None:
        """Atomically make ``data`` the content of the file; durable when it returns."""

    def sync_directory(self, name: str) -> None:
        """Make creations, renames and deletions in that folder durable."""

    def free_bytes(self) -> int:
        """How much this process may still allocate, as far as the file system tells."""

    def lock(self) -> Lock:
        """Take the directory for this process; `DataDirLocked` names who has it."""

    @property
    def place(self) -> str | None:
        """Where the folder is, if files can be copied from there; None if they can't."""

    def identity(self, name: str) -> int:
        """What tells a file from a copy of it, wherever it is moved."""


def checked_name(name: str) -> str:
    """The name itself, if it stays inside the folder."""
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidArgument(f"{name!r} is not a relative file name", field="name")
    return name


def folder_of(name: str) -> str:
    """The folder of a file, ``""`` at the root."""
    return name.rpartition("/")[0]


def translated(error: OSError, path: str) -> FastiError:
    """Our error for one of the operating system, naming the path."""
    reason = f"{path}: {error.strerror or error}"
    details = {"path": path, "errno": error.errno}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(reason, details=details)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDenied(reason, details=details)
    if error.errno == errno.ENOENT:
        return NotFound(reason, details=details)
    if error.errno == errno.EEXIST:
        return AlreadyExists(reason, details=details)
    return StorageFailed(reason, details=details)


def read_whole(files: Files, name: str, bytes_max: int | None = None) -> bytes:
    """A file's bytes, or the first of them."""
    file = files.open(name, writable=False)
    try:
        return file.read_at(0, file.size if bytes_max is None else bytes_max)
    finally:
        file.close()


def size_of(files: Files, name: str) -> int:
    """A file's length in bytes."""
    file = files.open(name, writable=False)
    try:
        return file.size
    finally:
        file.close()


def replace_by_rename(files: Files, name: str, data: bytes) -> None:
    """`Files.replace` in terms of the other calls: new bytes first, then the name, atomically."""
    temporary = f"{name}.tmp"
    if files.exists(temporary):
        files.delete(temporary)
    file = files.create(temporary, 0)
    try:
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    files.sync_directory(folder_of(name))


@contextmanager
def _translating(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translated(error, path) from error


class LocalFile:
    """A `File` of the operating system: pwritev, fdatasync, mmap."""

    def __init__(self, name: str, path: Path, descriptor: int) -> None:
        self._name = name
        self._path = str(path)
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def __del__(self) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        with _translating(self._path):
            return os.fstat(self._open()).st_size

    def _open(self) -> int:
        if self._descriptor < 0:
            raise Closed(f"{self._path} is closed")
        return self._descriptor

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> int:
        descriptor = self._open()
        views = flattened(buffers)
        total = 0
        first = 0
        try:
            while first < len(views):
                wrote = os.pwritev(descriptor, views[first : first + _IOV_MAX], offset + total)
                total += wrote
                while first < len(views) and wrote >= views[first].nbytes:
                    wrote -= views[first].nbytes
                    first += 1
                if wrote:  # A partial write: go on inside the buffer where it stopped.
                    views[first] = views[first][wrote:]
        except OSError as error:
            raise translated(error, self._path) from error
        return total

    def allocate(self, size_bytes: int) -> None:
        """Ask for the blocks, so that a full disk answers at once and not after a long write."""
        if size_bytes and hasattr(os, "posix_fallocate"):
            with _translating(self._path):
                os.posix_fallocate(self._open(), 0, size_bytes)

    def sync(self) -> None:
        try:
            _sync_data(self._open())
        except OSError as error:
            raise translated(error, self._path) from error

    def read_at(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        with _translating(self._path):
            while length > 0:
                part = os.pread(self._open(), length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def map(self) -> memoryview:
        descriptor = self._open()
        if self._map is None or len(self._map) != self.size:
            if not self.size:
                return memoryview(b"")
            with _translating(self._path):
                self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ, **_MAP_OPTIONS)
        return memoryview(self._map)

    def busy(self) -> bool:
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                return True
            self._map = None
        return False

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        # Without views the map goes now; with some, when the last of them is dropped.
        self.busy()


class LocalLock:
    """An flock on the LOCK file, with the owner's pid in it; a dead owner's lock is free."""

    def __init__(self, path: Path) -> None:
        with _translating(str(path)):
            self._descriptor = open_lock(path)
        try:
            self._take(path)
        except BaseException:
            # A lock that stays taken would shut this very process out for good.
            self.release()
            raise

    def _take(self, path: Path) -> None:
        with _translating(str(path)):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                pid = self._owner()
                whom = f"process {pid}" if pid else "another process"
                raise DataDirLocked(f"{path.parent} is in use by {whom}", pid=pid) from error
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _owner(self) -> int | None:
        text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalFiles:
    """`Files` below one folder of the local file system, which is made if it isn't there.

    Folders are made with mode 0700 and files with 0600, whatever the umask.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        with _translating(str(self._root)):
            if not self._root.is_dir():
                # Where a file is in the way, making the folder says so.
                with suppress(FileExistsError):
                    self._root.parent.mkdir(parents=True, exist_ok=True)
                make_folder(self._root)
            # Raises if it is a file, or a link to nowhere.
            with self._folder(""):
                pass

    def _path(self, name: str) -> Path:
        return self._root / checked_name(name)

    def _folder(self, name: str) -> AbstractContextManager[int]:
        return open_folder(self._root, name)

    def _make_folder(self, name: str) -> None:
        """Make a folder and those above it; their own names are durable at once."""
        if not name:
            return
        path = str(self._root / name)
        with _translating(path):
            try:
                with self._folder(name):
                    return
            except FileNotFoundError:
                pass
            self._make_folder(folder_of(name))
            base = name.rpartition("/")[2]
            with self._folder(folder_of(name)) as outer:
                make_folder(base, outer)
        self.sync_directory(folder_of(name))

    def _open(self, name: str, flags: int) -> LocalFile:
        path = self._path(name)
        with _translating(str(path)), self._folder(folder_of(name)) as folder:
            return LocalFile(name, path, open_file(folder, path, flags))

    def create(self, name: str, size_bytes: int) -> File:
        self._path(name)
        self._make_folder(folder_of(name))
        file = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._fill(file, size_bytes)
        except BaseException:
            file.close()
            with suppress(FastiError):  # The first error is the one to be raised.
                self.delete(name)
            raise
        return file

    def _fill(self, file: LocalFile, size_bytes: int) -> None:
        file.allocate(size_bytes)
        for count, offset in enumerate(range(0, size_bytes, _FILL_BYTES), 1):
            length = min(_FILL_BYTES, size_bytes - offset)
            file.write_at(offset, [memoryview(_ZEROS)[:length]])
            if count % _FILLS_PER_SYNC == 0 or offset + length == size_bytes:
                file.sync()

    def open(self, name: str, writable: bool) -> File:
        return self._open(name, os.O_RDWR if writable else os.O_RDONLY)

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with _translating(str(path)):
            try:
                with self._folder(folder_of(name)) as folder:
                    base = name.rpartition("/")[2]
                    mode = os.stat(base, dir_fd=folder, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return False
        return not stat.S_ISDIR(mode)

    def list(self, prefix: str) -> list[str]:
        folder = folder_of(prefix)
        names = []
        with _translating(str(self._root / folder)):
            try:
                with self._folder(folder) as descriptor:
                    for path, _, files, _ in os.fwalk(dir_fd=descriptor):
                        below = Path(folder) / path
                        names += [(below / file).as_posix() for file in files]
            except FileNotFoundError:
                return []
        return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _translating(str(path)), self._folder(folder_of(name)) as folder:
            os.unlink(name.rpartition("/")[2], dir_fd=folder)

    def rename(self, old: str, new: str) -> None:
        self._path(old)
        target = self._path(new)
        self._make_folder(folder_of(new))
        with (
            _translating(str(target)),
            self._folder(folder_of(old)) as source,
            self._folder(folder_of(new)) as folder,
        ):
            names = (old.rpartition("/")[2], new.rpartition("/")[2])
            os.rename(*names, src_dir_fd=source, dst_dir_fd=folder)

    def replace(self, name: str, data: bytes) -> None:
        replace_by_rename(self, name, data)

    def sync_directory(self, name: str) -> None:
        path = self._path(name) if name else self._root
        with _translating(str(path)), self._folder(name) as descriptor:
            os.fsync(descriptor)

    def free_bytes(self) -> int:
        with _translating(str(self._root)):
            status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    @property
    def place(self) -> str | None:
        return str(self._root.absolute())

    def identity(self, name: str) -> int:
        path = self._path(name)
        with _translating(str(path)), self._folder(folder_of(name)) as folder:
            base = name.rpartition("/")[2]
            return os.stat(base, dir_fd=folder, follow_symlinks=False).st_ino

    def lock(self) -> Lock:
        return LocalLock(self._root / LOCK_NAME)


if TYPE_CHECKING:
    _conforms: type[Files] = LocalFiles
