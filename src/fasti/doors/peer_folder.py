"""Where the processes of one broker find each other: the folder `peers` in their data directory.

Each process listens at a Unix socket there, which has the number of its lowest shard as its name. Only the
user that the processes run as can enter the folder, so whoever calls by a socket of it is one of them:
there is no token, no certificate and no port for it, and nothing to keep secret.

It also has the supervisor's two locks. `supervisor.lock` is held by the supervisor alone: there is one
for a directory. `processes.lock` is inherited by its processes: when a supervisor was killed, the next
one waits until they have ended, too.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from fasti.errors import DataDirLocked, PermissionDenied, StorageFailed

NAME = "peers"
SUPERVISOR_LOCK, PROCESSES_LOCK = "supervisor.lock", "processes.lock"
_DESCRIPTORS = Path("/proc/self/fd")


class PeerFolder:
    """Made if it isn't there. Any thread; `close` is for one, when no socket of it is in use."""

    def __init__(self, data: Path) -> None:
        """Raises `permission_denied` if others could enter it, `storage_failed`."""
        self._path = data / NAME
        try:
            with suppress(FileExistsError):
                self._path.mkdir(mode=0o700)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags)
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error.strerror}") from error
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(self._descriptor)
            raise PermissionDenied(
                f"{self._path}: others may enter it, and could act as a process of the broker: run "
                f"`chmod 700 {self._path}`, as the user of the broker",
                details={"file": str(self._path)},
            )

    def socket_path(self, first_shard: int) -> str:
        """The socket of the process with this lowest shard, as this process may write it.

        By the descriptor, where the system has such paths: a socket's own may have 107 bytes.
        """
        name = f"{first_shard}.sock"
        if _DESCRIPTORS.exists():
            return f"{_DESCRIPTORS}/{self._descriptor}/{name}"
        return str(self._path.absolute() / name)

    def lock(self, name: str) -> int:
        """The descriptor of a lock that is ours until it is closed, by all who inherited it.

        Raises `locked` if another process has it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            raise StorageFailed(f"{self._path / name}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DataDirLocked(f"{self._path.parent} is served by other processes") from None
        return descriptor

    def close(self) -> None:
        """Lets the folder go."""
        os.close(self._descriptor)
