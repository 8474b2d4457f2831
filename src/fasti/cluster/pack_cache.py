"""Packs on the local disk, as they are in the stream, up to a bound of bytes. A cache: whatever is in it can go.

It is there for the day on which NATS has lost a pack that it had acknowledged. Packs are written one behind the
other into files of some MiB, never synced; the oldest file goes first. `let_go` is told what is trimmed from the
stream, and drops that only two trims later: a standby, or a reader of the manifest before, may still want it.

Whoever reads decodes the pack, and with that compares its checksums: a damaged one is as good as none. What
a process before left is taken over. One process uses a directory. Any thread.
"""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FILE_BYTES = 8 << 20
_SUFFIX = ".packs"
# Before each pack: its place, and how long it is.
_RECORD = struct.Struct("<QQ")


class _File:
    """Packs at places in a row, from `first` on. `offsets` has where each begins, and where the last ends."""

    def __init__(self, path: Path, first: int) -> None:
        self.path, self.first = path, first
        self.offsets = array("Q", [0])

    @property
    def next(self) -> int:
        """The place behind its last."""
        return self.first + len(self.offsets) - 1

    @property
    def bytes(self) -> int:
        return self.offsets[-1]


class PackCache:
    """Below ``directory``, which it makes. ``bytes_max`` 0 keeps nothing."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory, self._bytes_max = directory, bytes_max
        self._file_bytes = min(_FILE_BYTES, max(1, bytes_max // 4))
        self._lock = threading.Lock()
        self._files: deque[_File] = deque()
        self._open: int | None = None
        # What the last trims told, the newest last.
        self._trims: deque[int] = deque(maxlen=3)
        self.bytes = 0
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            self._take_over()

    def _take_over(self) -> None:
        found = []
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError, ValueError):
                found.append(_scan(path))
        # The numbers in the names rise as they are written, also where places don't.
        for file in sorted(found, key=lambda file: int(file.path.name.split("-")[0])):
            self._files.append(file)
            self.bytes += file.bytes
        self._shrink()

    def put(self, place: int, *parts: Buffer) -> None:
        """Keeps a pack, given in parts; a disk that is full or broken keeps nothing, which harms nobody."""
        size = _RECORD.size + sum(memoryview(part).nbytes for part in parts)
        if size > self._bytes_max:
            return
        with self._lock, suppress(OSError):
            file = self._files[-1] if self._files else None
            if file is not None and file.first <= place < file.next:
                return
            if (
                file is None
                or self._open is None
                or place != file.next
                or file.bytes >= self._file_bytes
            ):
                file = self._begin(place)
            assert self._open is not None
            written = os.writev(self._open, [_RECORD.pack(place, size - _RECORD.size), *parts])
            if written != size:
                self._end()
                return
            file.offsets.append(file.bytes + size)
            self.bytes += size
            self._shrink()

    def _begin(self, place: int) -> _File:
        """Another file. What is older and not before this place is of another journal, or is told anew."""
        self._end()
        last = int(self._files[-1].path.name.split("-")[0]) if self._files else 0
        path = self._directory / f"{last + 1}-{place}{_SUFFIX}"
        self._open = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._files.append(_File(path, place))
        return self._files[-1]

    def _end(self) -> None:
        if self._open is not None:
            os.close(self._open)
            self._open = None

    def get(self, place: int) -> bytes | None:
        """What was put for this place last, if it is here still. It may be damaged."""
        with self._lock:
            for file in reversed(self._files):
                if file.first <= place < file.next:
                    number = place - file.first
                    begin, end = file.offsets[number], file.offsets[number + 1]
                    path = file.path
                    break
            else:
                return None
        with suppress(OSError), open(path, "rb") as opened:
            opened.seek(begin + _RECORD.size)
            found = opened.read(end - begin - _RECORD.size)
            return found if len(found) == end - begin - _RECORD.size else None
        return None

    def let_go(self, place: int) -> None:
        """The stream is trimmed up to this place."""
        with self._lock:
            self._trims.append(place)
            if len(self._trims) < 3:
                return
            while len(self._files) > 1 and self._files[0].next <= self._trims[0] + 1:
                self._drop_oldest()

    def _shrink(self) -> None:
        while self.bytes > self._bytes_max and self._files:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        file = self._files.popleft()
        self.bytes -= file.bytes
        if not self._files:
            self._end()
        with suppress(OSError):
            file.path.unlink()

    def close(self) -> None:
        """Nothing is put any more."""
        with self._lock:
            self._end()


def _scan(path: Path) -> _File:
    """What a file has, up to where it ends in the middle. Raises `ValueError`, `OSError`."""
    file = _File(path, int(path.name.removesuffix(_SUFFIX).split("-")[1]))
    size = path.stat().st_size
    with open(path, "rb") as opened:
        while len(head := opened.read(_RECORD.size)) == _RECORD.size:
            place, length = _RECORD.unpack(head)
            end = file.bytes + _RECORD.size + length
            if place != file.next or end > size:
                break
            file.offsets.append(end)
            opened.seek(end)
    return file
