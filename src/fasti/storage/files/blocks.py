"""Blocks in files: each block in a file of its own, read through a map, without copying.

The manifest's file is::

    offset  size  field
         0     8  magic            "FASTIMAN"
         8     4  format version   1
        12     4  zeros
        16     8  version
        24     8  length of the data
        32     8  checksum         XXH3-64 of the 32 bytes before it and the data
        40        the data

The checksum keeps its place in every later format.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from xxhash import xxh3_64

from fasti.errors import (
    AlreadyExists,
    Corruption,
    FastiError,
    NotFound,
    StorageFailed,
)
from fasti.storage.blocks import (
    MANIFEST_NAME,
    TEMPORARY,
    check_version,
    checked_block_name,
    checked_range,
)
from fasti.storage.files import Files, folder_of, read_whole, size_of
from fasti.storage.formats import check_format

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fasti.storage.blocks import BlockStore

MANIFEST_FORMAT_VERSION = 1
# Where a data directory has its manifest.
MANIFEST_PATH = f"blocks/{MANIFEST_NAME}"

_MAGIC = b"FASTIMAN"
_FIELDS = struct.Struct("<8sI4xQQ")
_CHECKSUM = struct.Struct("<Q")
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_MAPS_MAX = 256
_READ_BYTES = 1 << 20
# What is read at a time of a block that can't be read at once: what a disk loses is not less.
_SECTOR_BYTES = 4096


def encode_manifest(version: int, data: bytes) -> bytes:
    """The content of a manifest file."""
    fields = _FIELDS.pack(_MAGIC, MANIFEST_FORMAT_VERSION, version, len(data))
    return fields + _CHECKSUM.pack(_digest(fields, data)) + data


def decode_manifest(content: bytes, name: str) -> tuple[int, bytes]:
    """Version and data of a manifest file; raises `Corruption` or `NewerFormat`."""
    if len(content) < _HEADER_BYTES or not content.startswith(_MAGIC):
        raise Corruption(f"{name} is not a manifest", file=name, offset=0)
    fields, data = content[: _FIELDS.size], content[_HEADER_BYTES:]
    if _CHECKSUM.unpack_from(content, _FIELDS.size)[0] != _digest(fields, data):
        raise Corruption(f"{name}: the checksum is wrong", file=name, offset=0)
    _, format_version, version, length = _FIELDS.unpack(fields)
    check_format(name, format_version, MANIFEST_FORMAT_VERSION)
    if length != len(data):
        raise Corruption(f"{name}: the length is wrong", file=name, offset=len(content))
    return version, data


def _digest(fields: bytes, data: bytes) -> int:
    state = xxh3_64(fields)
    state.update(data)
    return state.intdigest()


class FileBlocks:
    """A `BlockStore` of files below ``directory``.  Removes what an unfinished `put` left."""

    def __init__(self, files: Files, directory: str = "blocks") -> None:
        self._files = files
        self._directory = directory
        self._manifest = f"{directory}/{MANIFEST_NAME}"
        self._lock = threading.Lock()
        self._switching = threading.Lock()
        self._unsynced: set[str] = set()
        # Maps of blocks that were read lately; the views given out keep theirs alive anyway.
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        # Blocks that could be read from end to end since this was made.
        self._read: set[str] = set()
        for name in files.list(f"{directory}/"):
            if name.endswith(TEMPORARY):
                # One that a running broker has just finished is gone, where a tool reads beside it.
                with suppress(NotFound):
                    files.delete(name)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{checked_block_name(name)}"

    def put(self, name: str, buffers: Sequence[Buffer]) -> None:
        path = self._path(name)
        if self._files.exists(path):
            raise AlreadyExists(f"block {name} already exists")
        file = self._files.create(path + TEMPORARY, 0)
        try:
            file.write_at(0, buffers)
            file.sync()
            self._files.rename(path + TEMPORARY, path)
        except BaseException:
            file.close()
            with suppress(FastiError):  # The first error is the one to be raised.
                self._files.delete(path + TEMPORARY)
            raise
        file.close()
        self._note(path)

    def _note(self, path: str) -> None:
        with self._lock:
            self._unsynced.add(folder_of(path))

    def sync(self) -> None:
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        done = set()
        try:
            for folder in sorted(folders):
                self._files.sync_directory(folder)
                done.add(folder)
        finally:
            with self._lock:
                self._unsynced |= folders - done

    def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        return checked_range(self._view(self._path(name)), name, offset, length)

    def _view(self, path: str) -> memoryview:
        with self._lock:
            view = self._maps.get(path)
            if view is not None:
                self._maps.move_to_end(path)
                return view
        file = self._files.open(path, writable=False)
        try:
            if path not in self._read:
                # A bad sector under a map doesn't raise but kills the process.
                for offset in range(0, file.size, _READ_BYTES):
                    file.read_at(offset, _READ_BYTES)
            view = file.map()
        finally:
            file.close()
        with self._lock:
            self._read.add(path)
            self._maps[path] = view
            while len(self._maps) > _MAPS_MAX:
                self._maps.popitem(last=False)
        return view

    def close(self) -> None:
        """Let go of the maps of blocks; views that were given out stay good."""
        with self._lock:
            self._maps.clear()

    def size(self, name: str) -> int:
        # Not by its map: that would be read.
        return size_of(self._files, self._path(name))

    def list(self, prefix: str = "") -> list[str]:
        start = len(self._directory) + 1
        names = (path[start:] for path in self._files.list(f"{self._directory}/{prefix}"))
        return [n for n in names if n != MANIFEST_NAME and not n.endswith(TEMPORARY)]

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._files.delete(path)
        self.let_go(name)
        self._note(path)

    def readable(self, name: str) -> memoryview:
        file = self._files.open(self._path(name), writable=False)
        try:
            data = bytearray(file.size)
            failure: FastiError | None = None
            good = 0
            for offset in range(0, len(data), _SECTOR_BYTES):
                try:
                    piece = file.read_at(offset, _SECTOR_BYTES)
                except StorageFailed as error:
                    failure = error
                    continue
                data[offset : offset + len(piece)] = piece
                good += len(piece)
        finally:
            file.close()
        if failure is not None and not good:
            raise failure
        return memoryview(data)

    def let_go(self, name: str) -> None:
        path = self._path(name)
        with self._lock:
            self._maps.pop(path, None)
            self._read.discard(path)

    def read_manifest(self) -> tuple[int, bytes] | None:
        try:
            content = read_whole(self._files, self._manifest)
        except NotFound:
            return None
        return decode_manifest(content, self._manifest)

    def switch_manifest(self, expected_version: int, data: bytes) -> int:
        with self._switching:
            current = self.read_manifest()
            version = current[0] if current else 0
            check_version(version, expected_version)
            self.sync()
            self._files.replace(self._manifest, encode_manifest(version + 1, data))
            return version + 1


if TYPE_CHECKING:
    _conforms: type[BlockStore] = FileBlocks
