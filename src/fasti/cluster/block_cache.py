"""Parts of blocks on the local disk, up to a bound of bytes. A cache: whatever is in it can go.

Every read compares checksums, and a file that is damaged is dropped: its part is read from the stream
again. Files are written under another name first, and never synced: what a crash leaves half done is
found by its checksum. The part that was not used for longest goes first.

At the start the directory's files are taken over as they are. One process uses a directory. Any thread.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fasti.cluster.block_part import Part, decode_part
from fasti.cluster.names import to_token
from fasti.errors import FastiError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMPORARY = ".new"


class BlockCache:
    """Below ``directory``, which it makes. ``bytes_max`` 0 keeps nothing."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns):
            if path.name.endswith(_TEMPORARY):
                path.unlink()
            else:
                self._note(path.name, path.stat().st_size)
        self._shrink()

    def get(self, space: str, name: str, number: int) -> Part | None:
        """A part, if it is here and whole."""
        file = _file(space, name, number)
        with self._lock:
            if file not in self._sizes:
                return None
            self._sizes.move_to_end(file)
        try:
            with open(self._directory / file, "rb") as opened:
                view = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            return decode_part(name, number, view)
        except (OSError, ValueError, FastiError):
            self._drop(file)
            return None

    def message(self, space: str, name: str, number: int) -> bytes | None:
        """A part as it is stored, if it is here and whole; for other members."""
        if self.get(space, name, number) is None:
            return None
        return (self._directory / _file(space, name, number)).read_bytes()

    def put(self, space: str, name: str, number: int, *message: Buffer) -> None:
        """Keeps a part, given as one or several; a disk that is full or broken keeps nothing, which harms nobody."""
        file = _file(space, name, number)
        size = sum(memoryview(piece).nbytes for piece in message)
        if size > self._bytes_max:
            return
        path = self._directory / file
        temporary = path.with_name(f"{file}.{threading.get_ident()}{_TEMPORARY}")
        try:
            with open(temporary, "wb", buffering=0) as opened:
                opened.writelines(message)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            return
        with self._lock:
            self._note(file, size)
        self._shrink()

    def let_go(self, space: str, name: str) -> None:
        """Drops all parts of a block."""
        begin = _file(space, name, "")
        with self._lock:
            files = [file for file in self._sizes if file.startswith(begin)]
        for file in files:
            self._drop(file)

    def _note(self, file: str, size: int) -> None:
        self.bytes += size - self._sizes.pop(file, 0)
        self._sizes[file] = size

    def _shrink(self) -> None:
        while True:
            with self._lock:
                if self.bytes <= self._bytes_max or not self._sizes:
                    return
                file = next(iter(self._sizes))
            self._drop(file)

    def _drop(self, file: str) -> None:
        with self._lock:
            self.bytes -= self._sizes.pop(file, 0)
        with suppress(OSError):
            (self._directory / file).unlink()


def _file(space: str, name: str, number: int | str) -> str:
    return f"{space}~{to_token(name)}~{number}"
