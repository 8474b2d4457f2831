"""A `BlockStore` in memory. Any thread, under one lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fasti.errors import AlreadyExists, NotFound
from fasti.storage.blocks import check_version, checked_block_name, checked_range
from fasti.storage.memory.journal import joined

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fasti.storage.blocks import BlockStore


class MemoryBlocks:
    """A `BlockStore` that is a dict."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[str, memoryview] = {}
        self._manifest: tuple[int, bytes] | None = None

    def put(self, name: str, buffers: Sequence[Buffer]) -> None:
        block = joined(buffers)
        with self._lock:
            if self._blocks.setdefault(checked_block_name(name), block) is not block:
                raise AlreadyExists(f"block {name} already exists")

    def sync(self) -> None:
        return

    def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        return checked_range(self._block(name), name, offset, length)

    def _block(self, name: str) -> memoryview:
        with self._lock:
            view = self._blocks.get(checked_block_name(name))
        if view is None:
            raise NotFound(f"there is no block {name}")
        return view

    def size(self, name: str) -> int:
        return len(self._block(name))

    def list(self, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(name for name in self._blocks if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._block(name)
        with self._lock:
            self._blocks.pop(name, None)

    def readable(self, name: str) -> memoryview:
        return self.get(name)

    def let_go(self, name: str) -> None:
        pass

    def read_manifest(self) -> tuple[int, bytes] | None:
        with self._lock:
            return self._manifest

    def switch_manifest(self, expected_version: int, data: bytes) -> int:
        with self._lock:
            version = self._manifest[0] if self._manifest else 0
            check_version(version, expected_version)
            self._manifest = (version + 1, bytes(data))
            return version + 1


if TYPE_CHECKING:
    _conforms: type[BlockStore] = MemoryBlocks
