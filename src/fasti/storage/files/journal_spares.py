"""Spare segment files: prepared ahead, recycled, and kept in reserve.

A write into blocks that are already on the disk syncs about twice as fast as one that makes the
file system allocate, so the journal only ever writes into files that were zero-filled before or
that held an older segment.  Spares are such files: ``spare-N.ready``, and ``spare-N.preparing``
while they are being made; the latter are worthless after a crash and are removed.

Of the spares, ``reserve`` are held back: ordinary appends never take them, so that when the disk
is full the appends that free space (acks, cancels) still find room.

Under load the segments that a checkpoint trims are enough: up to ``kept_max`` of them are kept, so
that nothing has to be zero-filled while messages stream in.

Thread-safety: all methods, from any thread.  The lock guards the list of names, never I/O; only one
thread prepares at a time, and whoever comes meanwhile waits for its spare instead of making another.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from fasti.errors import FastiError, NotFound, PermissionDenied
from fasti.storage.files import Files

READY = ".ready"
PREPARING = ".preparing"


class Spares:
    """The pool of spare files of one size in one folder."""

    def __init__(self, files: Files, directory: str, size_bytes: int, reserve: int) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self._one_prepares = threading.Lock()
        self._ready: list[str] = []
        self._serial = 0
        self.size_bytes = size_bytes
        self.reserve = reserve
        self.wanted = reserve + 1
        self.kept_max = reserve + 4

    @property
    def count(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def adopt_leftovers(self) -> None:
        """Take over what an earlier process left, and remove what is of no use.

        Called once, before any other method.
        """
        for name in self._files.list(f"{self._directory}/spare-"):
            stem = name.rpartition("/")[2].partition(".")[0]
            number = stem.removeprefix("spare-")
            self._serial = max(self._serial, int(number) if number.isdigit() else 0)
            if name.endswith(READY) and self.count < self.kept_max and self._fits(name):
                self._ready.append(name)
            else:
                self._files.delete(name)

    def _fits(self, name: str) -> bool:
        """Whether it can become a segment; a file that has another name elsewhere must not."""
        try:
            file = self._files.open(name, writable=True)
        except (PermissionDenied, NotFound):
            return False
        try:
            return file.size == self.size_bytes
        finally:
            file.close()

    def take(self, use_reserve: bool) -> str | None:
        """A ready spare, or None if there is none that this caller may have."""
        with self._lock:
            if len(self._ready) > (0 if use_reserve else self.reserve):
                return self._ready.pop()
            return None

    def give_back(self, name: str) -> None:
        """Return what `take` or `make` gave and wasn't used."""
        with self._lock:
            self._ready.append(name)

    def make(self, size_bytes: int | None = None) -> str:
        """A new file, zero-filled; `StorageFull` if there is no room, and nothing is left."""
        with self._lock:
            self._serial += 1
            stem = f"{self._directory}/spare-{self._serial:08d}"
        self._files.create(stem + PREPARING, size_bytes or self.size_bytes).close()
        try:
            self._files.rename(stem + PREPARING, stem + READY)
        except BaseException:
            # It is tried again every second: what is left each time would fill the disk.
            with suppress(FastiError):
                self._files.delete(stem + PREPARING)
            raise
        return stem + READY

    def prepare(self) -> bool:
        """Make one spare if one is wanted; False when there were enough."""
        with self._one_prepares:
            if self.count >= self.wanted:
                return False
            self.give_back(self.make())
            return True

    def release(self) -> bool:
        """Delete one, of the reserve too, so that its bytes are free; False if there was none."""
        name = self.take(use_reserve=True)
        if name is None:
            return False
        self.discard(name)
        return True

    def recycle(self, name: str, size_bytes: int) -> None:
        """Take a segment file out of service: keep it as a spare, or delete it.

        Its old name is durably gone before the file can be used again: otherwise a crash could
        bring the old name back with new content under it. When it raises it may be called again.
        """
        is_wanted = size_bytes == self.size_bytes and self.count < self.kept_max
        if not is_wanted or not self._fits(name):
            self.discard(name)
            return
        with self._lock:
            self._serial += 1
            spare = f"{self._directory}/spare-{self._serial:08d}{READY}"
        try:
            self._files.rename(name, spare)
        except NotFound:
            self._files.sync_directory(self._directory)
            return
        try:
            self._files.sync_directory(self._directory)
        except BaseException:
            with suppress(FastiError):
                self._files.delete(spare)
            raise
        self.give_back(spare)

    def discard(self, name: str) -> None:
        """Delete a file durably. When it raises it may be called again."""
        with suppress(NotFound):
            self._files.delete(name)
        self._files.sync_directory(self._directory)
