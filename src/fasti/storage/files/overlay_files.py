"""Files over files: what is written stays in memory, what lies beneath is not changed.

For tools that must change nothing, and for trying out what a repair would do. A file that is written to
is copied into memory first, so this is for the few that a repair touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fasti.errors import NotFound
from fasti.storage.files import File, Files, Lock, read_whole
from fasti.storage.files.memory_files import MemoryFiles


class OverlayFiles:
    """`Files` that show what lies beneath, and changes of their own. One thread."""

    def __init__(self, beneath: Files) -> None:
        self._beneath = beneath
        self._over = MemoryFiles()
        self._deleted: set[str] = set()

    @property
    def place(self) -> str | None:
        return None

    def identity(self, name: str) -> int:
        return 0

    def exists(self, name: str) -> bool:
        if self._over.exists(name):
            return True
        return name not in self._deleted and self._beneath.exists(name)

    def list(self, prefix: str) -> list[str]:
        beneath = {name for name in self._beneath.list(prefix) if name not in self._deleted}
        return sorted(beneath | set(self._over.list(prefix)))

    def open(self, name: str, writable: bool) -> File:
        if not self._over.exists(name):
            self._check(name)
            if not writable:
                return self._beneath.open(name, writable=False)
            self._copy_up(name)
        return self._over.open(name, writable)

    def create(self, name: str, size_bytes: int) -> File:
        return self._over.create(name, size_bytes)

    def delete(self, name: str) -> None:
        self._check(name)
        if self._over.exists(name):
            self._over.delete(name)
        self._deleted.add(name)

    def rename(self, old: str, new: str) -> None:
        if not self._over.exists(old):
            self._check(old)
            self._copy_up(old)
        self._over.rename(old, new)
        self._deleted.add(old)

    def replace(self, name: str, data: bytes) -> None:
        self._over.replace(name, data)

    def sync_directory(self, name: str) -> None:
        pass

    def free_bytes(self) -> int:
        return self._beneath.free_bytes()

    def lock(self) -> Lock:
        return self._over.lock()

    def _check(self, name: str) -> None:
        if not self.exists(name):
            raise NotFound(f"{name} does not exist")

    def _copy_up(self, name: str) -> None:
        self._over.replace(name, read_whole(self._beneath, name))


if TYPE_CHECKING:
    _conforms: type[Files] = OverlayFiles
