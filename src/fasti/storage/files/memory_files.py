"""`Files` in memory: a data directory that nothing outlives.

For a shard that is used and thrown away, such as the one on which a broker runs every path once
before it is ready. Nothing here can fail or be torn; for a disk that does, see the test kit.

Thread-safety: all methods, from any thread. As with real files, writes to one file are the
caller's to order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fasti.errors import AlreadyExists, NotFound
from fasti.storage.files import checked_name, replace_by_rename
from fasti.storage.frames import flattened

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fasti.storage.files import File, Files, Lock

_FREE_BYTES = 1 << 40


class _Content:
    """The bytes of a file. Growing replaces the array, so that views of the old one stay good."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)


class MemoryFile:
    """An open `File`."""

    def __init__(self, name: str, content: _Content) -> None:
        self._name, self._content = name, content

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return len(self._content.data)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(flattened(buffers))
        end = offset + len(data)
        if end > len(self._content.data):
            old = self._content.data
            self._content.data = bytearray(end)
            self._content.data[: len(old)] = old
        self._content.data[offset:end] = data
        return len(data)

    def sync(self) -> None:
        return

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._content.data[offset : offset + length])

    def map(self) -> memoryview:
        return memoryview(self._content.data).toreadonly()

    def busy(self) -> bool:
        # A reader may hold on to its map: such a file is never written anew.
        return True

    def close(self) -> None:
        return


class _Lock:
    def release(self) -> None:
        return


class MemoryFiles:
    """A folder of such files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _Content] = {}

    def create(self, name: str, size_bytes: int) -> File:
        content = _Content(size_bytes)
        with self._lock:
            if self._files.setdefault(checked_name(name), content) is not content:
                raise AlreadyExists(f"{name} already exists")
        return MemoryFile(name, content)

    def open(self, name: str, writable: bool) -> File:
        return MemoryFile(name, self._find(name))

    def _find(self, name: str) -> _Content:
        with self._lock:
            content = self._files.get(checked_name(name))
        if content is None:
            raise NotFound(f"{name} does not exist")
        return content

    def exists(self, name: str) -> bool:
        with self._lock:
            return checked_name(name) in self._files

    def list(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self._files if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._find(name)
        with self._lock:
            self._files.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        self._find(old)
        with self._lock:
            self._files[checked_name(new)] = self._files.pop(old)

    def replace(self, name: str, data: bytes) -> None:
        replace_by_rename(self, name, data)

    def sync_directory(self, name: str) -> None:
        return

    @property
    def place(self) -> str | None:
        return None

    def identity(self, name: str) -> int:
        return 0

    def free_bytes(self) -> int:
        return _FREE_BYTES

    def lock(self) -> Lock:
        return _Lock()


if TYPE_CHECKING:
    _conforms: type[Files] = MemoryFiles
