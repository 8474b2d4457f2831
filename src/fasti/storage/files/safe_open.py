"""Opening what is inside a data directory, and nothing else.

An attacker who could put a link into a data directory could make the broker overwrite a file
elsewhere, or read one. So nothing inside is followed: each folder and file is opened by its name in the folder that
holds it, and what it is is asked of the descriptor, not of the path. A symbolic link in place of a file
or folder is refused, and so are fifos, devices and sockets; a file with more than one name is read but
not written to. The path of the data directory itself may be a link: it is the operator's word.

Folders are made with mode 0700 and files with 0600, whatever the umask: payloads are in clear.

All functions raise `OSError` as the system does, `PermissionDenied` for what they refuse. Any thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fasti.errors import PermissionDenied

# What a LOCK file holds is a number; something larger is not ours to overwrite.
_LOCK_BYTES_MAX = 64
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without waiting: a fifo would wait for its writer.
_FILE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


def _refused(path: str, mode: int) -> PermissionDenied:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return PermissionDenied(
        f"{path}: is {kind} where a file or folder of its own is needed; only the path of the data "
        "directory itself may be a link",
        details={"path": path},
    )


@contextmanager
def open_folder(root: Path, name: str) -> Iterator[int]:
    """A descriptor of a folder below ``root``; ``""`` is the root, whose path may be a link."""
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for part in name.split("/") if name else ():
            inner = _enter(descriptor, part, str(root / name))
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(outer: int, part: str, path: str) -> int:
    try:
        return os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=outer)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            mode = os.stat(part, dir_fd=outer, follow_symlinks=False).st_mode
            raise _refused(path, mode) from error
        raise


def make_folder(path: str | Path, outer: int | None = None) -> None:
    """A new folder, unless there is one."""
    with suppress(FileExistsError):
        os.mkdir(path, _FOLDER_MODE, dir_fd=outer)
        os.chmod(path, _FOLDER_MODE, dir_fd=outer)


def open_file(folder: int, path: Path, flags: int) -> int:
    """A descriptor of the file that ``path`` names in its folder."""
    try:
        descriptor = os.open(path.name, flags | _FILE_FLAGS, _FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
            raise _refused(str(path), mode) from error
        raise
    try:
        if flags & os.O_CREAT:
            os.fchmod(descriptor, _FILE_MODE)
        _check(os.fstat(descriptor), str(path), bool(flags & os.O_RDWR))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(status: os.stat_result, path: str, writable: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, status.st_mode)
    if writable and status.st_nlink > 1:
        raise PermissionDenied(
            f"{path}: has {status.st_nlink} names (hard links), so it is not written to; "
            "copy the directory instead of linking its files",
            details={"path": path},
        )


def open_lock(path: Path) -> int:
    """A new or existing LOCK file; what can't be one is refused, not overwritten."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FILE_FLAGS, _FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _refused(str(path), os.stat(path, follow_symlinks=False).st_mode) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(str(path), status.st_mode)
        if status.st_size > _LOCK_BYTES_MAX:
            raise PermissionDenied(f"{path}: is not a lock file", details={"path": str(path)})
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _FILE_MODE:
            os.fchmod(descriptor, _FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def tighten(root: Path) -> str | None:
    """Close a folder to other users, before data is put there; what there is to say about it.

    A folder of this user's is set to 0700 if it is empty or a data directory. One of another user
    (a volume with a group, in a container) is left as it is, and so is what serves many, as /tmp.
    """
    with open_folder(root, "") as descriptor:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        is_own = status.st_uid == os.geteuid() and not mode & stat.S_ISVTX
        if not mode & 0o077 or (not is_own and not mode & 0o007):
            return None
        known = set(os.listdir(descriptor)) - {"LOCK", "lost+found"}
        if is_own and (not known or known >= {"blocks", "journal"}):
            os.fchmod(descriptor, mode & ~0o077)
            return f"{root} was open to other users ({mode:04o}), and is not any more"
    return f"{root} is open to other users ({mode:04o}): close it with chmod 700"
